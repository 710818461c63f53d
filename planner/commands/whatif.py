"""Say what a plan would take if its machines, its schedule or its batch were others.

    penstock whatif plan.json --set link.ib.bandwidth=2x --set device.a100.memory=40GiB --set rank.3.speed=0.9
    penstock whatif plan.json --sweep link.ib.bandwidth=0.5x,1x,2x,4x --tornado --jitter 5% --chart whatif.png
    penstock whatif plan.json --profile profile.json --sweep devices=2,4,8 --time-limit 2 --chart scaling.png

The plan stays as it is (cut, ranks, strategy, orders) and is simulated with the changes, all of --set together; memory
is held against the limit. With --profile every price is made anew, as `plan` would; without, messages are priced by
their bytes, sums of gradients where the file has theirs, and what is left out is said. --replan says beside it what
`plan` would now choose. A sweep of devices is always planned anew: the plan's cluster up to its size, beyond that more
hosts like its last; the batch stays.

Keys: link.NAME.bandwidth (GB/s), link.NAME.latency (us), link.NAME.shared (GB/s of a host), device.NAME.memory (GiB),
device.NAME.speed, rank.N.speed, stage.N.time (a factor), microbatches (each as large as now: the batch changes),
schedule. Values: a factor (2x, 0.5x), or a value with or without its unit (40GiB, 400Gb/s, 5us).
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.errors import NoPlanFits, UsageError
from planner.commands.answer import Answer, say
from planner.commands.flags import percent, positive, seconds
from planner.report.text import Table, mebibytes, milliseconds
from planner.report.text import percent as in_percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.model.profile import Profile
    from planner.plan import Plan
    from planner.report.changes.changed import Changes
    from planner.report.changes.outcome import Outcome
    from planner.report.changes.scenarios import Spread
    from planner.report.changes.settings import Change
    from planner.report.changes.tornado import Bar

MOST_BARS = 12
"""Bars of a tornado that people are told; the JSON has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help="change this; again for more, all together")  # fmt: skip
    parser.add_argument("--sweep", metavar="KEY=V1,V2,...", help="one answer a value; V1,V2,...,VN goes on by the same "
                        "factor or difference")  # fmt: skip
    parser.add_argument("--profile", action="append", default=[], metavar="FILE",
                        help="operator costs of the model; again for each device type of a mixed cluster")  # fmt: skip
    parser.add_argument("--replan", action="store_true", help="also plan anew under each change (needs --profile)")
    parser.add_argument("--time-limit", type=seconds, default=10.0, metavar="S",
                        help="of each planning (default 10)")  # fmt: skip
    parser.add_argument("--tornado", action="store_true",
                        help="move each link, device and stage alone; which moves the step most")  # fmt: skip
    parser.add_argument("--by", type=percent, default="10%", metavar="P%", help="of --tornado (default 10%%)")
    parser.add_argument("--jitter", type=percent, metavar="P%",
                        help="quantiles of the step when each action's time is lognormal, this its deviation")  # fmt: skip
    parser.add_argument("--slow-ranks", type=percent, metavar="P%",
                        help="quantiles when each rank is slower by |normal| x this, all step long")  # fmt: skip
    parser.add_argument("--scenarios", type=positive, default=200, metavar="N", help="how many are drawn (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of scenarios and planning")
    parser.add_argument("--chart", metavar="F", help="picture of all that was asked (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> Answer:
    """Change, simulate, and plan anew where asked; Ctrl-C keeps the rows so far."""
    from planner.plan import read_plan
    from planner.report.changes.settings import parse_change, parse_sweep

    fixed = tuple(map(parse_change, args.changes))
    swept = parse_sweep(args.sweep) if args.sweep else ()
    _check(args, fixed, swept)
    asked = _Asked(args, read_plan(args.plan), _profiles(args), fixed, swept)
    if not asked.by_devices:
        asked.changes.under((*fixed, *swept[:1]))  # refuses what the plan does not have, before anything takes time
    asked.answer_rows()
    return asked.answer()


def _profiles(args: argparse.Namespace) -> "tuple[Profile, ...]":
    from costmodel.model.profile import read_profile

    return tuple(map(read_profile, args.profile))


def _check(args: argparse.Namespace, fixed: "Sequence[Change]", swept: "Sequence[Change]") -> None:
    """Refuse what cannot be meant."""
    if not (fixed or swept or args.tornado or args.jitter or args.slow_ranks):
        raise UsageError("nothing is to change; give --set, --sweep, --tornado, --jitter or --slow-ranks")
    keys = [change.key for change in (*fixed, *swept[:1])]
    twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
    if twice:
        raise UsageError(f"{twice} is given twice; keep one of them")
    if any(change.kind == "devices" for change in fixed):
        raise UsageError("other devices need another plan; give --sweep devices=N1,N2,... with --profile")
    anew = args.replan or (swept and swept[0].kind == "devices")
    if anew and not args.profile:
        raise UsageError("planning anew needs operator costs; give --profile FILE, which the plan was made from")
    stage = next((change for change in (*fixed, *swept) if change.kind in ("stage", "rank")), None)
    if anew and stage and stage.kind == "stage":
        raise UsageError(f"{stage.key} is of this plan's stages, and planning anew makes others; drop one of the two")


class _Asked:
    """What was asked, and the rows so far."""

    def __init__(
        self,
        args: argparse.Namespace,
        plan: "Plan",
        profiles: "tuple[Profile, ...]",
        fixed: "tuple[Change, ...]",
        swept: "tuple[Change, ...]",
    ) -> None:
        from planner.report.changes.changed import Changes

        self.args, self.plan, self.profiles, self.fixed, self.swept = args, plan, profiles, fixed, swept
        self.changes: Changes = Changes(plan, profiles)
        self.by_devices = bool(swept) and swept[0].kind == "devices"
        self.rows: list[Outcome] = []
        self.anew: dict[int, Outcome] = {}
        self.refused: list[tuple[Sequence[Change], str]] = []
        self.bars: list[Bar] = []
        self.spread: Spread | None = None
        self.interrupted = False

    def answer_rows(self) -> None:
        """Answer one question after the other; Ctrl-C and SIGTERM end it."""
        from planner.search.interrupts import raised

        try:
            with raised():
                for changes in self._questions():
                    self._row(changes)
                    if self.interrupted:
                        return
                self._beside()
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.interrupted = True

    def _questions(self) -> "Iterator[tuple[Change, ...]]":
        if not self.by_devices:
            yield ()
        if self.swept:
            yield from ((*self.fixed, change) for change in self.swept)
        elif self.fixed:
            yield self.fixed

    def _row(self, changes: "tuple[Change, ...]") -> None:
        from planner.report.changes.outcome import Outcome

        called = ", ".join(map(str, changes)) or "as it is"
        if not self.by_devices:
            found = self.changes.under(changes)
            self.rows.append(Outcome(changes, found.plan, found.left_out))
            say(f"{called}: {milliseconds(self.rows[-1].step_time_ns)}")
        if self.by_devices or self.args.replan:
            try:
                planned = self._planned(changes)
            except (NoPlanFits, UsageError) as error:
                self.refused.append((changes, str(error)))
                say(f"{called}: no plan: {error}")
                return
            self.anew[len(self.rows) - (not self.by_devices)] = planned
            self.rows += [planned] if self.by_devices else []
            say(f"{called}, planned anew: {milliseconds(planned.step_time_ns)}")

    def _planned(self, changes: "tuple[Change, ...]") -> "Outcome":
        """Plan anew under some changes."""
        from planner.ask.effort import Effort
        from planner.front import make_plan
        from planner.report.changes.anew import problem_under
        from planner.report.changes.outcome import Outcome

        effort = Effort(self.args.time_limit, None, self.args.seed)
        problem = problem_under(self.plan, self.profiles, changes, effort)
        found = make_plan(problem).plan
        self.interrupted = found.search.limited_by == "interrupted"
        return Outcome(changes, found, found.assumptions.estimated, problem.num_devices)

    def _beside(self) -> None:
        """Answer what is asked beside the rows: a tornado, scenarios."""
        args = self.args
        if args.tornado:
            from planner.report.changes.tornado import tornado

            self.bars = tornado(self.changes, args.by, self.fixed)
        if args.jitter or args.slow_ranks:
            from planner.report.changes.scenarios import scenarios

            plan = self.changes.under(self.fixed).plan
            self.spread = scenarios(
                plan, args.scenarios, args.seed, float(args.jitter or 0), float(args.slow_ranks or 0)
            )

    def answer(self) -> Answer:
        """Return all of it; draws the chart."""
        if not self.rows:
            raise NoPlanFits(f"no plan was found for any of {self.args.sweep}: {self.refused[0][1]}")
        body: dict[str, object] = {
            "plan": self.args.plan,
            "step_time_ns": self.plan.prediction.step_time_ns,
            "rows": list(self._json_rows()),
            "refused": [{"change": {c.key: c.text for c in row}, "why": why} for row, why in self.refused],
            "interrupted": self.interrupted,
        }
        if self.bars:
            body["tornado"] = {"by": float(self.args.by), "bars": [bar.to_json() for bar in self.bars]}
        if self.spread:
            body["scenarios"] = {
                "seed": self.args.seed,
                "jitter": float(self.args.jitter or 0),
                "slow_ranks": float(self.args.slow_ranks or 0),
                **self.spread.to_json(),
            }
        if self.args.chart:
            from simulator.charts import save_figure

            save_figure(self._figure(), self.args.chart)
            body["chart"] = self.args.chart
        return Answer(body, list(self._text()), 130 if self.interrupted else 0)

    def _json_rows(self) -> "Iterator[dict[str, object]]":
        from planner.report.changes.outcome import saturates

        for index, each in enumerate(self.rows):
            row = each.to_json()
            if self.by_devices:
                row["efficiency"] = self._efficiency(each)
                row["saturates"] = saturates(self.rows[0], each)
                row["device_ns_per_sample"] = dict(each.device_ns)
            elif index in self.anew:
                row["replanned"] = self.anew[index].to_json()
            yield row

    def _efficiency(self, each: "Outcome") -> float:
        """Samples a second of a device, against the first row's."""
        first = self.rows[0]
        return each.samples_per_s / each.num_devices / (first.samples_per_s / first.num_devices)

    def _figure(self) -> "Figure":
        from planner.report.changes.pictures import changes_figure
        from planner.report.pictures import Picture, compare_figure

        if not (self.swept or self.bars or self.spread):
            called = [", ".join(map(str, each.changes)) or "as it is" for each in self.rows]
            return compare_figure([Picture(n, o.plan, o.timeline) for n, o in zip(called, self.rows, strict=True)])
        first = 0 if self.by_devices else 1
        swept = self.rows[first:] if self.swept else []
        best = [self.anew[i] for i in range(first, len(self.rows)) if i in self.anew]
        best = best if not self.by_devices and len(best) == len(swept) else []
        return changes_figure(swept, best, self.bars, self._base_ns, self.spread)

    @property
    def _base_ns(self) -> int:
        """The step time that a tornado turns about."""
        if self.swept or not self.fixed:
            return self.rows[0].step_time_ns if not self.fixed else self._under_fixed_ns()
        return self.rows[-1].step_time_ns

    def _under_fixed_ns(self) -> int:
        from planner.plan.replay import replay

        return replay(self.changes.under(self.fixed).plan).step_time_ns

    def _text(self) -> Iterator[str | Table]:
        yield self._scaling() if self.by_devices else self._table()
        own_ns, now_ns = self.plan.prediction.step_time_ns, self.rows[0].step_time_ns
        if not self.by_devices and own_ns != now_ns:
            yield (
                f"this profile prices the plan as it is at {milliseconds(now_ns)}, and its file says "
                f"{milliseconds(own_ns)}: the profile is another than it was made from"
            )
        for note in dict.fromkeys(note for each in self.rows for note in each.left_out):
            yield f"left out: {note}" if not self.by_devices else f"estimated: {note}"
        yield from (f"{', '.join(map(str, row))}: no plan: {why}" for row, why in self.refused)
        if self.bars:
            yield self._bars()
        if self.spread:
            yield self._quantiles()
        if self.interrupted:
            yield "interrupted: what stands above is all there is"

    def _table(self) -> Table:
        from planner.plan.rung import rung

        before = self.rows[0].step_time_ns
        rows = []
        for index, each in enumerate(self.rows):
            anew = self.anew.get(index)
            best = (
                f"{milliseconds(anew.step_time_ns)} {rung(anew.plan)}, {len(anew.plan.stages)} stages" if anew else "-"
            )
            rows.append((", ".join(map(str, each.changes)) or "as it is", milliseconds(each.step_time_ns),
                         _against(each.step_time_ns, before), f"{each.samples_per_s:.1f}",
                         in_percent(each.timeline.bubble_ratio), mebibytes(max(each.peak_memory_bytes)),
                         _room(each), *([best] if self.anew else [])))  # fmt: skip
        columns = ("change", "step", "against it", "samples/s", "bubble", "peak memory", "room")
        return Table((*columns, "planned anew") if self.anew else columns, rows)

    def _scaling(self) -> Table:
        from planner.plan.rung import rung
        from planner.report.changes.outcome import saturates

        rows = [
            (str(each.num_devices), rung(each.plan), f"{len(each.plan.stages)}", milliseconds(each.step_time_ns),
             f"{each.samples_per_s:.1f}", in_percent(self._efficiency(each)), saturates(self.rows[0], each) or "-")
            for each in self.rows
        ]  # fmt: skip
        columns = ("devices", "strategy", "stages", "step", "samples/s", "a device's rate", "grows most a sample")
        return Table(columns, rows, f"planned anew, the batch always {self.plan.batch.global_size}")

    def _bars(self) -> Table:
        base_ns, by = self._base_ns, in_percent(float(self.args.by))
        rows = [
            (bar.key, _against(bar.smaller_ns, base_ns), _against(bar.larger_ns, base_ns), milliseconds(bar.range_ns))
            for bar in self.bars[:MOST_BARS]
        ]
        more = len(self.bars) - MOST_BARS
        title = f"each input {by} smaller and larger" + (f"; {more} more: see --json" if more > 0 else "")
        return Table(("input", "smaller", "larger", "range of the step"), rows, title)

    def _quantiles(self) -> str:
        from planner.report.changes.scenarios import QUANTILES

        assert self.spread is not None  # noqa: S101 - asked by the caller
        planned_ns = self.spread.planned_ns
        parts = [f"p{q} {_with_share(self.spread.quantile_ns(q), planned_ns)}" for q in QUANTILES]
        return f"{len(self.spread.steps_ns)} scenarios: planned {milliseconds(planned_ns)}, {', '.join(parts)}"


def _against(after_ns: int, before_ns: int) -> str:
    return f"{after_ns / max(1, before_ns) - 1:+.2%}"


def _with_share(after_ns: int, before_ns: int) -> str:
    return f"{milliseconds(after_ns)} ({_against(after_ns, before_ns)})"


def _room(each: "Outcome") -> str:
    """Say how much memory is left, or lacking."""
    from planner.candidate.fit import NO_LIMIT

    over, rank = each.worst
    if over > 0:
        return f"rank {rank} lacks {mebibytes(over)}"
    return "no limit known" if -over > NO_LIMIT // 2 else f"{mebibytes(-over)} left"
