"""Say what a plan would take if its machines, its schedule or its batch were others.

    penstock whatif plan.json --set link.ib.bandwidth=2x --set device.a100.memory=40GiB --set rank.3.speed=0.9
    penstock whatif plan.json --sweep link.ib.bandwidth=0.5x,1x,2x,4x --tornado --jitter 5% --chart whatif.png
    penstock whatif plan.json --profile profile.json --sweep devices=2,4,8 --time-limit 2 --chart scaling.png

The plan stays as it is (cut, ranks, strategy, orders) and is simulated with the changes, all of --set together; memory
is held against the limit. With --profile every price is made anew, as `plan` would; without, messages are priced by
their bytes, sums of gradients where the file has theirs, and the answer tells what is left out. --replan tells in
addition what `plan` would now choose. A sweep of devices is always planned anew: the plan's cluster up to its size,
beyond that more hosts like its last; the batch stays.

Keys: link.NAME.bandwidth (GB/s), link.NAME.latency (us), link.NAME.shared (GB/s of a host), device.NAME.memory (GiB),
device.NAME.speed, rank.N.speed, stage.N.time (a factor), microbatches (each as large as now: the batch changes),
schedule. Values: a factor (2x, 0.5x), or a value with or without its unit (40GiB, 400Gb/s, 5us).
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel import limits
from costmodel.errors import NoPlanFits, UsageError
from planner.commands.answer import Answer, say, say_size
from planner.commands.flags import limit, percent, positive, seed
from planner.report.summary.text import duration

if TYPE_CHECKING:
    from planner.report.whatif.answer import ChangesAnswer
    from planner.report.whatif.outcome import Consequence
    from planner.report.whatif.plan_changes import PlanChanges
    from planner.report.whatif.settings import Change

INTERRUPTED = 130


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
    parser.add_argument("--time-limit", type=limit, default=10.0, metavar="S",
                        help="of each planning (default 10)")  # fmt: skip
    parser.add_argument("--tornado", action="store_true",
                        help="move each link, device and stage alone; which moves the step most")  # fmt: skip
    parser.add_argument("--by", type=percent, default="10%", metavar="P%", help="of --tornado (default 10%%)")
    parser.add_argument("--jitter", type=percent, metavar="P%",
                        help="quantiles if each action's time is lognormal with this deviation")  # fmt: skip
    parser.add_argument("--slow-ranks", type=percent, metavar="P%",
                        help="quantiles if each rank is slower by |normal| x this, all step long")  # fmt: skip
    parser.add_argument("--scenarios", type=positive, default=200, metavar="N", help="how many are drawn (default 200)")
    parser.add_argument("--seed", type=seed, default=0, help="of scenarios and planning")
    parser.add_argument("--chart", metavar="F", help="picture of all that was asked (.png, .svg or .pdf)")


def run(args: argparse.Namespace) -> Answer:
    """Change, simulate, and plan anew where asked; Ctrl-C keeps the rows so far."""
    from costmodel.model.profile import read_profile
    from planner.plan import read_plan
    from planner.report.whatif.answer import ChangesAnswer
    from planner.report.whatif.plan_changes import PlanChanges
    from planner.report.whatif.settings import parse_change, parse_sweep

    fixed = tuple(map(parse_change, args.changes))
    swept = parse_sweep(args.sweep) if args.sweep else ()
    _check(args, fixed, swept)
    if args.chart:
        from simulator.charts.style import check_suffix

        check_suffix(args.chart)
    plan = read_plan(args.plan)
    say_size(plan)
    changes = PlanChanges(plan, tuple(map(read_profile, args.profile)))
    answer = ChangesAnswer(changes.plan, fixed, swept)
    if not answer.by_devices:
        changes.under(fixed)  # refuses what the plan does not have, before anything takes time
    asked = _Asked(args, changes, answer)
    asked.run()
    if len(asked.errors) == max(1, len(swept)) and len(answer.rows) <= (not answer.by_devices):
        raise asked.errors[0]  # nothing that was asked has an answer
    return Answer(
        {"plan": args.plan, **answer.to_json(), **_drawn(args.chart, answer)},
        list(answer.text()),
        INTERRUPTED if answer.interrupted else 0,
    )


def _called(changes: "Sequence[Change]") -> str:
    from planner.report.whatif.answer import called

    return called(changes)


def _drawn(path: str | None, answer: "ChangesAnswer") -> dict[str, str]:
    """Draw the chart where one was asked for."""
    if not path:
        return {}
    from simulator.charts import save_figure

    save_figure(answer.figure(), path)
    return {"chart": path}


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
    stage = next((change for change in (*fixed, *swept[:1]) if change.kind == "stage"), None)
    if anew and stage:
        raise UsageError(f"{stage.key} is of this plan's stages, and planning anew makes others; drop one of the two")


class _Asked:
    """The questions, answered one after the other."""

    def __init__(self, args: argparse.Namespace, changes: "PlanChanges", answer: "ChangesAnswer") -> None:
        self.args, self.changes, self.answer = args, changes, answer
        self.errors: list[NoPlanFits | UsageError] = []

    def run(self) -> None:
        """Answer until all is done, or Ctrl-C or SIGTERM ends it."""
        from planner.interrupts import raised

        try:
            with raised():
                for changes in self._questions():
                    self._row(changes)
                    if self.answer.interrupted:
                        return
                self._tornado()
                self._scenarios()
        except KeyboardInterrupt:
            if not self.answer.rows:
                raise
            self.answer.interrupted = True

    def _questions(self) -> "Iterator[tuple[Change, ...]]":
        fixed = self.answer.fixed
        if not self.answer.by_devices:
            yield ()
        if self.answer.swept:
            yield from ((*fixed, change) for change in self.answer.swept)
        elif fixed:
            yield fixed

    def _row(self, changes: "tuple[Change, ...]") -> None:
        """Answer one question; what speaks against one value of a sweep is kept with the rows of the others."""
        swept = changes and changes[-1] in self.answer.swept
        try:
            if not self.answer.by_devices:
                self._as_it_is(changes)
            if self.answer.by_devices or self.args.replan:
                self._anew(changes)
        except (NoPlanFits, UsageError) as error:
            if not (swept or self.args.replan):
                raise
            self.errors.append(error)
            self.answer.refused.append((changes, str(error)))
            say(f"{_called(changes)}: {error}")

    def _as_it_is(self, changes: "tuple[Change, ...]") -> None:
        from planner.report.whatif.outcome import Consequence

        found = self.changes.under(changes)
        each = Consequence(changes, found.plan, self.changes.structure(found.plan), found.left_out)
        self.answer.rows.append(each)
        say(f"{_called(changes)}: {duration(each.step_time_ns)}")

    def _anew(self, changes: "tuple[Change, ...]") -> None:
        planned = self._planned(changes)
        say(f"{_called(changes)}, planned anew: {duration(planned.step_time_ns)}")
        if self.answer.by_devices:
            self.answer.rows.append(planned)
        else:
            self.answer.anew[len(self.answer.rows) - 1] = planned

    def _planned(self, changes: "tuple[Change, ...]") -> "Consequence":
        """Plan anew under some changes."""
        from planner.front import make_plan
        from planner.question.effort import Effort
        from planner.report.whatif.anew import problem_under
        from planner.report.whatif.outcome import Consequence
        from planner.report.whatif.plan_changes import structure_of

        effort = Effort(self.args.time_limit, None, self.args.seed)
        problem = problem_under(self.changes.plan, self.changes.profiles, changes, effort)
        found = make_plan(problem).plan
        self.answer.interrupted = found.search.limited_by == "interrupted"
        return Consequence(changes, found, structure_of(found), found.assumptions.estimated, problem.num_devices)

    def _tornado(self) -> None:
        if self.args.tornado:
            from planner.report.whatif.tornado import tornado

            answer, fixed = self.answer, self.answer.fixed
            answer.bars, answer.by = tornado(self.changes, self.args.by, fixed), float(self.args.by)
            answer.base_ns = self.changes.step_ns(self.changes.under(fixed).plan)

    def _scenarios(self) -> None:
        args = self.args
        if args.jitter or args.slow_ranks:
            from planner.report.whatif.scenarios import scenarios

            drawn = {"jitter": float(args.jitter or 0), "slow_ranks": float(args.slow_ranks or 0)}
            limits.check("scenarios", args.scenarios, "--scenarios")
            plan = self.changes.under(self.answer.fixed).plan
            self.answer.spread = scenarios(
                plan, self.changes.structure(plan), args.scenarios, args.seed, *drawn.values()
            )
            self.answer.drawn = {"seed": args.seed, **drawn}
