"""Random plans in a line, and the targets' own readers of what is exported of them, for `test_export.py`."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from costmodel.errors import DoesNotMatch, PenstockError
from costmodel.stages.config import StageConfig
from planner.export.forms import export
from planner.export.given import Given, given_plan
from planner.graph.layout import layout_problem, layout_text, parse_layout
from planner.plan import Plan
from planner.question.pipeline_support import FORMS, not_taken
from planner.question.problem import Problem
from tests.support.described_models import described

PLACEMENTS = {
    "line": ("gpipe", "1f1b", "eager-1f1b", "graph-1f1b", "graph-eager-1f1b", "zb-h1", "zb-h2"),
    "loop": ("interleaved-1f1b", "looped-bfs", "interleaved-zb"),
    "wave": ("zb-v", "v-half", "v-min", "hanayo"),
}


def random_line(rng: Random) -> tuple[Problem, Plan] | None:
    """Return a plan of a small described model: a random cut, mostly between modules; None where none can be."""
    name = rng.choice(("llama", "gpt2", "mixtral"))
    placement = rng.choice(tuple(PLACEMENTS))
    places = rng.choice((2, 2, 3, 4)) if placement == "line" else 2
    chunks = {"line": 1, "loop": rng.choice((2, 3)), "wave": 2}[placement]
    data, tensor = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2))
    config = StageConfig(data, tensor, zero=rng.choice((0, 0, 1, 2, 3)) if data > 1 else 0,
                         recompute=rng.choice(("none", "none", "selective", "full")))  # fmt: skip
    batch = data * places * rng.choice((2, 3, 4))
    problem = Problem(described(name), None, places * data * tensor, batch, 1, target="any", trainer="megatron")
    count = places * chunks
    line = list(range(places))
    of_stage = line + line[::-1] if placement == "wave" else line * chunks
    given = Given("drawn", _cut(rng, problem, count), tuple(of_stage), config, rng.choice(PLACEMENTS[placement]))
    try:
        return problem, given_plan(problem, given)
    except (DoesNotMatch, PenstockError):
        return None


def _cut(rng: Random, problem: Problem, num_stages: int) -> tuple[tuple[int, ...], ...]:
    parts = problem.profile.graph.parts
    borders = [i for i in range(1, len(parts)) if parts[i] != parts[i - 1] or rng.random() < 0.02]
    ends = [0, *sorted(rng.sample(borders, num_stages - 1)), len(parts)]
    return tuple(tuple(range(a, b)) for a, b in pairwise(ends))


def random_lines(num_plans: int) -> Iterator[tuple[int, Problem, Plan]]:
    """Yield so many plans with their seeds."""
    seed = found = 0
    while found < num_plans:
        drawn = random_line(Random(seed))
        if drawn:
            found += 1
            yield seed, *drawn
        seed += 1


def failures(num_plans: int) -> list[str]:
    """Export random plans to every form; return what a target's reader does not take, or what is wrongly refused."""
    found = []
    for seed, _, plan in random_lines(num_plans):
        for form in FORMS:
            if form != "torch-csv" and (form in plan.runs_on) != (not not_taken(form, plan)):
                found.append(f"seed {seed}: runs_on {plan.runs_on}, and {form} says {not_taken(form, plan)!r}")
            try:
                texts = export(plan, form)
            except DoesNotMatch as error:
                if form in plan.runs_on or form not in str(error):
                    found.append(f"seed {seed}: {error}")
                continue
            try:
                READERS[form](plan, texts)
            except Exception as error:  # whatever a target's reader raises
                found.append(f"seed {seed}, {form}: {type(error).__name__}: {error}")
    return found


