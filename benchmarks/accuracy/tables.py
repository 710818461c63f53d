"""Published tables of measured jobs, read as jobs: which flags a row means, and what it was run by.

What a table's own text says beside its columns stands here once, with the table: vTrain (Bang et al., MICRO 2024:
fp16, full recompute, 1F1B, no overlap, 4 x 200 Gb/s a node), Korthikanti et al. (2022), torchtitan's published
benchmarks (500 W H100, 400 Gb/s a GPU), SimuMax's B200 release, Megatron-Bridge's performance summary. A row that says
too little is skipped with its reason.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from benchmarks.peer_problems.aceso.job import AcesoJob
from costmodel.architectures.configs import Config, make_config
from costmodel.architectures.table import find
from costmodel.documents import document
from costmodel.errors import InvalidInput
from costmodel.files import Node, read_toml
from costmodel.stages.strategies.memory import KINDS
from planner.measured.job import MeasuredJob
from planner.measured.runs import MeasuredRun, job_of, rows_of_runs
from planner.question.space import Space

Line = Mapping[str, str]
RUNS = "measured_runs.csv"
"""Beside a table: those of its rows that have a batch and a shape, in the columns of `penstock fit`."""
GIVEN = (
    "validation_vtrain_single.csv", "validation_vtrain_multi.csv", "validation_tables.csv",
    "megatron_bridge_anchors.csv", "more/megatron_bridge_25.11_to_26.02.csv", "more/measured_runs.csv",
    "validation_aceso_measured.csv",
)  # fmt: skip
"""Tables of steps that are given, in the folder of published data."""
SOURCES = Path(__file__).with_name("sources.toml")
SEVERAL_DEVICES = ("llm-foundry MPT", "IBM fms-fsdp")
"""Sources of which each device's rows are told apart, too."""


@dataclass(frozen=True)
class Row:
    """A line of a table: its sources (a part of a source is one, too), the job, or why it is none."""

    name: str
    sources: tuple[str, ...]
    job: MeasuredJob | AcesoJob | None = None
    why_not: str = ""


def read(path: Path) -> list[Row]:
    """Read a table by its columns.

    Raises
    ------
    InvalidInput
        When no known table has such columns.
    """
    lines = _lines(path)
    for column, reader in READERS.items():
        if lines and column in lines[0]:
            return list(map(_with_trainer, reader(lines, path)))
    raise InvalidInput(
        f"{path}: no known table has these columns; one is told by its column {', '.join(map(repr, READERS))}"
    )


@cache
def trainers_of_sources() -> Mapping[str, str]:
    """Return the trainer of each source (`sources.toml`)."""
    rows = _sources()["source"].entries()
    return {name: node.members(("trainer", "kernels", "supports"))["trainer"].text() for name, node in rows.items()}


def told_of(source: str, case: str) -> Mapping[str, str]:
    """Return the cells that a source's own text tells of a case otherwise than the given table, or in addition."""
    matching = (cells for own, cases, cells in corrections() if own == source and fnmatchcase(case, cases))
    return dict(item for cells in matching for item in cells.items())


@cache
def corrections() -> tuple[tuple[str, str, Mapping[str, str]], ...]:
    """Return source, pattern of cases, and cells of each correction (`sources.toml`)."""
    rows = [node.members(("source", "case", "cells", "supports")) for node in _sources()["correction"].items()]
    return tuple(
        (
            row["source"].text(),
            row["case"].text(),
            {name: cell.text() for name, cell in row["cells"].entries().items()},
        )
        for row in rows
    )


def _sources() -> Mapping[str, Node]:
    return document(read_toml(SOURCES), "penstock-sources", 1, ("source", "correction"))


def _with_trainer(row: Row) -> Row:
    """Return a row whose job names its source's trainer in the version that ran it, where the row itself names none."""
    source, job = row.sources[0], row.job
    if not isinstance(job, MeasuredJob) or source not in trainers_of_sources():
        return row
    trainer = trainers_of_sources()[source]
    told = job.trainer == "torchtitan" and trainer == "torchtitan-2024"
    return replace(row, job=replace(job, source=source, trainer=job.trainer if told else trainer))


