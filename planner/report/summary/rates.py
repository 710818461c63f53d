"""What a step's time means for people: tokens a second, and the share of the devices' peak that the model uses.

MFU (Chowdhery et al., PaLM, 2022): the model's own FLOP, forward and twice that backward, over what all devices could
do in the time at the dense peak of the precision. What is computed again does not count. Kernels skip the half of
attention that a causal mask leaves out, so the share that people are told is without it. Plans carry what a sample is
for their readers (`extra`). Leaves out models whose operators do not say what they compute.
"""

from costmodel.machines import catalogue
from costmodel.model.profile import DTYPES
from planner.plan import Plan
from planner.plan.provenance import of_a_sample

PASSES = 3
"""Forward, and a backward of twice its FLOP."""
FLOP_PER_TFLOP = 10**12


def samples_per_s(plan: Plan) -> float | None:
    """Return the samples of the batch over the step time; None for a step of no time."""
    step_ns = plan.prediction.step_time_ns
    return plan.batch.global_size * 1e9 / step_ns if step_ns else None


def tokens_per_s(plan: Plan) -> float | None:
    """Return the tokens of the samples over the step time; tokens of a sample are the rows of its loss.

    None for samples that are not made of tokens: an image whose loss has one row is no token.
    """
    tokens, step_ns = of_a_sample(plan, "tokens"), plan.prediction.step_time_ns
    return plan.batch.global_size * tokens * 1e9 / step_ns if tokens > 1 and step_ns else None


def mfu(plan: Plan) -> float | None:
    """Return the share of the peak, attention as a full square, or None where the catalogue does not know it."""
    return _share(plan, of_a_sample(plan, "flop"))


def mfu_causal(plan: Plan) -> float | None:
    """Return the share of the peak without the half of attention that a causal mask leaves out, which kernels skip."""
    return _share(plan, of_a_sample(plan, "causal_flop") or of_a_sample(plan, "flop"))


def _share(plan: Plan, sample_flop: int) -> float | None:
    precision = plan.assumptions.precision or DTYPES.get(plan.training.dtype, "")
    names = [plan.cluster.device_of(rank).catalogue for rank in range(len(plan.orders))]
    flop = PASSES * plan.batch.global_size * sample_flop
    if not all(names) or not flop or not plan.prediction.step_time_ns:
        return None
    peaks = {name: catalogue.device(name).tflops.get(precision, 0.0) for name in set(names)}
    peak = sum(peaks[name] for name in names) * FLOP_PER_TFLOP
    return flop / (peak * plan.prediction.step_time_ns / 1e9) if peak and all(peaks.values()) else None
