"""Each rule of the plan checker: a legal plan made by hand, altered in one place, is refused for that reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.graph import OperatorGraph, Parameter, Tensor
from costmodel.stages.config import StageConfig
from planner.checker import KINDS, check_plan
from planner.checker.claims import claim_problems
from planner.checker.rendezvous import deadlock_problems
from planner.checker.steps import Layout, read_steps
from planner.plan import Plan, Training
from tests.support.small_plan import CLUSTER, COST, GRAPH, PLAN, with_edge, with_order, with_stage

FROZEN = replace(COST, backward=False)
GPUS = Cluster((DeviceType("a100", 1000),), (Host("a100", 4),), CLUSTER.groups)


def swap(first: str, second: str) -> Callable[[list[str]], None]:
    def change(order: list[str]) -> None:
        i, j = order.index(first), order.index(second)
        order[i], order[j] = order[j], order[i]

    return change


def drop(text: str) -> Callable[[list[str]], None]:
    return lambda order: order.remove(text)


def put(text: str, *, at: int = 0) -> Callable[[list[str]], None]:
    return lambda order: order.insert(at, text)


def predicted(**changes: object) -> Plan:
    return replace(PLAN, prediction=replace(PLAN.prediction, **changes))  # type: ignore[arg-type]


def searched(**changes: object) -> Plan:
    return replace(PLAN, search=replace(PLAN.search, **changes))  # type: ignore[arg-type]


def beside(unrun_ns: int, **changes: object) -> Plan:
    """A plan that a trainer runs, and says what a faster one takes that nobody runs."""
    extra = {"best_unrun": {"step_time_ns": unrun_ns, "strategy": "pipeline"}}
    return replace(searched(**changes), runs_on=("executor",), extra=extra)


def closed(*texts: str, optimizer: str = "none") -> Plan:
    """Put the same closing actions behind every rank's own stage."""
    plan = replace(PLAN, training=replace(PLAN.training, optimizer=optimizer))
    for rank in range(4):
        plan = with_order(plan, rank, lambda order, r=rank: order.extend(f"{r}{text}" for text in texts))
    return plan


def test_a_legal_plan_has_no_problems() -> None:
    assert check_plan(PLAN) == ()
    assert check_plan(PLAN, GRAPH, CLUSTER) == ()


def test_a_plan_with_optimizer_steps_has_none_either_when_they_take_no_time() -> None:
    assert check_plan(closed("OPT", optimizer="adam"), GRAPH) == ()
    assert check_plan(closed("REDUCE", "OPT", optimizer="adam"), GRAPH) == ()


PARTITION = [
    ("an operator that is in two stages", with_stage(PLAN, 2, operators=("right", "left")), "operator", "'left'"),
    ("an operator the model does not have", with_stage(PLAN, 2, operators=("wrong",)), "operator", "'wrong'"),
    ("an operator that is in no stage", with_stage(PLAN, 3, operators=("loss",)), "operator", "'join'"),
    ("a stage without operators", with_stage(PLAN, 3, operators=()), "operator", "no operators"),
    ("a wrong number of operators", replace(PLAN, num_operators=4), "operator", "4 operators are announced"),
    (
        "stages that wait for each other",
        with_stage(with_stage(PLAN, 0, operators=("stem", "join")), 3, operators=("loss",)),
        "cycle",
        "each reads an output of another",
    ),
    ("a tensor that the model does not have", with_edge(PLAN, 2, tensors=("lost",)), "edge", "'lost'"),
    ("an edge without tensors", with_edge(PLAN, 2, tensors=()), "edge", "tensors are []"),
    ("a tensor sent by a stage that lacks it", with_edge(PLAN, 2, tensors=("left", "right")), "edge", "'right'"),
    ("a tensor no edge brings", with_edge(PLAN, 2, tensors=("stem",)), "edge", "reads the tensor 'left'"),
    ("a gradient that is kept", with_edge(PLAN, 1, gradient=False), "edge", "gradient is false"),
    ("training without backward", with_stage(PLAN, 0, cost=FROZEN), "edge", "no backward"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "plan", "kind", "words"), PARTITION, ids=[row[0] for row in PARTITION])
def test_partition_refuses(what: str, plan: Plan, kind: str, words: str) -> None:
    problems = check_plan(plan, GRAPH)
    assert any(p.kind == kind and words in p.message for p in problems), problems


