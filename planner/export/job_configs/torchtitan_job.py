"""torchtitan's facts as a job: degrees, FSDP, recompute, schedule, and the modules of each model part.

Rules are those of `torchtitan/distributed/parallel_dims.py` and `pipeline_parallel.py`; where parts are not listed the
layers are divided as it divides them. Leaves out gradient accumulation over several runs of the pipeline.
"""

from collections.abc import Mapping
from pathlib import Path

from costmodel.errors import InvalidInput
from costmodel.model.graph import OperatorGraph
from costmodel.stages.config import StageConfig
from planner.export.job_configs.facts import Facts
from planner.export.job_configs.interpreted import (
    Stages,
    TodaysJob,
    layers_of,
    optimizer_of,
    replicas,
    stages_by_parts,
    world_size,
)
from planner.export.job_configs.layer_rows import torchtitan_counts, with_ends
from planner.export.read_layout import stages_of_rows
from planner.graph.model_parts import model_part_names
from planner.question.effort import check_reach
from simulator.schedules.kind import Orders
from simulator.torch_csv import read_torch_csv

SCHEDULES: Mapping[str, tuple[str, int]] = {
    "1f1b": ("1f1b", 1),
    "gpipe": ("gpipe", 1),
    "interleaved1f1b": ("interleaved-1f1b", 2),
    "loopedbfs": ("looped-bfs", 2),
    "interleavedzerobubble": ("interleaved-zb", 2),
    "zbvzerobubble": ("zb-v", 2),
    "dualpipev": ("dualpipe-v", 2),
    "pipelineschedulemulti": ("", 2),
    "pipelineschedulesingle": ("", 1),
}
"""torch's schedules: ours, and the stages a rank where nothing says them; orders of the last two are a CSV's."""
V_SHAPED = ("zb-v", "dualpipe-v")
NO_RESHARD = {"never": 2, "always": 3}


def torchtitan_job(facts: Facts, graph: OperatorGraph, given_world: int, folder: Path) -> TodaysJob:
    """Return the job of a torchtitan configuration on a model; `folder` is where its CSV of orders lies.

    Raises
    ------
    InvalidInput, UsageError, DoesNotMatch
        For keys that contradict each other, or the model.
    """
    places, tensor, context = (facts.count(name, 1, 1) for name in ("stages", "tensor", "context"))
    copies, shard = facts.count("replicate", 1, 1), facts.count("shard", -1, -1)
    world = world_size(facts, given_world) or (copies * shard * places * tensor * context if shard > 0 else 0)
    data = replicas(world, places * tensor * context)
    shard = data // copies if shard < 1 else shard
    if copies * shard != data:
        raise InvalidInput(
            f"{copies} copies of {shard} shards, and {world} devices leave {data} for the two; correct one of them"
        )
    config = StageConfig(
        data=data,
        tensor=tensor,
        sequence=tensor if facts.flag("sequence_parallel", True) and tensor > 1 else 1,
        context=context,
        expert=facts.count("expert", 1, 1),
        expert_tensor=_expert_tensor(facts),
        zero=_zero(facts, shard * context, places),
        recompute=facts.text("recompute", "selective", ("selective", "full", "none")),
        offload="parameters" if facts.flag("cpu_offload") else "none",
        shard_group=shard,
    )
    size, batch = _batch(facts, data, places)
    check_reach(world, batch, size)
    schedule, stages, home, orders = _pipeline(facts, graph, places, folder)
    return TodaysJob(
        "torchtitan",
        config,
        places,
        size,
        batch,
        schedule,
        stages,
        home,
        _precision(facts),
        _optimizer(facts),
        {"dispatcher": DISPATCHED[facts.text("dispatcher", "standard", DISPATCHED)]} if config.expert > 1 else {},
        orders,
    )


DISPATCHED = {"standard": "alltoall", "deepep": "flex", "hybridep": "flex"}
"""torchtitan's ways of tokens to experts, the first where nothing is said."""


def _expert_tensor(facts: Facts) -> int:
    """Return how many ranks divide each expert; 0 for the tensor ranks, as where experts do not spread."""
    if facts.count("expert", 1, 1) > 1:
        return facts.count("expert_tensor", 1, 1)
    facts.leave("expert_tensor", "torchtitan reads it with expert parallelism alone")
    return 0


def _zero(facts: Facts, shard: int, places: int) -> int:
    reshard = facts.text("reshard", "default", ("default", *NO_RESHARD))
    if shard == 1:
        facts.leave("reshard", "nothing is sharded")
        return 0
    return NO_RESHARD.get(reshard, 2 if places > 1 else 3)


def _batch(facts: Facts, data: int, places: int) -> tuple[int, int]:
    """Return the micro-batch size and the batch of a step."""
    local = facts.count("local_batch", 8, 1)
    batch = facts.count("global_batch", -1, -1)
    batch = local * data if batch < 1 else batch
    size = facts.count("microbatch_size", 1, 1) if places > 1 else local
    if places == 1:
        facts.leave("microbatch_size", "there is no pipeline")
    if local % size:
        facts.fail(
            "microbatch_size" if facts.said("microbatch_size") else "local_batch", f"{size} does not divide {local}"
        )
    if batch % (local * data):
        facts.fail("global_batch", f"it is no multiple of {local} samples on {data} replicas")
    if places > 1 and batch > local * data:
        why = f"its {batch // (local * data)} runs of the pipeline are priced as one, which fills once"
        facts.ignored.append((facts.values["global_batch"].key, why))
    return size, batch