def random_rows(rng: Random) -> tuple[tuple[str, ...], int]:
    """Return a layout that Megatron-LM takes, and its places."""
    places, chunks = rng.randint(1, 8), rng.randint(1, 5)
    chunks += places * chunks == 1  # one stage needs no layout
    rows = ["t" * rng.choice((0, 1, 1, 2, 2, 3, 4, 7)) for _ in range(places * chunks)]
    rows = [rng.choice(rows[max(0, i - 1) : i + 1]) for i in range(len(rows))]
    predicts = "m" * rng.choice((0, 0, 1, 2)) if places > 1 else ""
    rows[0], rows[-1] = f"E{rows[0]}t", f"{rows[-1]}{predicts}L"
    return tuple(rows), places


def layout_failures(num_layouts: int) -> list[str]:
    """Write random layouts, and read them by our grammar and as Megatron-LM does."""
    found = []
    for seed in range(num_layouts):
        rows, places = random_rows(Random(seed))
        text = layout_text(rows)
        if not tuple(expanded(text)) == parse_layout(text) == rows or layout_problem(rows, places):
            found.append(f"seed {seed}: {text}")
    return found


def torch_reads(plan: Plan, texts: dict[str, str]) -> Any:
    """Have torch load, validate and lower the orders, and walk through them with all ranks at once."""
    from torch.distributed.pipelining import schedules

    rows = list(csv.reader(texts["schedule.csv"].splitlines()))
    config = plan.stages[0].config
    count = plan.batch.num_microbatches // config.data
    stage = SimpleNamespace(num_stages=len(plan.stages), group_size=len(rows), group_rank=0)
    runtime = schedules._PipelineScheduleRuntime([stage], n_microbatches=count)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(texts["schedule.csv"])
        runtime._load_csv(str(path))
    places = list(dict.fromkeys(stage.ranks for stage in plan.stages))
    assert runtime.stage_index_to_group_rank == {i: places.index(s.ranks) for i, s in enumerate(plan.stages)}
    assert [[str(action) for action in runtime.pipeline_order[rank]] for rank in range(len(rows))] == rows
    beside = (schedules.UNSHARD, schedules.RESHARD, schedules.REDUCE_GRAD)  # which torch's walk does not know
    lowered = runtime.pipeline_order_with_comms
    walked = {rank: [a for a in row if a.computation_type not in beside] for rank, row in lowered.items()}
    schedules._simulate_comms_compute(walked, runtime.stage_index_to_group_rank.__getitem__, len(plan.stages))
    return runtime


def _checkpointing() -> dict[str, Any]:
    """Return modules with what a recipe imports; `make trainers` holds recipes against torchtitan's own."""
    named = {name: SimpleNamespace(Config=SimpleNamespace) for name in ("FullAC", "SelectiveAC")}
    path = "torchtitan.distributed.activation_checkpoint"
    return {
        "torchtitan": SimpleNamespace(),
        "torchtitan.distributed": SimpleNamespace(),
        path: SimpleNamespace(**named),
    }


def torchtitan_reads(plan: Plan, texts: dict[str, str]) -> None:
    """Hold names against torchtitan's split, which keeps what is named of a model's children and of its lists."""
    config = SimpleNamespace(
        **{room: SimpleNamespace() for room in ("training", "parallelism", "activation_checkpoint")}
    )
    with TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
        space: dict[str, Any] = {"__file__": str(Path(folder) / "recipe.py")}
        exec(compile(texts["recipe.py"], "recipe.py", "exec"), space)
        with patch.dict(sys.modules, _checkpointing()):
            space["planned"](config)
    degrees = config.parallelism
    ranks = degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree * degrees.tensor_parallel_degree
    if len(plan.stages) == 1:
        return
    assert ranks * degrees.pipeline_parallel_degree * degrees.context_parallel_degree == len(plan.orders)
    parts = degrees.module_fqns_per_model_part
    names = [name for part in parts for name in part]
    assert len(parts) == len(plan.stages)
    assert len(set(names)) == len(names) == len({name for stage in plan.stages for name in stage.modules})
    assert all(re.fullmatch(r"\w+(\.\d+)?", name) for name in names)
    layers = [int(name.split(".")[1]) for name in names if "." in name]
    assert layers == sorted(layers) == list(range(len(layers)))
    assert len(parts) % degrees.pipeline_parallel_degree == 0
    torch_reads(plan, texts)