def test_without_the_model_repeated_operators_are_seen_still() -> None:
    problems = check_plan(with_stage(PLAN, 2, operators=("left",)))
    assert [(p.kind, p.place) for p in problems] == [("operator", "stage 2"), ("operator", "model")]


ORDERS = [
    ("a text that is no action", with_order(PLAN, 0, put("0X1")), "action", "no action"),
    ("a micro-batch behind the last", with_order(PLAN, 0, put("0F2")), "action", "micro-batch 2; the plan has 0 to 1"),
    ("a stage behind the last", with_order(PLAN, 0, put("4F0")), "action", "stage 4; the plan has the stages 0 to 3"),
    ("a leading zero", with_order(PLAN, 0, lambda o: o.__setitem__(0, "00F0")), "action", "no action"),
    ("a sequence slice", with_order(PLAN, 0, lambda o: o.__setitem__(0, "0F0.1")), "action", "slice"),
    ("a send without the other stage", with_order(PLAN, 0, lambda o: o.__setitem__(1, "0SEND_F0")), "action", "SEND_F"),
    ("an arrow the wrong way", with_order(PLAN, 0, lambda o: o.__setitem__(1, "0SEND_F0<1")), "action", "SEND_F"),
    ("what no stage of a plan needs", with_order(PLAN, 0, put("0UNSHARD")), "action", "no action"),
    ("a missing forward", with_order(PLAN, 3, drop("3F1")), "count", "3F1 is missing"),
    ("a missing backward", with_order(PLAN, 3, drop("3B1")), "count", "backward of 3F1: found none"),
    ("a forward that occurs twice", with_order(PLAN, 3, put("3F1")), "count", "occurs 2 times"),
    ("I without W", with_order(PLAN, 3, lambda o: o.__setitem__(o.index("3B1"), "3I1")), "count", "found 3I1"),
    ("B beside I and W", with_order(PLAN, 3, lambda o: o.extend(["3I1", "3W1"])), "count", "B alone or I and W"),
    ("an action on another's rank", with_order(PLAN, 2, put("1F1")), "rank", "on rank 1"),
    ("a backward before its forward", with_order(PLAN, 3, swap("3F1", "3B1")), "order", "before 3F1"),
    ("a weight gradient before the input gradient", with_order(
        PLAN, 3, lambda o: o.__setitem__(slice(o.index("3B1"), o.index("3B1") + 1), ["3W1", "3I1"])), "order", "3I1"),
    ("recomputing after the backward", with_order(PLAN, 3, lambda o: o.append("3R1")), "order", "before 3R1"),
    ("a backward of a frozen stage", with_stage(PLAN, 3, cost=FROZEN), "count", "forwards only"),
    ("an optimizer step on some ranks only", with_order(PLAN, 0, lambda o: o.append("0OPT")), "count", "1OPT occurs 0"),
    ("work after the optimizer step", with_order(closed("OPT"), 0, swap("0B1", "0OPT")), "order", "after 0OPT"),
    ("a backward after the reduction", with_order(closed("REDUCE"), 0, swap("0B1", "0REDUCE")), "order", "0REDUCE"),
    ("a reduction of another's stage", with_order(PLAN, 0, lambda o: o.append("1REDUCE")), "rank", "on the ranks [1]"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "plan", "kind", "words"), ORDERS, ids=[row[0] for row in ORDERS])
def test_orders_refuse(what: str, plan: Plan, kind: str, words: str) -> None:
    problems = check_plan(plan)
    assert any(p.kind == kind and words in p.message for p in problems), problems


MESSAGES = [
    ("a missing send", with_order(PLAN, 0, drop("0SEND_F1>2")), "message", "0SEND_F1>2 is missing"),
    ("a missing receive", with_order(PLAN, 2, drop("2RECV_B1<3")), "message", "2RECV_B1<3 is missing"),
    ("a send that occurs twice", with_order(PLAN, 0, put("0SEND_F1>2", at=6)), "message", "occurs 2 times"),
    ("a send to a stage that reads nothing", with_order(PLAN, 1, put("1SEND_F0>2", at=2)), "message", "by no edge"),
    ("sending before computing", with_order(PLAN, 0, swap("0F0", "0SEND_F0>1")), "order", "before 0F0"),
    ("computing before receiving", with_order(PLAN, 1, swap("1RECV_F0<0", "1F0")), "order", "after 1F0"),
    ("a gradient that comes too late", with_order(PLAN, 0, swap("0RECV_B1<2", "0B1")), "order", "after 0B1"),
    ("a pair of two orders", with_order(PLAN, 0, swap("0RECV_B0<1", "0RECV_B1<1")), "message", "message 0"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "plan", "kind", "words"), MESSAGES, ids=[row[0] for row in MESSAGES])
