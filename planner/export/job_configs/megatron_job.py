"""Megatron-LM's and Megatron-Bridge's facts as a job: degrees, recompute, and stages by numbers of layers or a layout.

Rules are those of `megatron/training/arguments.py` and `megatron/core/transformer/transformer_block.py`. A layout is a
string, or a list of what each stage holds. Leaves out what Megatron refuses by itself.
"""

from costmodel.errors import InvalidInput
from costmodel.importers.block_yaml import read_flow_list
from costmodel.model.graph import OperatorGraph
from costmodel.roofline.narrow import RECIPES
from costmodel.stages.config import StageConfig
from costmodel.stages.strategies.trainers import DISPATCHERS
from planner.export.job_configs.facts import Facts
from planner.export.job_configs.interpreted import (
    TodaysJob,
    layers_of,
    optimizer_of,
    precision_of,
    replicas,
    world_size,
)
from planner.export.job_configs.layer_rows import megatron_counts, with_ends
from planner.export.read_layout import read_rows
from planner.graph.layout import Rows, layout_text, parse_layout
from planner.plan.rank_order import PIPELINE_INSIDE, RANK_ORDER
from planner.question.effort import check_reach

LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""What Bridge's lists call what a stage holds."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FLASH = {"flash": True, "fused": True, "auto": True, "unfused": False, "local": False}


def megatron_job(facts: Facts, graph: OperatorGraph, given_world: int, *, by_recipe: bool) -> TodaysJob:
    """Return the job of Megatron's arguments on a model; `by_recipe` says that Bridge's recipe, not told, is below.

    Raises
    ------
    InvalidInput, UsageError, DoesNotMatch
        For arguments that contradict each other, or the model.
    """
    places, tensor, context = (facts.count(name, 1, 1) for name in ("stages", "tensor", "context"))
    data = replicas(world_size(facts, given_world), places * tensor * context)
    if not facts.said("microbatch_size"):
        raise InvalidInput("the job does not say its micro-batch size, which Megatron needs")
    size = facts.count("microbatch_size", 1, 1)
    batch = facts.count("global_batch", size * data, 1)
    check_reach(places * tensor * context * data, batch, size)
    offload = "optimizer" if facts.flag("offload_optimizer") else "none"
    config = StageConfig(
        data=data,
        tensor=tensor,
        sequence=tensor if facts.flag("sequence_parallel") and tensor > 1 else 1,
        context=context,
        expert=facts.count("expert", 1, 1),
        expert_tensor=facts.count("expert_tensor", tensor, 1),
        zero=_zero(facts) if data * context > 1 else 0,
        recompute=_recompute(facts),
        offload=offload,
        shard_group=_shard_group(facts, data),
        offload_fraction=facts.part("offload_fraction") if offload != "none" else 1.0,
    )
    rows = _rows(facts, graph, places)
    if batch % (size * data):
        facts.fail("global_batch", f"it is no multiple of {size} x {data} replicas")
    given = read_rows(rows, layout_text(rows), graph, places, config, batch // (size * data))
    if given.orders:
        why = f"{len(rows) - len(given.stages)} of its stages hold nothing and are none of the plan's"
        said = next(filter(facts.said, ("layout", "first_layers", "last_layers")))
        facts.ignored.append((facts.values[said].key, why))
    if facts.count("group_size", places) != places:
        facts.leave("group_size", "virtual stages take turns after as many micro-batches as there are places")
    return TodaysJob(
        "megatron",
        config,
        places,
        size,
        batch,
        given.schedule,
        given.stages,
        given.places,
        _precision(facts, "" if by_recipe else "fp32"),
        _optimizer(facts),
        _habits(facts) | (_of_experts(facts, by_recipe=by_recipe) if config.expert > 1 else {}),
        given.orders,
        PIPELINE_INSIDE if facts.flag("pipeline_inside") else RANK_ORDER,
    )


def _zero(facts: Facts) -> int:
    if facts.flag("fsdp"):
        return 3
    sharded = int(facts.flag("sharded_optimizer"))
    if not facts.flag("megatron_fsdp"):
        facts.leave("sharding", "Megatron-FSDP alone reads it, and is not on")
        return sharded
    return max(SHARDING[facts.text("sharding", "no_shard", SHARDING)], sharded)


def _shard_group(facts: Facts, data: int) -> int:
    """Return how many replicas share one instance of the distributed optimizer."""
    instances = facts.count("optimizer_instances", 1, 1)
    if data % instances:
        facts.fail("optimizer_instances", f"it does not divide {data} replicas")
    return data // instances


def _recompute(facts: Facts) -> str:
    full, selective = facts.flag("recompute_full"), facts.flag("recompute_selective")
    found = facts.text("recompute", "full" if full else "selective" if selective else "none", ("full", "selective"))
    whole = (facts.text("recompute_method", "uniform"), facts.count("recompute_layers", 1)) == ("uniform", 1)
    if found != "full" or not whole:
        for fact in ("recompute_method", "recompute_layers"):
            facts.leave(
                fact, "the plan runs every layer again by itself" if found == "full" else "nothing is run again so"
            )
    if found != "selective" or facts.said("recompute_modules"):
        facts.leave("recompute_modules", "selective recompute is priced as that of attention (plan --selective)")
    return found


def _rows(facts: Facts, graph: OperatorGraph, places: int) -> Rows:
    """Return what each stage holds."""
    parts = layers_of(graph)
    num_layers, num_mtp = len(parts["t"]), len(parts["m"])
    chunks = facts.count("chunks", 1, 1)
    first, last = (facts.count(name) if facts.said(name) else None for name in ("first_layers", "last_layers"))
    ends = (int(facts.flag("embedding_counts")), int(facts.flag("loss_counts")))
    if facts.said("layout"):
        rows = _layout(facts)
        if len(rows) % places:
            facts.fail("layout", f"its {len(rows)} stages do not divide over {places} places")
        if facts.said("chunks") and chunks * places != len(rows):
            facts.fail("layout", f"it has {len(rows)} stages, and {places} places of {chunks} virtual stages are said")
        if first is not None or last is not None or any(ends):
            facts.fail("layout", "numbers of layers at the ends are said as well; Megatron takes one of the two")
        return rows
    if facts.said("layers_per_chunk"):
        each = facts.count("layers_per_chunk", 1, 1)
        if (num_layers + sum(ends)) % (places * each):
            facts.fail("layers_per_chunk", f"{num_layers} layers on {places} places do not divide by it")
        chunks = (num_layers + sum(ends)) // (places * each)
    return with_ends(megatron_counts(num_layers, places, chunks, first, last, ends), num_mtp)


def _layout(facts: Facts) -> Rows:
    """Return the rows of a layout, a string or a list of lists."""
    value = facts.value("layout")
    if isinstance(value, str) and value.startswith("["):
        value = read_flow_list(value)
    if isinstance(value, str):
        return parse_layout(value.strip())
    found = []
    for row in value if isinstance(value, list) else [value]:
        names = row if isinstance(row, list) else [row]
        unknown = [name for name in map(str, names) if name not in LETTERS and name not in LETTERS.values()]
        if unknown:
            facts.fail("layout", f"a stage holds {unknown[0]!r}; {', '.join(LETTERS)} are known")
        found.append("".join(LETTERS.get(name, name) for name in map(str, names)))
    if not found:
        facts.fail("layout", "it has no stage")
    return tuple(found)


def _precision(facts: Facts, unsaid: str) -> str:
    mixed = facts.text("mixed_precision")
    known = [name for name in ("nvfp4", "fp8", "bf16", "fp16") if name in mixed]
    if not known:
        facts.leave("mixed_precision", "it is not priced: the precision is the profile's, or what other keys say")
        known = [""]
    return precision_of(facts, known[0] or unsaid)


def _optimizer(facts: Facts) -> str:
    name = facts.text("optimizer", "adam").lower()
    if name == "sgd":
        return "momentum" if facts.number("momentum", 0.9) else "sgd"
    facts.leave("momentum", "the optimizer has none")
    found = optimizer_of(facts, name)
    return _adam(facts) if found == "adam" else found


def _adam(facts: Facts) -> str:
    """Return Adam with moments of the width that both are said to have; of two widths the wider one."""
    moments = [facts.text(name, "fp32", STATE_BITS) for name in ("first_moment", "second_moment")]
    bits = max(map(STATE_BITS.__getitem__, moments)) if facts.flag("own_state_dtypes") else 32
    return {16: "adam-16bit", 8: "adam-8bit"}.get(bits, "adam")


STATE_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}
STATE_BITS |= {"torch.float32": 32, "torch.bfloat16": 16, "torch.float16": 16, "torch.uint8": 8}
"""Bits of an element of a moment, by its dtype."""


