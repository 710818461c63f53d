"""Strategies within a stage: what each costs in time, memory and communication, with the source of each term.

`StrategyModel` prices a stage under a `StageConfig`; `TrainingJob` says what holds for the whole job. See
docs/strategies.md for all terms in one place, and for what is left out.
"""

from costmodel.stages.strategies.memory import Amount, MemoryTerms
from costmodel.stages.strategies.model import StrategyModel
from costmodel.stages.strategies.training import EXECUTOR, TrainingJob

__all__ = ["EXECUTOR", "Amount", "MemoryTerms", "StrategyModel", "TrainingJob"]
