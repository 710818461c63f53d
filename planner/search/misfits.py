"""Strategies that no plan was found to fit on, and what each lacks.

Strategies of one stage alone are simulated here, of every way to recompute and the smallest and largest micro-batches;
of others what the search met counts. Leaves out strategies of which something fits.
"""

from collections.abc import Collection, Iterator

from planner.candidate.evaluate import Evaluated
from planner.plan.rung import RUNGS, strategy_of
from planner.search.family import Family
from planner.search.incumbent import Incumbent
from planner.search.setting import Setting


def misfits(setting: Setting, incumbent: Incumbent, fitting: Collection[str]) -> dict[str, list[Evaluated]]:
    """Return the candidates of each strategy on one rung that is not among the fitting, what lacks least first."""
    rows: dict[str, list[Evaluated]] = {}
    for each in (*incumbent.found.values(), *_of_one_stage(setting, fitting)):
        if each.strategy in RUNGS and each.strategy not in fitting and each.excess_bytes and not each.num_mixed:
            rows.setdefault(each.strategy, []).append(each)
    return {name: sorted(row, key=lambda each: each.rank) for name, row in rows.items()}


def _of_one_stage(setting: Setting, fitting: Collection[str]) -> Iterator[Evaluated]:
    """Yield the whole model on each of the most replicas."""
    if setting.pinned.places or (setting.problem.space.stages or 1) > 1:
        return
    rows: dict[tuple[str, str], list[Family]] = {}
    for family in setting.families.all:
        config, name = family.config, strategy_of([family.config], is_line=True)
        whole = config.tensor * config.context * config.expert == family.chunks == 1 and config.offload == "none"
        if whole and name not in fitting:
            rows.setdefault((name, config.recompute), []).append(family)
    for row in rows.values():
        most = max(family.config.data for family in row)
        row = sorted((f for f in row if f.config.data == most), key=lambda family: family.microbatch_size)
        for family in dict.fromkeys((row[0], row[-1])):
            cuts = setting.cuts(family)
            yield from cuts.under((0,) * len(cuts.atoms), cuts.schedules[:1])
