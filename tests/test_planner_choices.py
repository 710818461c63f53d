"""What follows from the choices that flags fix: places, chunks, degrees, ranks; and what cannot be meant."""

import pytest

from costmodel.errors import UsageError
from planner.ask.space import Choices, Shape, shape_of
from planner.plan.lockstep import blocks_of, in_blocks, spread
from planner.search.balanced import balanced


@pytest.mark.parametrize(
    ("choices", "devices", "places", "data"),
    [
        (Choices(stages=4), 4, 4, 1),
        (Choices(stages=4), 8, 4, 2),
        (Choices(data=2), 8, 4, 2),
        (Choices(tensor=8, stages=4, data=16, chunks=2), 512, 4, 16),
        (Choices(tensor=8), 64, 8, 1),
        (Choices(tensor=2, zero=3), 8, 1, 4),
        (Choices(expert=4), 8, 1, 8),
        (Choices(tensor=2, context=2, stages=2), 16, 2, 2),
    ],
)
def test_devices_are_stages_times_data_times_tensor_times_context(
    choices: Choices, devices: int, places: int, data: int
) -> None:
    shape = shape_of(choices, devices)
    assert (shape.places, shape.config.data) == (places, data)
    assert shape.places * shape.config.data * shape.config.tensor * shape.config.context == devices
    assert shape.num_stages == places * (choices.chunks or 1)


def test_ranks_are_in_megatrons_order_tensor_innermost_then_context_then_data_then_stages() -> None:
    config = shape_of(Choices(stages=2, data=2, tensor=2, context=2), 16).config
    shape = Shape(2, 1, config)
    named = [
        ((stage * 2 + d) * 2 + c) * 2 + t for stage in range(2) for d in range(2) for c in range(2) for t in range(2)
    ]
    assert named == list(range(16))
    assert shape.ranks(1) == tuple(range(8, 16))
    assert shape.block(3) == (12, 13, 14, 15)  # stage 1, replica 1


@pytest.mark.parametrize(
    ("choices", "devices", "message"),
    [
        (Choices(tensor=3), 8, "tensor 3 x context 1 does not divide the 8 devices"),
        (Choices(stages=3), 8, "stages 3 does not divide the 8 devices"),
        (Choices(stages=2, data=2), 8, "make 4 devices, and --devices says 8; give --devices 4"),
        (Choices(stages=2, expert=3), 8, "--expert 3 does not divide data 4 x context 1"),
        (Choices(sequence_parallel=True), 8, "tensor is 1; give --tensor"),
        (Choices(stages=8, zero=1), 8, "--zero 1 shards over data and context ranks, and there is one"),
    ],
)
def test_what_does_not_divide_is_one_error_with_the_way_out(choices: Choices, devices: int, message: str) -> None:
    with pytest.raises(UsageError) as error:
        shape_of(choices, devices)
    assert message in str(error.value)


def test_a_block_is_the_ranks_that_divide_one_replica_and_one_value_a_block_spreads_to_its_ranks() -> None:
    rows = [in_blocks((0, 1, 2, 3), 2), in_blocks((4, 5), 1), in_blocks((0, 1, 2, 3), 2)]
    blocks = blocks_of(rows)
    assert blocks == ((0, 1), (2, 3), (4,), (5,))
    assert spread(blocks, "abcd") == ("a", "a", "b", "b", "c", "d")


def test_the_largest_stage_takes_least_each_at_its_own_pace() -> None:
    assert balanced([[1, 1, 1, 1, 4], [1, 1, 1, 1, 4]]) == [0, 0, 0, 0, 1]
    assert balanced([[1] * 6, [2] * 6]) == [0, 0, 0, 0, 1, 1]  # the second device takes twice as long
    assert balanced([[5, 0, 0]] * 3) == [0, 1, 2]  # a stage is never empty
    assert balanced([[1, 1]] * 3) is None
