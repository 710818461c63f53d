"""The files that the examples of the help texts name, made in small."""

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from costmodel.model.profile import write_profile
from planner.commands import main
from planner.plan import read_plan
from simulator.timeline import write_timeline
from tests.costmodel.test_importers import LAYERS, NCCL_TEXT, matrix, nvidia
from tests.costmodel.test_kineto import trace
from tests.support.described_models import GPT2, described
from tests.support.measured_by_hand import measured_by_hand

CLUSTER = """\
format = "penstock-cluster"
version = 1
[[device]]
name = "a100"
catalogue = "a100-sxm-80"
[[host]]
device = "a100"
devices = 2
count = 2
[[link]]
name = "nvlink"
group = 2
bandwidth_gbs = 240.0
latency_us = 6.0
[[link]]
name = "ib"
group = 0
bandwidth_gbs = 5.0
latency_us = 12.0
"""
COSTS = {"format": "penstock-costs", "version": 1,
         "stages": [{"forward_ns": 1000, "backward_input_ns": 1000, "backward_weight_ns": 1000}] * 3,
         "pairs": [{"forward": 0, "backward": 0, "pair_ns": 2500}]}  # fmt: skip


def write_examples(home: Path) -> None:
    """Write them into a folder."""
    write_profile(home / "profile.json", described("llama", "a100-sxm-80"))
    write_profile(home / "llama.json", described("llama", "a100-sxm-80"))
    texts = {
        "cluster.toml": CLUSTER,
        "prices.toml": "[price_per_hour]\nh100-sxm-80 = 2.5\n",
        "config.json": json.dumps(GPT2),
        "costs.json": json.dumps(COSTS),
        "schedule.csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "orders.csv": "".join(",".join(f"{s}{k}{i}" for k in "FB" for i in range(8)) + "\n" for s in range(2)),
        "table.csv": LAYERS,
        "runs.csv": "model,device,devices,batch,step_time_ms\n"
        + "".join(f"config.json,a100-sxm-80,2,{n},{2.5 * n}\n" for n in (8, 16)),
        "all_reduce.txt": NCCL_TEXT,
        "ds_config.json": json.dumps({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}),
        "topo.txt": nvidia(matrix(2, lambda i, j: "NV12")),
    }
    blocks = [{"address": 1, "size": 2**20, "requested_size": 2**20, "state": "active_allocated", "frames": []}]
    segment = {"device": 0, "address": 1, "total_size": 2**21, "segment_pool_id": [0, 0], "blocks": blocks}
    entry = {"action": "alloc", "addr": 1, "size": 2**20, "stream": 0, "time_us": 5}
    texts["snapshot.json"] = json.dumps({"segments": [segment], "device_traces": [[entry]], "allocator_settings": {}})
    texts |= {f"rank{rank}.json": json.dumps(trace(rank)) for rank in range(2)}
    for name, text in texts.items():
        (home / name).write_text(text)
    with chdir(home), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main(["fit", "runs.csv", "-o", "calibration.toml", "--json"]) == 0
        for name, flags in (("plan", "--schedule 1f1b"), ("old", "--schedule gpipe"), ("chain", "--planner chain")):
            # CUDA graphs: the host, which would pace so small a model, hides what operators take
            line = f"plan profile.json --cluster cluster.toml --devices 4 --batch 16 --stages 4 {flags} --graphs"
            assert main([*line.split(), "--time-limit", "0", "--json", "-o", f"{name}.json"]) == 0
    write_timeline(home / "timeline.json", measured_by_hand(read_plan(home / "plan.json")))