def expanded(layout: str) -> list[str]:
    """Read a layout as Megatron-LM does: commas out, then groups in parentheses, then single letters."""
    text = layout.replace(",", "")
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    assert set(text) <= set("EtmL|"), text
    return text.split("|")


def megatron_reads(plan: Plan, texts: dict[str, str]) -> None:
    """Hold the layout and flags against Megatron-LM's rules."""
    flags = dict(line.partition(" ")[::2] for line in texts["flags.txt"].splitlines())
    places = int(flags["--pipeline-model-parallel-size"])
    size = places * int(flags["--tensor-model-parallel-size"]) * int(flags["--context-parallel-size"])
    assert len(plan.orders) == size * plan.stages[0].config.data
    rows = expanded(texts["layout.txt"].strip())
    whole = "".join(rows)
    assert len(rows) == len(plan.stages)
    assert len(rows) % places == 0
    assert re.fullmatch(r"Et+m*L", whole)
    assert whole.count("t") == int(flags["--num-layers"]) == len({b for s in plan.stages for b in s.modules if "." in b
                                                                  and b.rsplit(".", 1)[1].isdigit()})  # fmt: skip
    assert flags["--pipeline-model-parallel-layout"].strip("'") == texts["layout.txt"].strip()


def deepspeed_reads(plan: Plan, texts: dict[str, str]) -> None:
    """Run the subclass above a stand-in that keeps to `PipelineModule`'s calls; hold the batch against its rule."""
    json_config = json.loads(texts["ds_config.json"])
    parts = [json_config[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    assert parts[0] * parts[1] * plan.stages[0].config.data == json_config["train_batch_size"]
    if len(plan.stages) == 1:
        return
    names: list[str] = []
    for rank in range(len(plan.stages)):
        space: dict[str, Any] = {}
        with StandIn(rank):
            exec(compile(texts["stages.py"], "stages.py", "exec"), space)
            names += space["PlannedPipeline"](list(space["LAYERS"])).held
    assert names == [name for stage in plan.stages for name in stage.modules]


class StandIn:
    """`deepspeed.pipe.PipelineModule` as far as a subclass sees it: it partitions, then builds its own layers."""

    def __init__(self, rank: int) -> None:
        class PipelineModule:
            def __init__(self, layers: list[str], topology: Any, activation_checkpoint_interval: int) -> None:
                self.global_rank, self._topo = rank, topology
                self._partition_layers(method="parameters")
                self.held = layers[self.bounds[0] : self.bounds[1]]

            def _partition_layers(self, method: str) -> None:
                raise NotImplementedError

            def _set_bounds(self, start: int, stop: int) -> None:
                self.bounds = (start, stop)

        pipe, topology = ModuleType("deepspeed.pipe"), ModuleType("deepspeed.runtime.pipe.topology")
        pipe.PipelineModule = PipelineModule  # type: ignore[attr-defined]
        topology.PipeModelDataParallelTopology = lambda num_pp, num_mp, num_dp: SimpleNamespace(  # type: ignore[attr-defined]
            get_coord=lambda rank: SimpleNamespace(pipe=rank)
        )
        between = [ModuleType(name) for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.pipe")]
        self.modules = {module.__name__: module for module in (*between, pipe, topology)}

    def __enter__(self) -> None:
        sys.modules.update(self.modules)

    def __exit__(self, *_: object) -> None:
        for name in self.modules:
            del sys.modules[name]


READERS = {
    "torch-csv": torch_reads,
    "torchtitan": torchtitan_reads,
    "megatron": megatron_reads,
    "deepspeed": deepspeed_reads,
}
"""For each form its target's own reader, or its rules written down again."""