MIXED = (
    ("fp8_delayed_scaling", "delayed"), ("fp8_current_scaling", "tensorwise"), ("mxfp8", "mxfp8"),
    ("fp8_subchannel_scaling", "blockwise"),
)  # fmt: skip
"""Parts of Megatron-Bridge's names of mixed precisions, and the scales of fp8 that these have."""


DISPATCHED = dict(zip(DISPATCHERS, DISPATCHERS, strict=True)) | {"alltoall_seq": "alltoall"}
"""Megatron's dispatchers of tokens: the last is an older one's name."""


def _of_experts(facts: Facts, *, by_recipe: bool) -> dict[str, object]:
    """Return how tokens reach experts; Megatron-LM gathers them where nothing is said (`transformer_config.py`)."""
    found: dict[str, object] = (
        {"overlap_experts": facts.flag("overlap_experts")} if facts.said("overlap_experts") else {}
    )
    if facts.said("dispatcher") or not by_recipe:
        found["dispatcher"] = DISPATCHED[facts.text("dispatcher", "allgather", DISPATCHED)]
    return found


def _habits(facts: Facts) -> dict[str, object]:
    """Return the habits that the job tells otherwise than the trainer usually has them."""
    found: dict[str, object] = {
        name: facts.flag(name) for name in ("overlap", "overlap_gathers", "flash") if facts.said(name)
    }
    if facts.said("attention"):
        name = str(facts.value("attention")).rpartition(".")[2].lower()
        if name not in FLASH:
            facts.fail("attention", f"allowed are {', '.join(FLASH)}")
        found["flash"] = FLASH[name]
    scaled = [recipe for words, recipe in MIXED if words in facts.text("mixed_precision")]
    if facts.said("fp8_recipe") or scaled:
        found["fp8_recipe"] = facts.text("fp8_recipe", scaled[0] if scaled else "", RECIPES)
    if facts.said("gradients_fp32"):
        found["gradient_bytes"] = 4 if facts.flag("gradients_fp32") else 2
    if facts.flag("gradients_bf16"):
        found["gradient_bytes"] = 2
    if facts.said("fused_accumulation") or facts.flag("unfused_accumulation"):
        found["summed_in_place"] = facts.flag("fused_accumulation") and not facts.flag("unfused_accumulation")
    return found
