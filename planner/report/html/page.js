"use strict";
// Draws what depends on the zoom: the axis, edges and numbers of bars that are wide enough; and says what is touched.
// Bars are read from the paths that draw them. All charts of time share one view, in ticks.
(() => {
  const time = document.getElementById("time"), tip = document.getElementById("tip");
  const end = +time.dataset.end, tick = +time.dataset.tick, least = Math.max(1, Math.min(20, end));
  const plots = [...time.querySelectorAll(".plot:not(.axis)")], axes = [...time.querySelectorAll(".axis")];
  const view = { from: 0, width: end };
  const MOST_LABELS = 3000, LETTER = 6.4;

  const element = (parent, name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return parent.appendChild(made);
  };

  // As exact as ticks are, with three decimals of a millisecond at most from one millisecond on.
  const exact = Math.max(0, 6 - Math.round(Math.log10(tick)));
  const milliseconds = (ticks) => `${((ticks * tick) / 1e6).toFixed((ticks * tick) < 1e6 ? exact : Math.min(3, exact))} ms`;

  const size = (bytes) => {
    const unit = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find((each) => bytes >= each[1]);
    return unit ? `${(bytes / unit[1]).toFixed(2)} ${unit[0]}` : `${Math.round(bytes)} bytes`;
  };

  // "0:1:3 7" is 0, 1, 2, 7
  const numbers = (runs) => runs.split(" ").flatMap((run) => {
    const [first, step, count] = run.split(":").map(Number);
    return count ? Array.from({ length: count }, (_, k) => first + step * k) : [first];
  });

  const bars = (path) => {
    const found = [], microbatches = path.dataset.microbatches ? numbers(path.dataset.microbatches) : [];
    let now = 0;
    for (const [, gap, length] of path.getAttribute("d").matchAll(/m(-?\d+) 0h(\d+)/g)) {
      found.push({ from: now + +gap, to: now + +gap + +length, path, microbatch: microbatches[found.length] });
      now += +gap + +length;
    }
    return found;
  };

  // The bars of each row by start, read when first asked for.
  const rows = (plot) => plot.rows ??= [...plot.querySelectorAll(".bars > g")].map((row) => ({
    name: row.dataset.row,
    bars: [...row.querySelectorAll("path")].flatMap(bars).sort((a, b) => a.from - b.from || a.to - b.to),
  }));

  const firstBehind = (sorted, at) => {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle].to <= at) low = middle + 1; else high = middle;
    }
    return low;
  };

  const over = (plot) => {
    const layer = plot.querySelector(".over"), width = plot.clientWidth, scale = width / view.width;
    layer.replaceChildren();
    if (!plot.classList.contains("gantt") || !width) return;
    const height = plot.clientHeight / rows(plot).length, seen = [];
    for (const [number, row] of rows(plot).entries()) {
      for (let i = firstBehind(row.bars, view.from); i < row.bars.length && row.bars[i].from < view.from + view.width; i++) {
        if ((row.bars[i].to - row.bars[i].from) * scale > 4) seen.push([number, row.bars[i]]);
      }
      if (seen.length > MOST_LABELS) return;
    }
    let edges = "";
    const widest = Math.max(0, ...seen.map(([, bar]) => `${bar.microbatch ?? ""}`.length)) * LETTER + 4;
    for (const [number, bar] of seen) {
      const x = (bar.from - view.from) * scale, wide = (bar.to - bar.from) * scale;
      const high = +bar.path.getAttribute("stroke-width"), middle = +bar.path.getAttribute("d").match(/^M0 ([\d.]+)/)[1];
      edges += `M${x.toFixed(1)} ${number * height + middle - high / 2}h${wide.toFixed(1)}v${high}h${(-wide).toFixed(1)}z`;
      const text = bar.microbatch === undefined ? "" : `${bar.microbatch}`;
      const left = Math.max(0, x), right = Math.min(width, x + wide);
      if (text && high > 9 && right - left > widest) {
        element(layer, "text", { x: (left + right) / 2, y: number * height + middle, class: bar.path.dataset.ink }, text);
      }
    }
    if (edges) layer.prepend(element(layer, "path", { d: edges, "stroke-width": 0.6 }));
  };

  const ticks = (axis) => {
    const width = axis.clientWidth, about = (view.width * tick) / 1e6 / Math.max(2, width / 70);
    const power = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= about);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    axis.replaceChildren();
    const first = Math.ceil((view.from * tick) / 1e6 / step - 1e-9);
    for (let k = first; k * step <= ((view.from + view.width) * tick) / 1e6 + 1e-9; k++) {
      const x = (((k * step * 1e6) / tick - view.from) / view.width) * width;
      element(axis, "line", { x1: x, x2: x, y1: 0, y2: 4 });
      const anchor = x < 14 ? "start" : x > width - 26 ? "end" : "middle";
      const text = (k * step).toFixed(digits);
      element(axis, "text", { x: anchor === "end" ? width : x, y: 11, style: `text-anchor:${anchor}` }, k === first ? `${text} ms` : text);
    }
  };

  const draw = () => {
    for (const plot of plots) {
      const inner = plot.querySelector(".bars"), box = inner.getAttribute("viewBox").split(" ");
      inner.setAttribute("viewBox", `${view.from} 0 ${view.width} ${box[3]}`);
      over(plot);
    }
    axes.forEach(ticks);
    for (const plot of plots) plot.style.cursor = view.width < end ? "grab" : "";
  };

  const show = (from, width) => {
    view.width = Math.min(end, Math.max(least, width));
    view.from = Math.min(end - view.width, Math.max(0, from));
    say();
    schedule();
  };
  let waiting = 0;
  const schedule = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };

  // Keeps what lies at `share` of the width where it is.
  const zoom = (factor, share = 0.5) => show(view.from + view.width * share * (1 - factor), view.width * factor);

  const say = (text, x, y) => {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
  };

  const atBar = (plot, at, y) => {
    const all = rows(plot), row = all[Math.min(all.length - 1, Math.floor((y / plot.clientHeight) * all.length))];
    let found = null, before = 0, after = end;
    for (const bar of row.bars) {
      if (bar.from <= at && at < bar.to) found = bar;
      if (bar.to <= at) before = Math.max(before, bar.to);
      if (bar.from > at) { after = bar.from; break; }
    }
    if (!found) return `idle, ${milliseconds(after - before)}\n${row.name}\n${milliseconds(before)} to ${milliseconds(after)}`;
    const { action, kind, slice } = found.path.dataset;
    const name = `${action}${found.microbatch ?? ""}${slice ?? ""}`;
    return `${name}: ${kind}, ${milliseconds(found.to - found.from)}\n${row.name}\n${milliseconds(found.from)} to ${milliseconds(found.to)}`;
  };

  // The steps of a curve as [tick, level] pairs, read when first asked for.
  const levels = (path) => path.levels ??= (() => {
    const d = path.getAttribute("d");
    let [now, level] = d.match(/^M(\d+) (\d+)/).slice(1).map(Number);
    const found = [[0, level]];
    for (const [, along, up] of d.matchAll(/h(-?\d+)v(-?\d+)/g)) found.push([(now += +along), (level += +up)]);
    return found;
  })();

  const atCurve = (plot, at, y) => {
    const { level, levels: all } = plot.dataset, aim = (y / plot.clientHeight) * all;
    let near = null, best = Infinity, value = 0;
    for (const path of plot.querySelectorAll("path[data-row]")) {
      const height = levels(path).findLast((each) => each[0] <= at)[1];
      path.classList.remove("near");
      if (Math.abs(height - aim) <= best) [near, best, value] = [path, Math.abs(height - aim), height];
    }
    if (!near) return "";
    near.classList.add("near");
    return `${size(level * (1 - value / all))}\n${near.dataset.row}\n${milliseconds(at)}`;
  };

  const touched = new Map();
  let moved = null;
  for (const plot of plots) {
    const share = (event) => (event.clientX - plot.getBoundingClientRect().left) / plot.clientWidth;
    const speak = (event) => {
      const at = Math.floor(view.from + view.width * share(event)), y = event.clientY - plot.getBoundingClientRect().top;
      say((plot.classList.contains("gantt") ? atBar : atCurve)(plot, at, y), event.clientX, event.clientY);
    };
    plot.addEventListener("pointerdown", (event) => {
      touched.set(event.pointerId, event);
      moved = { from: view.from, width: view.width, share: share(event) };
      plot.setPointerCapture(event.pointerId);
      speak(event);
    });
    plot.addEventListener("pointermove", (event) => {
      if (touched.size === 2 && touched.has(event.pointerId)) {
        const other = [...touched.values()].find((each) => each.pointerId !== event.pointerId);
        const apart = (a, b) => Math.max(20, Math.abs(a.clientX - b.clientX));
        zoom(apart(touched.get(event.pointerId), other) / apart(event, other), (share(event) + share(other)) / 2);
      } else if (touched.size === 1 && view.width < end && Math.abs(share(event) - moved.share) > 0.005) {
        show(moved.from - (share(event) - moved.share) * view.width, view.width);
      } else {
        speak(event);
      }
      if (touched.has(event.pointerId)) touched.set(event.pointerId, event);
    });
    for (const over of ["pointerup", "pointercancel"]) plot.addEventListener(over, (event) => touched.delete(event.pointerId));
    plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "touch") return; // what a finger touched stays readable when it is lifted
      plot.querySelector(".near")?.classList.remove("near");
      say();
    });
    plot.addEventListener("dblclick", (event) => zoom(0.4, share(event)));
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.004), share(event));
    }, { passive: false });
  }
  for (const button of time.querySelectorAll("button")) {
    button.addEventListener("click", () => ({ in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, end) })[button.dataset.do]());
  }
  for (const name of ["pointermove", "pointerdown"]) {
    document.addEventListener(name, (event) => {
      if (event.target.closest(".plot")) return;
      say(event.target.closest("[data-tip]")?.dataset.tip, event.clientX, event.clientY);
    });
  }
  addEventListener("scroll", () => say(), { passive: true });
  addEventListener("resize", schedule);
  axes.forEach(ticks);
  setTimeout(draw); // behind the first paint
})();