def test_messages_refuse(what: str, plan: Plan, kind: str, words: str) -> None:
    problems = check_plan(plan)
    assert any(p.kind == kind and words in p.message for p in problems), problems


def test_ranks_that_wait_for_each_other_are_named_in_their_ring() -> None:
    # rank 3 wants both outputs of micro-batch 1 before it gives back the gradients of micro-batch 0, which
    # rank 1 takes before it sends: each pair's own order is kept
    plan = with_order(PLAN, 1, lambda o: (o.remove("1SEND_F1>3"), o.insert(o.index("1B0") + 1, "1SEND_F1>3")))
    problems = check_plan(plan)
    assert [p.kind for p in problems] == ["deadlock"]
    assert problems[0].place == "ranks [0, 1, 2, 3]"
    assert "rank 3 in 3RECV_F1<1 waits for rank 1" in problems[0].message
    assert "rank 1 in 1RECV_B0<3 waits for rank 3" in problems[0].message


FIGURES = [
    ("a step time that is too short", predicted(step_time_ns=123), "time", "123 ns; the orders and costs give 124 ns"),
    ("a wrong span", predicted(span_ns=125), "time", "125 ns; the orders and costs give 124 ns"),
    ("a wrong bubble", predicted(bubble_ratio=0.5), "time", "0.5; the times give 0.516"),
    ("a wrong peak", predicted(peak_memory_bytes=(25, 24, 25, 21)), "memory", "24 bytes; the orders"),
    ("an interval beside the step", predicted(step_time_interval_ns=(125, 200)), "time", "leave out the step time"),
    ("an estimate below the peak", predicted(peak_memory_upper_bytes=(25, 25, 25, 20)), "memory", "below the peak"),
    ("a peak too few", predicted(peak_memory_bytes=(25, 25, 25)), "memory", "3 figures"),
    ("an objective that is not the step time", searched(objective=125), "search", "125; the predicted"),
    ("an optimum above its bound", searched(status="optimal"), "search", "above the bound"),
    ("a best time below the bound", searched(best_step_time_ns=99), "search", "99; it lies between the bound 100"),
    ("a best time above the objective", searched(best_step_time_ns=125), "search", "and the objective 124"),
    ("a plan that is 2 % slower than the best", searched(best_step_time_ns=121), "search", "at most 1% above it"),
    ("a faster plan that is not the best", beside(120, best_step_time_ns=121), "search", "at most 1% above it"),
    ("degrees that are not the ranks", with_stage(PLAN, 1, config=StageConfig(data=2)), "rank", "the ranks [1]"),
    ("experts on no whole number of ranks", with_stage(PLAN, 1, config=StageConfig(expert=2)), "rank", "not divide"),
    ("an action that costs more", with_stage(PLAN, 3, cost=replace(COST, forward_ns=11)), "time", "126 ns"),
    ("costs of too many actions", with_stage(PLAN, 3, cost=replace(COST, forward_ns=(10, 10, 10))), "cost", "3 values"),
    ("an uneven multiple", with_stage(PLAN, 3, microbatch_multiple=3), "batch", "3 micro-batches at a time"),
    ("an edge cheaper than its link", with_edge(PLAN, 0, p2p_ns=0), "cluster", "the cluster's link takes 1 ns"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "plan", "kind", "words"), FIGURES, ids=[row[0] for row in FIGURES])
def test_figures_refuse(what: str, plan: Plan, kind: str, words: str) -> None:
    problems = check_plan(plan)
    assert any(p.kind == kind and words in p.message for p in problems), problems


def test_a_device_with_too_little_memory_is_named_with_what_it_has() -> None:
    small = replace(CLUSTER, devices=(DeviceType("cpu", 24, "cpu"),))
    problems = check_plan(replace(PLAN, cluster=small))
    assert [(p.kind, p.place, p.message) for p in problems] == [
        ("memory", f"rank {rank}", "needs 25 bytes; its device 'cpu' has 24") for rank in (0, 1, 2)
    ]


