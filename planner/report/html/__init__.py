"""One HTML page of plans side by side, complete in itself: text, inline SVG and a few lines of script.

Bars are strokes of a path in whole ticks of time, so that a timeline is drawn, hovered and zoomed from one text. The
same plans give the same bytes. Leaves out what is compared (`planner.report.comparison.comparison`).
"""