def _lines(path: Path) -> list[Line]:
    try:
        with path.open(newline="") as file:
            return [{name.strip(): value for name, value in line.items() if name} for line in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as a table: {error}") from None


def _vtrain(lines: Sequence[Line]) -> Iterator[Row]:
    multi = "Parameters (billion)" in lines[0]
    source = f"vTrain {'multi' if multi else 'single'}-node"
    for line in lines:
        gpt, size = _gpt(line, "hidden size", "# layers", "attention heads", "sequence length"), int(line["# GPUs"])
        tensor, data, stages = (int(line[f"{kind} parallelism"]) for kind in ("tensor", "data", "pipeline"))
        batch, micro = int(line["global batch"]), int(line["micro batch"])
        name = f"h{line['hidden size']} l{line['# layers']} b{batch} m{micro} t{tensor} d{data} p{stages}"
        job = MeasuredJob(
            name, gpt.model_type + name.split(" b")[0] + line["sequence length"], gpt, "a100-sxm-80", size, batch,
            micro, int(line["sequence length"]),
            Space(stages, 1, data, tensor, False, 1, 1, 0, "full", "none"), "fp16", "megatron-2022",
            step_ns=_ns(line["iteration time (ms)"], 1e6), network_gbs=100.0,
            group=f"{name.split(' b')[0]} b{batch} n{size}",
        )  # fmt: skip
        yield Row(name, (source,), job)


def _gpt(line: Line, hidden: str, layers: str, heads: str, sequence: str) -> Config:
    values = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": sequence}
    return make_config("gpt2", {**{key: int(line[column]) for key, column in values.items()}, "vocab_size": 51200})


def _tables(lines: Sequence[Line], path: Path) -> Iterator[Row]:
    runs = path.with_name(RUNS)
    asked = (
        {(run.cells.get("source"), run.cells.get("case")): run for run in rows_of_runs(runs)} if runs.exists() else {}
    )
    for line in lines:
        if (line["source"], line["case"]) in asked:
            yield _of_run(asked[line["source"], line["case"]], path)
            continue
        source = line["source"].split()[0]
        name = f"{line['model']} {line['case']}"
        reader = {"Korthikanti": _korthikanti, "torchtitan": _torchtitan, "SimuMax": _simumax}.get(source)
        if reader is None:
            yield Row(name, (source,), why_not=f"nothing is known here of how {source} ran its jobs")
        else:
            yield reader(name, line)


def _korthikanti(name: str, line: Line) -> Row:
    gpt = _gpt(line, "hidden", "layers", "heads", "seq")
    job = _of_table(name, line, gpt, "a100-sxm-80", "fp16", "megatron-2022", line["seq_parallel"] == "1")
    if job.num_devices < 2240 and not line["vocab"]:
        return Row(name, ("Korthikanti layer",), _layer(job, line))
    return Row(name, ("Korthikanti",), job)


def _layer(job: MeasuredJob, line: Line) -> MeasuredJob:
    """Return the job whose middle stage is the one layer that was measured."""
    config = make_config("gpt2", {**job.config.values, "n_layer": 3})
    forward, backward = (float(found) for found in re.findall(r"([\d.]+) ms", line["iter_s_kind"]))
    return replace(
        job, model=f"{job.model} layer", config=config, space=replace(job.space, stages=3),
        num_devices=3 * job.num_devices, forward_ns=round(forward * 1e6), backward_ns=round(backward * 1e6), step_ns=0,
        batch=3 * job.microbatch_size,
    )  # fmt: skip


def _torchtitan(name: str, line: Line) -> Row:
    fp8 = "float8" in line["precision"]
    sources = ("torchtitan", "torchtitan fp8" if fp8 else "torchtitan bf16")
    if not line["global_batch"]:
        return Row(name, sources, why_not="its batch is not given")
    size = line["model"].rpartition("-")[2].lower()
    config = find(f"llama3-{size}").config()
    newer = line["gpu"].startswith("H200")
    device, trainer = ("h200-sxm-141", "torchtitan") if newer else ("h100-96-500w", "torchtitan-2024")
    job = _of_table(name, line, config, device, "fp8" if fp8 else "bf16", trainer, int(line["tp"]) > 1)
    stages = (job.space.stages or 1) * (job.space.chunks or 1)
    if stages > 1:  # split into as many micro-batches as there are stages, in 2024's versions
        job = replace(job, microbatch_size=max(1, job.batch // (job.space.data or 1) // stages))
    # between micro-batches of a pipeline gradients and gathered parameters stay whole
    zero = 3 if stages == 1 else 1
    eager = not fp8 and line["case"] in ("FSDP", "FSDP 128gpu")
    habits: tuple[tuple[str, object], ...] = (("fused", False),) if eager else ()
    habits += (("fp8_recipe", "rowwise"),) if "rowwise" in line["case"] else ()
    habits += (("overlap_tensor", True),) if "async" in line["case"].lower() else ()
    return Row(name, sources, replace(job, space=replace(job.space, zero=zero), habits=habits, network_gbs=400.0))


def _simumax(name: str, line: Line) -> Row:
    model, layers = line["model"], int(line["layers"])
    known = {"deepseekv2": "deepseek-v2", "deepseekv3": "deepseek-v3"}.get(model)
    if known:
        row = find(known).config()
        config = make_config(
            row.model_type,
            {**row.values, "num_hidden_layers": layers, "first_k_dense_replace": 1}
            | ({"num_nextn_predict_layers": 0} if known == "deepseek-v3" else {}),
        )
    else:
        config = make_config(
            "llama",
            {"hidden_size": int(line["hidden"]), "intermediate_size": int(line["ffn"]), "num_hidden_layers": layers,
             "num_attention_heads": int(line["heads"]), "num_key_value_heads": int(line["kv_heads"]),
             "vocab_size": int(line["vocab"]), "max_position_embeddings": 131072, "tie_word_embeddings": False},
        )  # fmt: skip
    job = _of_table(name, line, config, "b200-sxm-180", "bf16", "megatron", int(line["tp"]) > 1)
    sources = ("SimuMax", "SimuMax pipeline") if int(line["pp"]) > 1 else ("SimuMax",)
    return Row(name, sources, replace(job, space=replace(job.space, zero=1)))


def _of_table(
    name: str, line: Line, config: Config, device: str, precision: str, trainer: str, sequence_parallel: bool
) -> MeasuredJob:
    tensor, stages, data, context = (_number(line[key]) for key in ("tp", "pp", "dp", "cp"))
    recompute = next(
        kind for kind in ("full", "none", "selective") if kind in line["recompute"].replace("SAC", "selective")
    )
    micro = _number(line["micro_batch"])
    batch, schedule = _number(line["global_batch"], micro), line["schedule"].lower()
    chunks = _number(line["vpp"], 2 if "interleaved" in schedule else 1)
    return MeasuredJob(
        name, f"{line['model']} {line['layers']}x{line['hidden']}", config, device, int(line["n_gpus"]), batch, micro,
        int(line["seq"]),
        Space(stages, chunks, data, tensor, sequence_parallel, context, _number(line["ep"]), 0, recompute, "none"),
        precision, trainer, step_ns=_ns(line["iter_s"], 1e9),
        peak_bytes=round(float(line["mem_gib"] or 0) * 2**30) if "measured" in line["mem_kind"] else 0,
        memory_kind=KINDS["reserved" in line["mem_kind"]],
        group=f"{line['model']} {line['seq']} b{batch} n{line['n_gpus']}",
    )  # fmt: skip


SYSTEMS = {
    "DGX-GB300": "gb300-nvl72", "DGX-GB200": "gb200-nvl72", "DGX-B300": "b300-sxm-288", "DGX-B200": "b200-sxm-180",
    "DGX-H100": "h100-sxm-80", "H100 Grand Teton": "h100-sxm-80",
}  # fmt: skip
MODELS = {
    "LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3-405b", "DeepSeekV3": "deepseek-v3", "Kimi_K2": "kimi-k2",
    "Qwen3_235B_a22B": "qwen3-235b-a22b", "Qwen3_30B_a3B": "qwen3-30b-a3b", "GPT OSS 120B": "gpt-oss-120b",
}  # fmt: skip


RECIPES_OF = {
    "BF16": ("bf16", ""), "FP8": ("fp8", "tensorwise"), "MXFP8": ("fp8", "mxfp8"), "NVFP4": ("nvfp4", ""),
}  # fmt: skip
"""Precisions of Megatron-Bridge's tables; FP8 is scaled as it is cast (scripts/performance/configs: fp8_cs)."""


def _bridge(lines: Sequence[Line]) -> Iterator[Row]:
    newest: dict[tuple[str, ...], str] = {}
    for line in lines:  # newest first
        newest.setdefault((line["model"], line["system"], line["precision"]), line["release"])
    for line in lines:
        model = MODELS.get(line["model"].split(" Interleaved")[0], "")
        release = line["release"].split()[0]
        name = f"{line['model']} {line['system']} {line['precision']} {release}"
        sources = ("Megatron-Bridge", f"Megatron-Bridge {'.'.join(release.split('.')[:2])}")
        precision, recipe = RECIPES_OF.get(line["precision"], ("", ""))
        why_not = "LoRA freezes the model, which is not described" if "LoRA" in line["section"] else ""
        why_not = why_not or ("" if precision else f"{line['precision']} is not priced")
        why_not = why_not or ("" if model else f"{line['model']} is not described")
        if why_not:
            yield Row(name, sources, why_not=why_not)
            continue
        is_newest = newest[line["model"], line["system"], line["precision"]] == line["release"]
        job = _of_bridge(name, line, model, precision, recipe)
        ranked = f"{line['system']} {line['precision']}" if is_newest else ""
        yield Row(name, sources, replace(job, ranked_with=ranked))


def _of_bridge(name: str, line: Line, model: str, precision: str, recipe: str) -> MeasuredJob:
    tensor, stages, context, chunks, expert = (_number(line[key]) for key in ("tp", "pp", "cp", "vp", "ep"))
    gpus, batch, sequence = int(line["gpus"]), int(line["gbs"]), int(line["seq"])
    rate = float(line["tokens_per_s_per_gpu"]) * gpus
    cells = {
        "model": model, "device": SYSTEMS[line["system"]], "devices": gpus, "batch": batch, "sequence": sequence,
        "microbatch_size": _number(line["mbs"]), "precision": precision, "step_time_ms": 1e3 * batch * sequence / rate,
        "stages": stages, "chunks": chunks, "tensor": tensor, "sequence_parallel": int(tensor > 1), "context": context,
        "expert": expert, "expert_tensor": 1 if expert > 1 else tensor, "zero": 1,
        **({"fp8_recipe": recipe} if recipe else {}),
    }  # fmt: skip  # no recipe divides an expert (expert_tensor_parallel_size = 1 in scripts/performance/configs)
    told = told_of("Megatron-Bridge", name)
    return replace(job_of({**{key: str(value) for key, value in cells.items()}, **told}, Path()), name=name, group="")


ARCHIVE, STEPS = "aceso_a10g_l4.tar.gz", "validation_aceso_measured.csv"
"""Beside Aceso's tables: what operators took, and the table that has each stage's degrees."""


def _aceso(lines: Sequence[Line], path: Path) -> Iterator[Row]:
    for line in lines:
        job = replace(
            _of_aceso(line, path), step_ns=_ns(line["measured_iter_ms"], 1e6),
            group=f"{line['hardware']} {line['model_size']} b{line['global_batch']} n{line['n_gpus']}",
        )  # fmt: skip
        yield Row(f"{job.device} {job.config}", ("Aceso", f"Aceso {job.device}"), job)


def _aceso_stages(lines: Sequence[Line], path: Path) -> Iterator[Row]:
    """Yield the peak of each rank, and forward and backward of each stage as its first rank has them."""
    steps = path.with_name(STEPS)
    degrees = {
        (row.job.device, row.job.config): line["tp_per_stage"].split("/")
        for row, line in zip(read(steps), _lines(steps), strict=True)
        if isinstance(row.job, AcesoJob)
    } if steps.exists() else {}  # fmt: skip
    known: set[AcesoJob] = set()
    for line in lines:
        job = replace(_of_aceso(line, path), stage=int(line["stage"]))
        first = job not in known
        known.add(job)
        one_gpu = degrees.get((job.device, job.config), [])[job.stage : job.stage + 1] == ["[1]"]
        sources = ("Aceso stages", f"{job.device} stages", *([f"{job.device} on 1 GPU"] if one_gpu else []))
        yield Row(
            f"{job.device} {job.config} stage {job.stage} rank {line['rank']}", sources,
            replace(
                job, peak_bytes=round(float(line["max_allocated_mb"]) * 2**20),
                forward_ns=_ns(line["fwd_compute_ms"], 1e6) if first else 0,
                backward_ns=_ns(line["bwd_compute_ms"], 1e6) if first else 0,
            ),
        )  # fmt: skip


def _of_aceso(line: Line, path: Path) -> AcesoJob:
    return AcesoJob(path.with_name(ARCHIVE), line["hardware"], line["model_size"], line["config"])


def _runs(path: Path) -> Iterator[Row]:
    """Yield the rows of a table in the columns of `penstock fit`."""
    for run in rows_of_runs(path):
        yield _of_run(run, path)


def _of_run(run: MeasuredRun, path: Path) -> Row:
    source, case = run.cells.get("source", path.stem), run.cells.get("case", f"row {run.number}")
    sources = (source, f"{source} {run.cells['device']}") if source in SEVERAL_DEVICES else (source,)
    told = told_of(source, case)
    return Row(case, sources, job_of({**run.cells, **told}, path.parent) if told else run.job, run.why_not)


READERS: Mapping[str, Callable[[Sequence[Line], Path], Iterator[Row]]] = {
    "step_time_ms": lambda _, path: _runs(path),
    "release": lambda lines, _: _bridge(lines),
    "iteration time (ms)": lambda lines, _: _vtrain(lines),
    "source": _tables,
    "stage": _aceso_stages,
    "hardware": _aceso,
}
"""By a column that no table has that stands behind it here."""


def _number(text: str, otherwise: int = 1) -> int:
    return int(text) if text.isdigit() else otherwise


def _ns(text: str, scale: float) -> int:
    return round(float(text) * scale)
