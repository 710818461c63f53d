"""One thing that is wrong with a plan."""

from dataclasses import dataclass

KINDS = {
    "batch": "the batch does not divide as the stages say",
    "operator": "an operator is missing, occurs twice, is unknown or apart from what it changes in place",
    "cycle": "stages wait for each other's outputs",
    "edge": "a tensor or gradient does not travel where it is needed",
    "cost": "a stage's cost does not fit its number of actions",
    "action": "a text that is no action, or an action that a plan cannot hold",
    "rank": "an action or message on a rank that it does not belong to",
    "count": "an action that is missing or occurs twice",
    "order": "an action before what it needs, or after the end",
    "message": "a send or receive that is missing, occurs twice or meets another one",
    "deadlock": "ranks that wait for each other for ever",
    "time": "a time that the orders and costs do not give",
    "memory": "a peak that the orders and costs do not give, or that the device cannot hold",
    "search": "an objective or bound that contradicts the prediction",
    "model": "the plan says of the model what does not hold",
    "training": "an optimizer or precision that the orders contradict or that means nothing",
    "target": "a trainer is listed that cannot run the plan",
    "cluster": "devices or links that are not those the plan was made for",
}
"""What `PlanProblem.kind` can be, and its meaning."""


@dataclass(frozen=True, slots=True)
class PlanProblem:
    """One problem.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    place : str
        Where: a stage, an edge, a rank or an action of a rank.
    message : str
        What was found, and what is allowed.
    """

    kind: str
    place: str
    message: str
