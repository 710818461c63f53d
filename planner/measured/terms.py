"""The price of a fixed job term by term, so that a fit asks what constants make of it without pricing it again.

The longest way through the step says how often each stage's actions count; each action is a sum of what its kinds of
work take on the device, of what is sent, and of what its host takes. A stage's terms are priced once. What is left out
(waits that another longest way would have, bubbles that move) is made up for by one factor a job, so that a job whose
constants do not move keeps its price to the nanosecond.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costmodel.stages.strategies.time_terms import DEVICE_TERMS, SENT_TERMS
from planner.candidate.candidate import Candidate
from planner.candidate.evaluate import Evaluator, Run
from planner.candidate.price import compact

Array = npt.NDArray[np.float64]
ACTIONS = 2
"""Forwards, and backwards with what runs again."""


@dataclass(frozen=True)
class JobTerms:
    """What a job's step is made of, ns, under the constants that it was priced with.

    Attributes
    ----------
    device : array of (ACTIONS, DEVICE_TERMS)
        What kinds of work take on the longest way.
    sent : array of (ACTIONS, SENT_TERMS)
        What is sent within actions, exposed.
    host : array of ACTIONS
        What the host takes.
    coupled : float
        The part of the shorter of host and device that the longer does not hide.
    closing : float
        What else the step takes: sums of gradients, the optimizer's step.
    messages : float
        What lies between actions.
    step_ns : int
    several_hosts : bool
        Whether what closes a step is sent on the network.
    """

    device: Array
    sent: Array
    host: Array
    coupled: float
    closing: float
    messages: float
    step_ns: int
    several_hosts: bool


def terms_of(evaluator: Evaluator, candidate: Candidate, run: Run) -> JobTerms:
    """Return the terms of a candidate that was simulated."""
    device, sent = np.zeros((ACTIONS, len(DEVICE_TERMS))), np.zeros((ACTIONS, len(SENT_TERMS)))
    host, closing = np.zeros(ACTIONS), 0.0
    on_path = run.times.on_path_ns
    for stage, way_ns in enumerate(on_path):
        place, cost = candidate.places[stage], run.priced.costs.stages[stage]
        operators = compact(run.priced.operators[stage])
        action_ns = _mean(cost.forward_ns) + _mean(cost.backward_input_ns) + _mean(cost.backward_weight_ns)
        action_ns += _mean(cost.recompute_ns)
        end_ns = min(way_ns, _mean(cost.reduce_ns) + _mean(cost.optimizer_ns)) if way_ns > action_ns else 0
        if not action_ns or not way_ns:
            continue
        count = (way_ns - end_ns) / action_ns
        terms = evaluator.pricer.models(place)[0].time_terms(
            operators, place.config, place.ranks, evaluator.num_microbatches // place.config.data
        )
        device += count * np.array(terms.device)
        sent += count * np.array(terms.sent)
        host += count * np.array(terms.host)
        closing += end_ns
    messages = max(0.0, run.step_time_ns - sum(on_path))
    inner, training = evaluator.problem.machines.groups[0].group, evaluator.problem.training
    several = bool(inner and inner < evaluator.problem.num_devices)
    return JobTerms(device, sent, host, training.coupled, closing, messages, run.step_time_ns, several)


def _mean(amount: int | Sequence[int]) -> float:
    return float(amount) if isinstance(amount, int) else sum(amount) / len(amount)
