"""Training loops whose state goes past autograd, the optimizer or a checkpoint, on two ranks and plainly."""

from tests.support.loops.user_loops import failures

FEW = (
    "resumes_a_cosine",
    "resumes_under_zero_3",
    "resumes_a_branch_without_gradients",
    "refuses_to_save_an_emptied_model",
    "hooks_a_weight_under_split_backwards",
    "counts_its_steps",
    "parameters_with_gaps_under_zero_1",
    "a_step_that_is_not_finite_is_skipped",
    "a_short_last_batch_moves_averages_by_what_is_there",
    "metrics_of_an_evaluation",
)
"""Of `tests.support.loops.loops_state`, all of which `benchmarks.reliability` runs."""


def test_loops_are_exact_or_refused_by_all_ranks_alike():
    assert failures(FEW) == []
