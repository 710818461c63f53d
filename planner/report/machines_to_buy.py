"""Which machines to train a model on: every priced device in growing numbers, each planned, by cost and days.

Devices stand in typical hosts, whose number doubles; each offer is the plan of a short search. Of all offers those are
told that no other undercuts in both cost and days, and the cheapest of each device. Leaves out when machines can be
had, and what a run loses to faults of hosts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

from costmodel.errors import NoPlanFits, PenstockError, UsageError
from costmodel.machines import catalogue
from costmodel.model.profile import Profile
from planner.question.effort import Effort
from planner.question.prices import Prices
from planner.question.problem import Problem, Report
from planner.question.same_model import sample_of
from planner.report.summary.answer import PlanAnswer
from planner.report.summary.figures import figures
from planner.report.summary.run_cost import RunCost, RunTarget
from planner.report.summary.standing import standings

MOST_DEVICES = 1024
"""Up to which a number of devices is doubled."""


class Bid(Protocol):
    """What has a device, and the money and days of a run."""

    @property
    def device(self) -> str:
        """Name of the device."""

    @property
    def money(self) -> float:
        """Cost of the run."""

    @property
    def days(self) -> float:
        """Days of the run."""


P = TypeVar("P", bound=Bid)


@dataclass(frozen=True, eq=False)
class Offer:
    """A number of devices, and what the run takes and costs on them."""

    device: str
    answer: PlanAnswer

    @property
    def num_devices(self) -> int:
        """Devices that are paid for."""
        return self.answer.problem.num_devices

    @cached_property
    def cost(self) -> RunCost:
        """What the run costs on the devices that the plan uses.

        Raises
        ------
        UsageError
            Where neither tokens nor a price were said.
        """
        if self.answer.cost is None:
            raise UsageError(f"nothing is known of a run on {self.device}: give tokens and prices")
        return self.answer.cost

    @property
    def days(self) -> float:
        """Days of the run."""
        return self.cost.days or 0.0

    @property
    def money(self) -> float:
        """Cost of the run, idle devices paid for as well."""
        return (self.cost.run or 0.0) * self.num_devices / self.answer.devices_used

    @property
    def standing(self) -> str:
        """What the price of its device rests on (`planner.report.summary.standing`)."""
        return next(iter(standings(self.answer.plan).values()))

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "device": self.device,
            "devices": self.num_devices,
            "days": self.days,
            "cost": self.money,
            **figures(self.answer.plan, "step_time_ns strategy fits batch"),
            "meets_deadline": self.cost.meets_deadline,
            "within_budget": self.money <= budget if (budget := self.answer.target.budget) else None,
            "standing": self.standing,
        }


@dataclass(frozen=True)
class MachineChoice:
    """The offers of one model and run.

    Parameters
    ----------
    describe : function
        Returns the profile of the model on a device of the catalogue.
    prices : Prices
    target : RunTarget
    batch_tokens : int
        Tokens of a step, about: the samples are a power of two.
    ask : function
        Plans a problem, as `planner.make_plan` does.
    seconds : float
        Of each search.
    """

    describe: Callable[[str], Profile]
    prices: Prices
    target: RunTarget
    batch_tokens: int
    ask: Callable[[Problem], PlanAnswer]
    seconds: float

    def offers(self, report: Report) -> list[Offer]:
        """Return the offers that keep deadline and budget and that no other undercuts, the cheapest first.

        Raises
        ------
        UsageError
            For a model whose samples are not made of tokens.
        NoPlanFits
            Where nothing keeps them; says what comes next to it.
        """
        found = [offer for device in self.prices.by_device for offer in self._on(device, report)]
        if not found:
            raise NoPlanFits(f"the model fits on no {', '.join(self.prices.by_device)}, up to {MOST_DEVICES} of them")
        kept = [each for each in found if False not in (each.cost.meets_deadline, self._is_within_budget(each))]
        if not kept:
            soonest, cheapest = min(found, key=lambda e: e.days), min(found, key=lambda e: e.money)
            raise NoPlanFits(
                "no number of devices keeps what was asked for; the soonest run is on "
                f"{_said(soonest)}, the cheapest on {_said(cheapest)}"
            )
        return sorted(best_offers(kept), key=lambda each: (each.money, each.days))

    def _is_within_budget(self, offer: Offer) -> bool:
        return not self.target.budget or offer.money <= self.target.budget

    def _on(self, device: str, report: Report) -> Iterator[Offer]:
        """Yield the offers of one device, until the batch has no more samples than devices."""
        profile = self.describe(device)
        tokens = sample_of(profile.graph).get("tokens", 0)
        if tokens < 2:
            raise UsageError("the model's samples are not made of tokens, so that a run of --tokens has no length")
        batch = 1 << max(0, (self.batch_tokens // tokens).bit_length() - 1)
        number = catalogue.device(device).host_devices
        while number <= min(MOST_DEVICES, batch):
            problem = Problem(
                profile, None, number, batch, target="any", prices=Prices({device: self.prices.by_device[device]},
                self.prices.source, self.prices.date), effort=Effort(self.seconds),
            )  # fmt: skip
            try:
                answer = replace(self.ask(problem), target=self.target)
            except PenstockError as error:
                report(f"{number} {device}: {error}")
            else:
                offer = Offer(device, answer)
                report(_said(offer))
                yield offer
            number *= 2


def best_offers(offers: Iterable[P]) -> list[P]:
    """Return the offers that no other undercuts in both cost and days, and the cheapest of each device."""
    found = list(offers)
    cheapest: dict[str, P] = {}
    for each in found:
        if each.device not in cheapest or each.money < cheapest[each.device].money:
            cheapest[each.device] = each
    front = [each for each in found if not any(other.money < each.money and other.days < each.days for other in found)]
    return [each for each in found if each in front or each is cheapest[each.device]]


def _said(offer: Offer) -> str:
    return f"{offer.num_devices} {offer.device}: {offer.days:.1f} days, {offer.money:,.0f}"
