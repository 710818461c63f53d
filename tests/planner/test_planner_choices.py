"""What follows from the choices that flags fix: places, chunks, degrees, ranks; and what cannot be meant."""

import pytest

from costmodel.errors import UsageError
from costmodel.stages.config import StageConfig
from planner.candidate.candidate import in_loop
from planner.plan.lockstep import blocks_of, in_blocks, spread
from planner.question.problem import Problem
from planner.question.space import Space
from planner.search.space.bottleneck_partition import bottleneck_partition
from planner.search.space.family_work import Families
from tests.support.described_models import described


@pytest.mark.parametrize(
    ("space", "devices", "tokens", "shapes"),
    [
        (Space(stages=4, tensor=1, context=1), 4, 1024, {(1, 1, 1)}),
        (Space(data=2), 8, 1024, {(2, 1, 1), (2, 2, 1), (2, 4, 1), (2, 1, 2), (2, 2, 2), (2, 1, 4)}),
        (Space(data=2), 8, 512, {(2, 1, 1), (2, 2, 1), (2, 4, 1), (2, 1, 2), (2, 2, 2)}),
        (Space(data=2), 8, 128, {(2, 1, 1), (2, 2, 1), (2, 4, 1)}),
        (Space(tensor=2, data=4, context=1), 8, 1024, {(4, 2, 1)}),
        (Space(tensor=8, data=8), 64, 1024, {(8, 8, 1)}),
    ],
)
def test_families_have_every_degree_that_is_open_and_the_devices_hold(
    space: Space, devices: int, tokens: int, shapes: set[tuple[int, int, int]]
) -> None:
    """Sequences are divided as long as each rank has 256 tokens."""
    families = Families(Problem(described("llama", sequence=tokens), None, devices, 64, target="any", space=space)).all
    assert {(f.config.data, f.config.tensor, f.config.context) for f in families} == shapes


def test_ranks_are_in_megatrons_order_tensor_innermost_then_context_then_data_then_stages() -> None:
    places = in_loop(StageConfig(data=2, tensor=2, context=2), 4, 2)
    named = [
        ((stage * 2 + d) * 2 + c) * 2 + t for stage in range(2) for d in range(2) for c in range(2) for t in range(2)
    ]
    assert [*places[0].ranks, *places[1].ranks] == named == list(range(16))
    assert places[2].ranks == places[0].ranks  # two chunks a place
    assert places[1].blocks == ((8, 9, 10, 11), (12, 13, 14, 15))  # one a replica


@pytest.mark.parametrize(
    ("space", "devices", "message"),
    [
        (Space(stages=4, data=4), 8, "stages 4 x data 4 make 16 devices, and --devices says 8; give --devices 16"),
        (Space(data=3), 8, "the batch of 64 does not divide into 3 replicas"),
        (Space(sequence_parallel=True, tensor=1), 8, "tensor is 1; give --tensor"),
        (Space(zero=1, data=1, context=1), 8, "--zero 1 shards over data and context ranks, and there is one"),
        (Space(offload="parameters", zero=2), 8, "only ZeRO-3 gathers them for use"),
    ],
)
def test_what_cannot_be_kept_is_one_error_with_the_way_out(space: Space, devices: int, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Problem(described("llama"), None, devices, 64, space=space)
    assert message in str(error.value)


def test_a_block_is_the_ranks_that_divide_one_replica_and_one_value_a_block_spreads_to_its_ranks() -> None:
    rows = [in_blocks((0, 1, 2, 3), 2), in_blocks((4, 5), 1), in_blocks((0, 1, 2, 3), 2)]
    blocks = blocks_of(rows)
    assert blocks == ((0, 1), (2, 3), (4,), (5,))
    assert spread(blocks, "abcd") == ("a", "a", "b", "b", "c", "d")


def test_the_largest_stage_takes_least_each_at_its_own_pace() -> None:
    assert bottleneck_partition([[1, 1, 1, 1, 4], [1, 1, 1, 1, 4]]) == [0, 0, 0, 0, 1]
    assert bottleneck_partition([[1] * 6, [2] * 6]) == [0, 0, 0, 0, 1, 1]  # the second device takes twice as long
    assert bottleneck_partition([[5, 0, 0]] * 3) == [0, 1, 2]  # a stage is never empty
    assert bottleneck_partition([[1, 1]] * 3) is None
