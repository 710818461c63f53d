"""A fixed job's price as a function of constants: its terms make up its step, and moved they give the price again."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel.architectures.table import find
from costmodel.calibration import Calibration
from planner.measured import levers
from planner.measured.fit_constants import LeverModel, fit_rows, priced_rows, with_own
from planner.measured.job import MeasuredJob
from planner.measured.predicted import Predictor
from planner.question.space import Space

KNOWN = Calibration({"host.any": 16.0, "coupled.any": 0.16})
SMALL = replace(find("llama3-8b").config(), values={**find("llama3-8b").config().values, "num_hidden_layers": 4})
SPACES = (
    (8, Space(1, 1, 8, 1, False, 1, 1, 3, "none", "none")),
    (8, Space(1, 1, 2, 4, True, 1, 1, 1, "full", "none")),
    (16, Space(2, 1, 4, 2, False, 1, 1, 0, "none", "none")),
    (4, Space(2, 2, 2, 1, False, 1, 1, 0, "selective", "none")),
)


def job(devices: int, space: Space, sequence: int = 2048) -> MeasuredJob:
    name = f"llama 4 layers {sequence}"
    return MeasuredJob(name, name, SMALL, "a100-sxm-80", devices, 32, 1, sequence, space, "bf16", "megatron",
                       step_ns=10**9, source="here")  # fmt: skip


JOBS = [job(devices, space) for devices, space in SPACES]


@pytest.mark.parametrize("number", range(len(JOBS)))
def test_terms_of_a_job_make_up_its_step(number: int) -> None:
    predictor = Predictor(KNOWN)
    terms, found = predictor.terms(JOBS[number]), predictor.of(JOBS[number])
    assert terms is not None
    device = np.concatenate([terms.device, terms.sent], axis=1).sum(1)
    paced = np.maximum(device, terms.host) + terms.coupled * np.minimum(device, terms.host)
    assert paced.sum() + terms.closing + terms.messages == pytest.approx(found.step_ns, rel=0.02)
    assert terms.step_ns == found.step_ns


@pytest.mark.parametrize("name", ["matmul.a100-sxm-80.bf16", "efficiency.megatron", "memory.a100-sxm-80.bf16"])
def test_moved_terms_give_what_the_job_costs_priced_again(name: str) -> None:
    known = with_own(JOBS, KNOWN)
    model = LeverModel(priced_rows(JOBS, Predictor(known)), levers.own, levers.OWN, sources=False)
    at = np.array([math.log(1.3) if own == name else 0.0 for own in model.names])
    again = [one.step_ns for one in Predictor(known.with_values({name: 1.3 * known.value(name)})).all(JOBS)]
    assert list(model.steps(at, np.arange(len(JOBS)))) == pytest.approx(again, rel=0.02)
    assert list(model.steps(0 * at, np.arange(len(JOBS)))) == pytest.approx(
        [one.step_ns for one in Predictor(known).all(JOBS)], rel=1e-12
    )


def test_a_trainer_s_loss_lands_on_the_trainer_and_moves_prices_by_as_much() -> None:
    known = with_own(JOBS, KNOWN)
    rows = priced_rows(JOBS, Predictor(known))
    slow = [(replace(own, step_ns=round(1.25 * terms.step_ns)), terms) for own, terms in rows]
    found = fit_rows(slow, known, lambda own: str(own.space))
    assert found.after < 0.2 * found.before
    assert found.moved["efficiency.megatron"] > found.moved.get("matmul.a100-sxm-80.bf16", 1.0)


def test_rows_of_one_source_do_not_outvote_another() -> None:
    known = with_own(JOBS, KNOWN)
    rows = priced_rows(JOBS, Predictor(known))
    many = [(replace(own, step_ns=round(1.2 * terms.step_ns), source="many"), terms) for own, terms in rows * 25]
    few = [(replace(own, step_ns=round(1.0 * terms.step_ns), source="few"), terms) for own, terms in rows[:4]]
    model = LeverModel(many + few, levers.own, levers.OWN, sources=True)
    errors = model.errors(model.solve(np.arange(len(many + few))), np.arange(len(many + few)))
    assert max(errors[: len(many)]) < -0.05
    assert min(errors[len(many) :]) < 0.15