def test_peaks_of_any_size_are_judged_by_their_value() -> None:
    """Python holds small numbers once: beyond them equal ones are two objects."""
    more = 10**6
    plan = replace(PLAN, stages=tuple(replace(s, cost=replace(COST, static_bytes=5 + more)) for s in PLAN.stages))
    roomy = replace(CLUSTER, devices=(DeviceType("cpu", 2 * more, "cpu"),))
    peaks = tuple(int(str(peak + more)) for peak in PLAN.prediction.peak_memory_bytes)
    prediction = replace(PLAN.prediction, peak_memory_bytes=peaks, peak_memory_upper_bytes=peaks)
    assert check_plan(replace(plan, cluster=roomy, prediction=prediction)) == ()


def test_a_device_whose_memory_is_not_known_holds_any_plan() -> None:
    unknown = replace(CLUSTER, devices=(DeviceType("cpu", 0, "cpu"),))
    assert check_plan(replace(PLAN, cluster=unknown)) == ()


CLUSTERS = [
    ("fewer devices", replace(CLUSTER, hosts=(Host("cpu", 3),)), "3 devices; the plan has 4 ranks"),
    ("another device", GPUS, "a cuda device 'a100'"),
    ("a slow rank", replace(CLUSTER, speeds=((2, 0.5),)), "speed 0.5; the plan counts on 1"),
    ("a slow link", replace(CLUSTER, groups=(LinkGroup("wire", 0, 1.0, 5),)), "take 7 ns; planned are 1"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "cluster", "words"), CLUSTERS, ids=[row[0] for row in CLUSTERS])
def test_another_cluster_is_refused_for(what: str, cluster: Cluster, words: str) -> None:
    problems = check_plan(PLAN, None, cluster)
    assert problems
    assert all(p.kind == "cluster" for p in problems)
    assert any(words in p.message for p in problems), problems


def test_a_larger_and_faster_cluster_fits() -> None:
    roomy = replace(CLUSTER, hosts=(Host("cpu", 8),), groups=(LinkGroup("fast", 0, 1e9, 0),))
    assert check_plan(PLAN, GRAPH, roomy) == ()


def test_a_plan_that_says_on_which_devices_it_stands_is_held_to_those() -> None:
    small, large = DeviceType("small", 24, "cpu"), DeviceType("cpu", 1000, "cpu")
    both = replace(CLUSTER, devices=(small, large), hosts=(Host("small", 4), Host("cpu", 4)))
    plan = replace(PLAN, cluster=replace(both, order=(4, 5, 6, 7)))
    assert check_plan(plan, GRAPH, both) == ()
    assert check_plan(PLAN, GRAPH, both)
    assert check_plan(plan, GRAPH, replace(both, hosts=(Host("small", 4), Host("cpu", 2))))


def test_memory_that_only_the_other_cluster_lacks_is_refused() -> None:
    problems = check_plan(PLAN, None, replace(CLUSTER, devices=(DeviceType("cpu", 24, "cpu"),)))
    assert [(p.kind, p.place) for p in problems] == [("memory", f"rank {rank}") for rank in (0, 1, 2)]


def test_tied_parameters_on_two_ranks_need_a_reduction() -> None:
    operators = tuple(
        replace(operator, parameters=("w",)) if operator.name == "left" else operator for operator in GRAPH.operators
    )
    tied = replace(GRAPH, operators=operators)
    assert [(p.kind, p.message) for p in check_plan(PLAN, tied)] == [
        ("count", "0REDUCE occurs 0 times; 1 is right"),
        ("count", "1REDUCE occurs 0 times; 1 is right"),
    ]
    assert check_plan(closed("REDUCE"), tied) == ()


def test_an_operator_in_place_stands_in_its_producers_stage() -> None:
    operators = tuple(replace(o, in_place=True) if o.name == "left" else o for o in GRAPH.operators)
    problems = check_plan(PLAN, replace(GRAPH, operators=operators))
    assert [(p.kind, p.place) for p in problems] == [("operator", "stage 1")]
    assert "must be in its stage 0" in problems[0].message


def chain_with_a_skip() -> tuple[Plan, OperatorGraph]:
    """Return the plan with a tensor of stage 0 that stage 3 reads too, relayed through stage 1."""
    tensors = (Tensor("stem", "stem", ("left", "right", "join"), (2,)), *GRAPH.tensors[1:])
    return with_edge(PLAN, 2, tensors=("left", "stem")), replace(GRAPH, tensors=tensors)


