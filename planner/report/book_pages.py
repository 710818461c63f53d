"""The pages of a book: a plan for each number of hosts, made one after the other, and what moves between neighbours.

A number of hosts on which nothing fits, or that the model, the flags or the links do not divide, is told and left out.
Leaves out the book's file (`planner.plan.book`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from costmodel.errors import InvalidInput, NoPlanFits, PenstockError, UsageError
from planner.candidate.moved_states import state_transfer
from planner.interrupts import check
from planner.plan.book import Page, StateTransfer
from planner.plan.fitting import fitting_of
from planner.plan.limited_by import LimitedBy
from planner.plan.rung import rung
from planner.question.problem import Problem, Report
from planner.report.summary.answer import PlanAnswer
from planner.report.summary.text import Table, duration, size

NS = 10**9


@dataclass
class BookPages:
    """The pages that were made, what was refused, and whether the making was interrupted.

    Parameters
    ----------
    problem_of : function
        Returns the problem on a number of hosts.
    ask : function
        Plans a problem, as `planner.make_plan` does.
    """

    problem_of: Callable[[int], Problem]
    ask: Callable[[Problem, Report | None], PlanAnswer]
    pages: list[Page] = field(default_factory=list)
    refused: list[tuple[int, PenstockError]] = field(default_factory=list)
    interrupted: bool = False

    def make(self, hosts: Sequence[int], report: Report) -> None:
        """Plan for each number of hosts; Ctrl-C and SIGTERM keep the pages so far, and the plan so far of a page.

        Raises
        ------
        PenstockError
            Why the first page is none, where there is not one page.
        KeyboardInterrupt
            Where there is none yet.
        """
        try:
            for number in hosts:
                check(lambda: True)
                self._add(number, report)
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            if not self.pages:
                raise
            self.interrupted = True
        if not self.pages:
            raise self.refused[0][1]

    def _add(self, hosts: int, report: Report) -> None:
        try:
            problem = self.problem_of(hosts)
            report(f"{_hosts(hosts)}, {problem.num_devices} devices: planning")
            plan = self.ask(problem, report).plan
        except (NoPlanFits, UsageError, InvalidInput) as error:
            self.refused.append((hosts, error))
            report(f"{_hosts(hosts)}: {error}")
            return
        moved = state_transfer(problem, self.pages[-1].plan, plan) if self.pages else StateTransfer()
        self.pages.append(Page(hosts, plan, moved))
        self.interrupted = plan.search.limited_by == LimitedBy.INTERRUPTED

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "pages": [
                {
                    "hosts": page.hosts,
                    "step_time_ns": page.plan.prediction.step_time_ns,
                    "bytes_moved": page.from_previous.size_bytes,
                    "seconds_to_move": page.from_previous.seconds,
                    "devices": page.num_ranks,
                    "strategy": rung(page.plan),
                    "fits": fitting_of(page.plan),
                }
                for page in self.pages
            ],
            "refused": [{"hosts": hosts, "why": str(error), "exit": error.exit_code} for hosts, error in self.refused],
        }

    def text(self) -> list[str | Table]:
        """Return what people read."""
        rows = [self._row(index, page) for index, page in enumerate(self.pages)]
        columns = ("hosts", "devices", "step", "strategy", "memory", "moves from the page before", "in")
        first = self.pages[0].plan
        title = f"{first.model_name} with {first.batch.global_size} samples a step"
        return [
            Table(columns, rows, title),
            *(f"no page for {_hosts(hosts)}: {error}" for hosts, error in self.refused),
            "moves: parameters and optimizer states that devices lack, over the links; the last hosts are lost first",
        ]

    def _row(self, index: int, page: Page) -> tuple[str, ...]:
        plan, moved = page.plan, page.from_previous
        told = (size(moved.size_bytes), duration(round(moved.seconds * NS))) if index else ("-", "-")
        return (
            str(page.hosts),
            str(page.num_ranks),
            duration(plan.prediction.step_time_ns),
            rung(plan),
            fitting_of(plan),
            *told,
        )


def _hosts(number: int) -> str:
    return f"{number} host{'s' * (number > 1)}"
