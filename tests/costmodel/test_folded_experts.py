"""Experts spread over data, context and tensor ranks, with a tensor degree of their own: groups, parts, memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.errors import InvalidInput, UsageError
from costmodel.files import Node
from costmodel.machines.collectives import all_to_all_ns
from costmodel.model.work import Work
from costmodel.stages.config import CONFIG, StageConfig
from costmodel.stages.strategies import StrategyModel, TrainingJob
from costmodel.stages.strategies.division import Degrees, divided_work
from costmodel.stages.strategies.groups import GroupFinder
from costmodel.stages.strategies.traffic import Traffic
from tests.support.described_models import described
from tests.support.gpt_graph import cluster

POWERS = st.sampled_from([1, 2, 4])
MACHINES = cluster(64)


@pytest.mark.parametrize(
    ("expert", "expert_tensor", "groups"),
    [
        (8, 1, (tuple(range(8)), (0,), (0,))),
        (4, 1, ((0, 1, 2, 3), (0,), (0, 4))),
        (2, 2, ((0, 2), (0, 1), (0, 4))),
        (2, 4, ((0, 4), (0, 1, 2, 3), (0,))),
    ],
)
def test_parts_of_an_expert_lie_innermost_then_other_experts_then_copies(
    expert: int, expert_tensor: int, groups: tuple[tuple[int, ...], ...]
) -> None:
    config = StageConfig(data=4, tensor=2, sequence=2, expert=expert, expert_tensor=expert_tensor)
    found = GroupFinder(MACHINES).of(range(8), config)
    assert (found.expert, found.expert_tensor, found.expert_replicas) == groups
    assert (found.tensor, found.replicas) == ((0, 1), (0, 2, 4, 6))


@settings(deadline=None)
@given(POWERS, POWERS, POWERS, POWERS, POWERS)
def test_experts_groups_make_up_all_ranks(data: int, tensor: int, context: int, expert: int, parts: int) -> None:
    ranks = data * tensor * context
    if ranks % parts or ranks // parts % expert:
        return
    config = StageConfig(data, tensor, tensor, context, expert, expert_tensor=parts)
    found = GroupFinder(MACHINES).of(range(ranks), config)
    assert len(found.expert) * len(found.expert_tensor) * len(found.expert_replicas) == ranks


@settings(deadline=None)
@given(POWERS, POWERS, POWERS, POWERS)
def test_all_ranks_together_do_all_work_of_experts(tensor: int, context: int, expert: int, parts: int) -> None:
    work = Work("matmul", "expert", 64, 16, 32, experts=8, active=2)
    own = divided_work(work, Degrees(tensor, True, context, expert, parts), within=True)
    assert own.tokens * own.outer * tensor * context == work.tokens * work.outer
    assert own.experts * expert == work.experts


def test_a_rank_holds_and_sums_as_much_of_experts_whichever_ranks_divide_them() -> None:
    """Four parts on eight ranks: two experts in two parts each, or four experts."""
    profile = described("mixtral")
    model = StrategyModel(profile, MACHINES, 1, TrainingJob(overlap=False))
    operators = range(len(profile.graph.operators))
    costs = [
        model.stage(operators, StageConfig(4, 2, 2, expert=e, expert_tensor=x, zero=1), range(8))
        for e, x in ((2, 2), (4, 1))
    ]
    parts, whole = (dict(cost.memory_terms) for cost in costs)
    for term in ("parameters", "gradients", "optimizer"):
        assert parts[term] == whole[term]
    assert costs[0].reduce_ns == costs[1].reduce_ns


def test_whole_experts_send_tokens_over_the_links_that_their_ranks_span_and_sum_nothing() -> None:
    profile = described("mixtral")
    model = StrategyModel(profile, MACHINES, 1, TrainingJob(overlap=False))
    config = StageConfig(8, 2, 2, expert=16 // 4, expert_tensor=1)
    degrees, groups = Degrees.of(config, False), GroupFinder(MACHINES).of(range(16), config)
    traffic: Traffic = model._build.traffic(degrees, groups)
    position, operator = next((i, o) for i, o in enumerate(profile.graph.operators) if o.name.endswith("gate_up_proj"))
    times = {position: (0, 0, 0)}
    forward, _, _ = traffic.items(times)
    assert operator.work is not None
    size = operator.work.tokens * operator.work.active * operator.work.inner * traffic.width // 2
    assert [ns for _, _, ns in forward] == [all_to_all_ns(MACHINES, (0, 1, 2, 3), size)]


def test_the_tensor_degree_is_experts_own_where_nothing_is_said() -> None:
    assert StageConfig(tensor=4, expert_tensor=4) == StageConfig(tensor=4)
    for config in (StageConfig(tensor=4), StageConfig(4, 2, 2, expert=8, expert_tensor=1)):
        assert CONFIG.read(Node(CONFIG.write(config), "", "f")) == config
    assert "expert_tensor" not in CONFIG.write(StageConfig(tensor=4))


def test_what_no_ranks_divide_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"config.expert_tensor is 3; allowed are divisors of the stage's ranks"):
        StageConfig(data=4, tensor=2, expert_tensor=3)
    with pytest.raises(InvalidInput, match="expert_tensor: found 0; the number must lie between 1"):
        CONFIG.read(Node({"tensor": 2, "expert_tensor": 0}, "", "f"))
    with pytest.raises(UsageError, match="choose a divisor of 8"):
        Degrees.of(StageConfig(4, 2, 2, expert=3, expert_tensor=1), False)
    with pytest.raises(UsageError, match="take their parts of the sequence: give --sequence-parallel"):
        Degrees.of(StageConfig(4, 2, expert=8, expert_tensor=1), False)