def test_a_tensor_may_be_relayed_along_edges() -> None:
    plan, graph = chain_with_a_skip()
    assert check_plan(plan, graph) == ()


def test_a_tensor_that_arrives_over_two_edges_is_refused() -> None:
    plan, graph = chain_with_a_skip()
    problems = check_plan(with_edge(plan, 3, tensors=("right", "stem")), graph)
    assert {p.message for p in problems} == {"the tensor 'stem' reaches stage 3 more than once"}


def test_a_tensor_that_nobody_reads_there_is_refused() -> None:
    plan, _ = chain_with_a_skip()
    problems = check_plan(plan, GRAPH)
    assert [p.message for p in problems] == ["stage 3 neither reads the tensor 'stem' nor passes it on"]


def test_every_dropped_repeated_or_moved_action_is_found() -> None:
    for rank, order in enumerate(PLAN.orders):
        for position, text in enumerate(order):
            without = with_order(PLAN, rank, lambda o, i=position: o.pop(i))
            twice = with_order(PLAN, rank, lambda o, i=position, t=text: o.insert(i, t))
            moved = with_order(without, (rank + 1) % 4, lambda o, t=text: o.append(t))
            for plan in (without, twice, moved):
                assert {p.kind for p in check_plan(plan)} & {"count", "message", "rank"}, (rank, text)


def divided(first: tuple[int, int], second: tuple[int, int]) -> Plan:
    """Two stages whose two replicas divide the optimizer on the same ranks, stepped in these orders."""
    return replace(
        PLAN,
        stages=tuple(
            replace(stage, ranks=ranks, config=StageConfig(data=len(ranks), zero=int(len(ranks) > 1)))
            for stage, ranks in zip(PLAN.stages, [(0, 1), (0, 1), (2,), (3,)], strict=True)
        ),
        orders=tuple(
            (*(f"{stage}REDUCE" for stage in (0, 1)), *(f"{stage}OPT" for stage in stages)) if stages else ()
            for stages in (first, second, (), ())
        ),
    )


def test_opposite_orders_of_a_divided_optimizer_are_a_deadlock_and_one_order_is_none() -> None:
    for first, second, kinds in (((0, 1), (1, 0), ["deadlock"]), ((0, 1), (0, 1), [])):
        plan = divided(first, second)
        orders, unread = read_steps(plan)
        assert not unread
        found = list(deadlock_problems(Layout.of(plan), orders, {}))
        assert [problem.kind for problem in found] == kinds
        assert not kinds or "1OPT waits for rank 0" in found[0].message


CLAIMS = [
    ("none beside OPT", closed("OPT"), "training", "none, and the orders hold OPT"),
    ("an optimizer without OPT", replace(PLAN, training=Training("float32", "", "adam")), "training", "no OPT"),
    ("an optimizer nobody knows", replace(PLAN, training=Training("", "", "magic")), "training", "'magic'"),
    ("a precision nobody knows", replace(PLAN, training=Training("int3", "", "none")), "training", "'int3'"),
    ("an executor that cannot run it", with_stage(PLAN, 1, config=StageConfig(context=2)), "target", "config.context"),
    ("an executor that keeps nothing on the host", with_stage(
        PLAN, 1, config=StageConfig(offload="optimizer")), "target", "config.offload = optimizer"),
    ("a trainer nobody knows", replace(PLAN, runs_on=("magic",)), "target", "'magic'"),
    ("a trainer of lines for a graph", replace(PLAN, runs_on=("megatron",)), "target", "no line"),
    ("terms of another sum", with_stage(
        PLAN, 0, cost=replace(COST, memory_terms=(("parameters", 4),))), "memory", "add up to 4"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "plan", "kind", "words"), CLAIMS, ids=[row[0] for row in CLAIMS])
def test_claims_that_the_plan_contradicts_are_refused(what: str, plan: Plan, kind: str, words: str) -> None:
    assert any(p.kind == kind and words in p.message for p in check_plan(plan)), check_plan(plan)


