"""Laws of strategies' prices, over random models, shapes and configurations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.profile import Profile
from costmodel.stages.config import CONFIG, StageConfig
from costmodel.stages.costs import PER_ACTION, StageCost
from costmodel.stages.strategies import MemoryTerms, StrategyModel, TrainingJob
from costmodel.stages.strategies.groups import GroupFinder
from costmodel.stages.strategies.shared_sums import SharedSums
from tests.support.gpt_graph import cluster, gpt

MACHINES = cluster(64, 4096)
STATES = ("parameters", "gradients", "optimizer", "master_weights")
PROFILES = [
    gpt(layers, s, h, a, v) for layers, s, h, a, v in ((1, 64, 32, 4, 0), (3, 96, 48, 8, 100), (2, 33, 24, 4, 7))
]
FEW = settings(max_examples=60, deadline=None)

trainings = st.builds(
    TrainingJob,
    precision=st.sampled_from(("", "fp32", "fp16", "bf16")),
    optimizer=st.sampled_from(("none", "sgd", "momentum", "adam")),
    sequence_parallel=st.booleans(),
    flash=st.booleans(),
    overlap=st.booleans(),
)
configs = st.builds(
    StageConfig,
    data=st.sampled_from((1, 2, 4, 8)),
    tensor=st.sampled_from((1, 2, 4)),
    context=st.sampled_from((1, 2)),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(("none", "selective", "full")),
    offload=st.sampled_from(("none", "optimizer", "activations")),
)


def ranks_of(config: StageConfig) -> range:
    return range(config.data * config.tensor * config.context)


@st.composite
def stages(draw: st.DrawFn) -> tuple[Profile, range]:
    profile = draw(st.sampled_from(PROFILES))
    count = len(profile.graph.operators)
    first = draw(st.integers(0, count - 1))
    return profile, range(first, draw(st.integers(first + 1, count)))


def amounts(stage: StageCost) -> list[object]:
    return [*(getattr(stage, name) for name in PER_ACTION), *(size for _, size in stage.memory_terms)]


@FEW
@given(stages(), configs, trainings, st.integers(1, 5))
def test_every_time_and_byte_is_a_whole_number_not_below_0(place, config, training, size):
    profile, operators = place
    model = StrategyModel(profile, MACHINES, size, training)
    stage = model.stage(operators, config, ranks_of(config), (), 4)
    terms = model.terms(operators, config, ranks_of(config), 4, 2)
    found = [*amounts(stage), terms.host, *(n for a in terms.items().values() for n in (a.point, a.upper))]
    assert all(type(n) is int and n >= 0 for n in found)
    assert stage.weight_activation_bytes <= stage.activation_bytes
    assert all(amount.point <= amount.upper for amount in terms.items().values())


@FEW
@given(stages(), configs, trainings)
def test_terms_of_one_microbatch_are_the_stages_static_and_activation_bytes(place, config, training):
    profile, operators = place
    model = StrategyModel(profile, MACHINES, 2, training)
    stage = model.stage(operators, config, ranks_of(config))
    terms = model.terms(operators, config, ranks_of(config), 1, 1)
    assert terms.point_bytes == stage.static_bytes + stage.activation_bytes
    assert stage.static_bytes == sum(size for _, size in stage.memory_terms)


@FEW
@given(stages(), configs, trainings)
def test_more_devices_never_raise_a_ranks_sharded_states(place, config, training):
    profile, operators = place
    model = StrategyModel(profile, MACHINES, 1, training)
    for name in ("data", "tensor"):
        wider = StageConfig(**{**CONFIG.write(config), name: 2 * getattr(config, name)})
        if wider.tensor > 4 or len(ranks_of(wider)) > MACHINES.num_devices:
            continue
        before, after = (model.terms(operators, c, ranks_of(c), 1, 1) for c in (config, wider))
        assert states(after) <= states(before)
        if config.offload == "optimizer":
            assert after.host <= before.host


def states(terms: MemoryTerms) -> int:
    return sum(getattr(terms, name).point for name in STATES)


@FEW
@given(stages(), configs, trainings, st.integers(1, 4))
def test_full_recompute_never_raises_activation_memory(place, config, training, size):
    profile, operators = place
    model = StrategyModel(profile, MACHINES, size, training)
    kept = {}
    for recompute in ("none", "selective", "full"):
        asked = StageConfig(**{**CONFIG.write(config), "recompute": recompute})
        kept[recompute] = model.stage(operators, asked, ranks_of(asked)).activation_bytes
    assert kept["full"] <= kept["none"]
    assert kept["selective"] <= kept["none"]


@FEW
@given(st.sampled_from(PROFILES), configs, trainings, st.data())
def test_forward_and_weight_gradient_times_add_up_over_operators(profile, config, training, data):
    """A value that two stages gather is gathered twice; a cut between layers tears none apart."""
    model = StrategyModel(profile, MACHINES, 1, training)
    count = len(profile.graph.operators)
    cuts = [i for i in range(1, count) if (i - 1) % 10 == 0]
    cut = data.draw(st.sampled_from(cuts))
    whole, left, right = (
        model.times(part, config, ranks_of(config)) for part in (range(count), range(cut), range(cut, count))
    )
    assert [a + b for a, b in zip(left, right, strict=True)] == list(whole)


@FEW
@given(stages(), st.integers(1, 4), st.sampled_from(("none", "momentum", "adam")))
def test_a_whole_stage_takes_the_sum_of_its_operators_and_keeps_each_storage_once(place, size, optimizer):
    profile, operators = place
    model, graph = StrategyModel(profile, MACHINES, size, TrainingJob(optimizer=optimizer)), profile.graph
    members = [graph.operators[i] for i in operators]
    inside = {operator.name for operator in members}
    received = [t for t in graph.tensors if t.producer not in inside and inside.intersection(t.consumers)]
    found = model.stage(operators, StageConfig(), (0,), [graph.tensors.index(t) for t in received], 2)
    measured = model.measured
    assert found.forward_ns == sum(measured.forward_ns[i] for i in operators)
    assert found.backward_input_ns == sum(measured.backward_input_ns[i] for i in operators)
    whole = {}
    for operator in graph.operators:
        for saved in operator.saved:
            kept = saved.size_bytes * (1 if saved.fixed else size)
            whole[saved.storage] = max(kept, whole.get(saved.storage, 0))
    for tensor in graph.tensors:
        whole[tensor.storage] = max(measured.tensor_bytes(tensor), whole.get(tensor.storage, 0))
    held = {saved.storage for operator in members for saved in operator.saved} | {t.storage for t in received}
    assert found.activation_bytes == sum(whole[storage] for storage in held)
    trained = {name for operator in members for name in operator.parameters}
    copies = {"none": 0, "momentum": 1, "adam": 2}[optimizer]
    size_bytes = sum(graph.parameter_index[name].size_bytes for name in trained)
    terms = dict(found.memory_terms)
    assert (terms["parameters"], terms["gradients"], terms["optimizer"]) == (
        size_bytes,
        size_bytes,
        copies * size_bytes,
    )


@FEW
@given(stages(), configs, trainings)
def test_the_same_operators_cost_the_same_listed_in_any_way(place, config, training):
    profile, operators = place
    model = StrategyModel(profile, MACHINES, 1, training)
    listed = model.stage(list(reversed(operators)), config, ranks_of(config))
    assert listed == model.stage(operators, config, ranks_of(config))


items = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(0, 9)), max_size=12)


@given(items, st.lists(st.integers(0, 9), min_size=8, max_size=8), st.sets(st.integers(0, 7), min_size=1))
def test_union_sums_count_what_is_shared_once(rows, own, chosen):
    sums = SharedSums(rows, 8, own)
    largest = {key: max(size for _, k, size in rows if k == key) for _, key, _ in rows}
    for operators in (sorted(chosen), range(min(chosen), max(chosen) + 1)):
        keys = {key for i, key, _ in rows if i in operators}
        assert sums.over(operators) == sum(largest[key] for key in keys) + sum(own[i] for i in operators)
        assert all(sums.holds(operators, key) == (key in keys) for key in range(4))


@pytest.mark.parametrize("order", [(), (0, 1, 8, 9, 2, 3, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23)])
def test_groups_that_count_as_one_lie_alike_on_all_links(order: tuple[int, ...]) -> None:
    links = (LinkGroup("pair", 2, 600.0, 3000), LinkGroup("host", 8, 300.0, 8000), LinkGroup("network", 0, 45.0, 12000))
    cluster = Cluster((DeviceType("d", 2**40),), (Host("d", 8, 4),), links, order=order)
    finder = GroupFinder(cluster)
    for start in range(cluster.num_devices):
        for size, stride in ((2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (4, 4)):
            ranks = range(start, start + size * stride, stride)
            if ranks[-1] >= cluster.num_devices:
                continue
            found = finder.canonical(ranks)
            pairs = [(i, j) for i in range(size) for j in range(i)]
            assert all(
                cluster.link_between(ranks[i], ranks[j]) == cluster.link_between(found[i], found[j]) for i, j in pairs
            )
            if not order and size * stride <= 8 and start % 8 + size * stride <= 8 and start % 2 == 0:
                assert found[0] == 0