def _pipeline(
    facts: Facts, graph: OperatorGraph, places: int, folder: Path
) -> tuple[str, Stages, tuple[int, ...], Orders]:
    """Return the schedule, what each stage holds, its place, and orders where a CSV gives them."""
    name = facts.text("schedule", "1F1B")
    if name.lower() not in SCHEDULES:
        facts.fail("schedule", f"torch's schedules are {', '.join(SCHEDULES)}")
    schedule, each = SCHEDULES[name.lower()]
    if places == 1:
        for fact in (
            "schedule",
            "schedule_csv",
            "modules",
            "layers_per_stage",
            "first_less",
            "last_less",
            "split_points",
        ):
            facts.leave(fact, "there is no pipeline")
        return "1f1b", (tuple(range(len(graph.operators))),), (0,), ()
    orders: Orders = ()
    if facts.said("schedule_csv"):
        written = read_torch_csv(folder / facts.text("schedule_csv"))
        orders, home = written.orders, tuple(ranks[0] for ranks in written.graph.ranks)
        schedule = schedule or "torch-csv"
    stages = _stages(facts, graph, places, each, len(home) if orders else 0)
    if not schedule:
        facts.fail("schedule", "its orders are a CSV's; pipeline_parallel_schedule_csv is missing")
    if not orders:
        there = range(places)
        v_shaped = schedule in V_SHAPED and len(stages) == 2 * places
        home = (*there, *reversed(there)) if v_shaped else tuple(i % places for i in range(len(stages)))
    if len(stages) != len(home) or len(set(home)) != places:
        raise InvalidInput(f"{len(stages)} stages on {places} places, and the orders are of {len(home)} stages")
    return schedule, stages, home, orders


def _stages(facts: Facts, graph: OperatorGraph, places: int, each: int, num_ordered: int) -> Stages:
    if facts.said("modules"):
        return _listed(facts, graph)
    parts = layers_of(graph)
    num_layers = len(parts["t"])
    if facts.said("split_points"):
        return _split(facts, graph)
    less = (facts.count("first_less", 1), facts.count("last_less", 1))
    if max(less) > num_layers:
        facts.fail("first_less" if less[0] > num_layers else "last_less", f"there are {num_layers} layers")
    count = num_ordered or places * each
    if facts.said("layers_per_stage"):
        per_stage = facts.count("layers_per_stage", 1, 1)
        count = -(-(num_layers + sum(less)) // per_stage)
        if count % places:  # before the ends counted as layers
            count, less = -(-num_layers // per_stage), (0, 0)
        if count % places:
            facts.fail(
                "layers_per_stage", f"{num_layers} layers make {count} stages, which {places} places do not divide"
            )
    counts = torchtitan_counts(num_layers, count, *less)
    return tuple(stages_of_rows(with_ends(counts, len(parts["m"])), graph))


def _split(facts: Facts, graph: OperatorGraph) -> Stages:
    """Return stages that begin at the named modules."""
    value = facts.value("split_points")
    points = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    part_of = _own_names(graph)
    rows: list[list[str]] = [[]]
    for name, part in part_of.items():
        if name in points:
            rows.append([])
        rows[-1].append(part)
    unknown = [point for point in points if point not in part_of]
    if unknown:
        facts.fail("split_points", f"{unknown[0]!r} is no module of {graph.name}")
    return stages_by_parts(rows, graph)


def _listed(facts: Facts, graph: OperatorGraph) -> Stages:
    """Return the stages of listed modules, by torchtitan's names or the profile's own."""
    value, part_of = facts.value("modules"), _own_names(graph)
    own = {part: part for part in part_of.values()}
    rows: list[list[str]] = []
    for row in value if isinstance(value, list) else []:
        names = row if isinstance(row, list) else [row]
        unknown = [name for name in names if name not in part_of and name not in own]
        if unknown:
            facts.fail("modules", f"{unknown[0]!r} is no module of {graph.name}; it has {', '.join(list(part_of)[:4])}")
        rows.append([part_of.get(name) or own[name] for name in names])
    if not rows:
        facts.fail("modules", "a list of the modules of each model part is needed")
    return stages_by_parts(rows, graph)


def _own_names(graph: OperatorGraph) -> dict[str, str]:
    """Return the parts of a model by torchtitan's names of them, in order; the head by that before 0.3.0, too."""
    parts = [part for part in dict.fromkeys(graph.parts) if part]
    found = dict(zip(model_part_names([parts])[0][0], parts, strict=True))
    return {**found, **({"output": found["lm_head"]} if "lm_head" in found and "output" not in found else {})}


def _precision(facts: Facts) -> str:
    converters = facts.entry("converters")
    if converters and any(word in str(converters.value) for word in ("float8", "mx")):
        return "fp8"
    facts.leave("converters", "none of them changes the precision of matrix products")
    if facts.said("dtype"):
        facts.leave("dtype", "the precision is that of mixed_precision_param")
    return {"bfloat16": "bf16", "float32": "fp32"}[facts.text("mixed_precision", "bfloat16", ("bfloat16", "float32"))]


def _optimizer(facts: Facts) -> str:
    for fact, why in (
        ("reduce_in", "gradients are priced as the trainer usually sums them (plan --gradient-bytes)"),
        ("selective_option", "selective recompute is priced as by operators (plan --selective)"),
        ("expert_overlap", "experts' transfers are priced as overlapping nothing"),
    ):
        facts.leave(fact, why)
    name = facts.text("optimizer", "AdamW").lower()
    return "sgd" if name == "sgd" else optimizer_of(facts, name)