def line_of(last: dict[str, object], **given: object) -> Plan:
    """All stages alike in one line, but for the last."""
    stages = [replace(stage, **given) for stage in PLAN.stages]
    stages[-1] = replace(stages[-1], **last)
    edges = tuple(replace(PLAN.edges[0], source=i, target=i + 1) for i in range(len(stages) - 1))
    return replace(PLAN, stages=tuple(stages), edges=edges)


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        (line_of({}), ()),
        (line_of({"config": StageConfig(data=2)}), ("torchtitan", "megatron", "deepspeed")),
        (line_of({}, microbatch_multiple=2), ("torchtitan", "megatron", "deepspeed")),
        (line_of({}, config=StageConfig(data=2, zero=2)), ("megatron",)),
        (line_of({}, config=StageConfig(data=2, zero=1)), ("torchtitan",)),
        (line_of({}, config=StageConfig(data=4, zero=1, shard_group=2)), ("torchtitan", "deepspeed")),
        (line_of({}, config=StageConfig(offload="optimizer")), ("torchtitan", "megatron")),
    ],
)
def test_trainers_of_lines_are_held_to_stages_alike_and_to_what_they_have_inside(
    plan: Plan, refused: tuple[str, ...]
) -> None:
    names = ("torchtitan", "megatron", "deepspeed")
    found = [p.message for p in claim_problems(replace(plan, runs_on=names)) if p.place == "runs_on"]
    assert [message.split(",")[0] for message in found] == list(refused)


def test_every_swap_of_neighbours_is_refused_or_changes_no_time() -> None:
    for rank, order in enumerate(PLAN.orders):
        for i in range(len(order) - 1):
            plan = with_order(PLAN, rank, lambda o, i=i: o.__setitem__(slice(i, i + 2), [o[i + 1], o[i]]))
            kinds = {p.kind for p in check_plan(plan)}
            compute = [text[1] in "FB" and "_" not in text for text in order[i : i + 2]]
            assert kinds <= {"order", "message", "deadlock", "time", "memory"}
            if all(compute):
                assert kinds, (rank, order[i])


def test_problem_kinds_are_those_of_the_table() -> None:
    rows = [(row[1], row[2]) for row in (*PARTITION, *ORDERS, *MESSAGES, *FIGURES)]
    assert {kind for _, kind in rows} <= set(KINDS)
    for plan, _ in rows:
        assert {p.kind for p in check_plan(plan, GRAPH)} <= set(KINDS)


def test_a_frozen_branch_sends_no_gradient_back() -> None:
    operators = tuple(replace(o, trainable=False) if o.name == "right" else o for o in GRAPH.operators)
    tensors = tuple(replace(t, gradient=False) if t.name == "right" else t for t in GRAPH.tensors)
    problems = check_plan(PLAN, OperatorGraph("diamond", operators, tensors, GRAPH.parameters))
    assert [(p.kind, p.place, p.message) for p in problems] == [
        ("edge", "edge 2 -> 3", "gradient is true, its tensors say false")
    ]


def test_a_replicated_stage_sums_its_gradients() -> None:
    moved = ("3RECV_F1<1", "3RECV_F1<2", "3F1", "3B1", "3SEND_B1>1", "3SEND_B1>2")
    left = tuple(text for text in PLAN.orders[3] if text not in moved)

    def replicated(*closing: str) -> Plan:
        return replace(
            PLAN,
            stages=(*PLAN.stages[:3], replace(PLAN.stages[3], ranks=(3, 4), config=StageConfig(data=2))),
            cluster=replace(CLUSTER, hosts=(Host("cpu", 5),)),
            orders=(*PLAN.orders[:3], left + closing, moved + closing),
            prediction=replace(PLAN.prediction, peak_memory_bytes=(25,) * 5, peak_memory_upper_bytes=(25,) * 5),
        )

    assert [p.message for p in check_plan(replicated())] == ["3REDUCE occurs 0 times; 1 is right"] * 2
    # legal with them, and faster than predicted: 3F0 and 3F1 no longer wait for each other
    assert {p.kind for p in check_plan(replicated("3REDUCE"))} == {"time", "memory"}


def test_a_parameter_that_is_not_trained_needs_no_reduction() -> None:
    operators = tuple(replace(o, parameters=("w",)) if o.name == "left" else o for o in GRAPH.operators)
    parameters = (Parameter("w", (1,), 4, trainable=False), *GRAPH.parameters[1:])
    assert check_plan(PLAN, OperatorGraph("d", operators, GRAPH.tensors, parameters)) == ()


def test_a_plan_may_be_slower_than_the_best_where_nobody_runs_that() -> None:
    kinds = [problem.kind for problem in check_plan(beside(110, best_step_time_ns=110))]
    assert "search" not in kinds
