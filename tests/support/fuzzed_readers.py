"""Every reader of files of the user's, and whole files that it reads: what mutants are made of.

Leaves out how they are made (`benchmarks.fuzz`), and what torch itself reads.
"""

import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peer_problems.aceso.archive import read_archive
from benchmarks.peer_problems.aceso.cluster import aceso_cluster
from benchmarks.peer_problems.aceso.profile import aceso_profile
from benchmarks.peer_problems.readers.dnn_partitioning import read_dnn_partitioning
from benchmarks.peer_problems.readers.pipedream import read_pipedream
from benchmarks.peer_problems.readers.piper import read_piper
from costmodel.architectures.command import make
from costmodel.architectures.configs import DEFAULTS, PARTS
from costmodel.calibration import read_calibration
from costmodel.importers.kineto import read_trace
from costmodel.importers.layers import read_layers
from costmodel.importers.nccl_tests import links_of, read_nccl_runs
from costmodel.importers.topology import read_topology
from costmodel.profiling.journal import Journal
from planner.checker import check_plan
from planner.export.job_configs.entries import read_entries
from planner.export.job_configs.today import todays_job
from planner.measured.runs import read_runs
from planner.plan import read_plan
from planner.question.pins import read_pins
from simulator.torch_csv import read_torch_csv
from tests.roads.test_aceso import files
from tests.support.described_models import described
from tests.support.repository import DATA, GOLDEN
from tests.support.schema_corpus import READERS


@dataclass(frozen=True)
class Fuzzed:
    """A reader, the suffix of its files, some of them that are whole, and what lies beside them."""

    read: Callable[[Path], object]
    suffix: str
    texts: tuple[str, ...]
    beside: Mapping[str, str] = field(default_factory=dict)


def _read_and_checked(path: Path) -> object:
    return check_plan(read_plan(path))


def _described(path: Path) -> object:
    return make(str(path), "h100-sxm-80", (1, 2))


def _aceso(path: Path) -> object:
    known = read_archive(path, "a10g", "tiny")
    return aceso_profile(known), aceso_cluster(known)


def _packed(path: Path) -> object:
    """Read an archive of what a file lists: lines of ``== NAME`` before the lines of each file."""
    tar_path = path.with_name("packed.tar")
    tar_path.write_bytes(_tar(path.read_bytes()))
    return _aceso(tar_path)


def _tar(listed: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", errors="surrogateescape") as tar:
        for part in re.split(rb"^== ", listed, flags=re.MULTILINE)[1:]:
            name, _, data = part.partition(b"\n")
            member = tarfile.TarInfo(name.decode(errors="surrogateescape"))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _jobs(trainer: str, suffix: str) -> Fuzzed:
    """Return the reader of a trainer's configurations, as far as the job that they come to."""

    def read(path: Path) -> object:
        return todays_job(read_entries(path, trainer), trainer, described("llama"), NUM_DEVICES, path.parent)

    rows = json.loads((DATA / "jobs" / "expected.json").read_text()).items()
    of_trainer = [name for name, row in rows if row["trainer"] == trainer and row["world"] == NUM_DEVICES]
    files = [DATA / "jobs" / name for name in of_trainer if name.endswith(suffix)]
    return Fuzzed(read, suffix, tuple(path.read_text() for path in files))


def _journal(path: Path) -> object:
    """Resume a journal; every item must be one that was written."""
    items = Journal(path, HEADING, resume=False).items
    assert all(ITEMS[key] == value for key, value in items.items())
    return items


def _journal_text() -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal = Journal(path, HEADING, resume=False)
        for key, value in ITEMS.items():
            journal.item(key, lambda value=value: value)
        return path.read_text()


JOBS = {"deepspeed": ".json", "torchtitan": ".toml", "megatron": ".txt", "megatron-bridge": ".yaml"}
NUM_DEVICES = 8
"""Of the jobs: those that are made into mutants run on as many."""
HEADING = {"model": "m", "repeats": 3}
ITEMS = {"marks": [1.5, 2], "round/0": [[1, 2], [3.25], None], "links": {"p2p": [[1024, 8000]]}}
ACESO = "".join(f"== {name}\n{text}\n" for name, text in files().items())
HEADER = "name,after,forward_ms,backward_ms,parameter_bytes,output_bytes,saved_bytes,backward_weight_ms\n"
LAYERS = HEADER + (
    "embed,,1.5,2,4000,800,100,\n"
    "left,embed,2,4,2000,400,50,1.25\n"
    "right,embed,3,6,0,400,60,\n"
    "head,left;right,1,2,1000,8,10,\n"
)
RUNS = """model,device,devices,batch,microbatch-size,sequence,tensor,data,stages,trainer,step_time_ms,peak_memory_gib
gpt3-175b,a100-sxm-80,8,32,1,1024,2,2,2,megatron,100.5,30
llama3-8b,h100-sxm-80,8,64,2,1024,1,8,1,torchtitan,70,41.5
"""
PINS = """[[together]]
operators = ["a.*", "b"]

[[apart]]
operators = ["c", "d"]

[[stage]]
operators = ["0", "1*"]
ranks = [0, 1]
config = { data = 2, zero = 1, recompute = "full" }
microbatch_multiple = 2
in_flight = 3
"""
CALIBRATION = """format = "penstock-calibration"
version = 1

[[constant]]
name = "matmul.h100-sxm-80.bf16"
value = 1.2
rows = 10
"""
TORCH_CSV = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n"
NCCL_TEXT = """\
# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1048576 step: 1024(factor) warmup iters: 1 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   4242 on secrethost device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   4243 on secrethost device  1 [0000:0a:00] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    12.00    0.09    0.09       0    11.00    0.09    0.09       0
     1048576        262144     float     sum      -1    52.50   19.97   19.97     N/A    50.00   20.97   20.97     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 10.0
"""
NCCL_JSON = {
    "version": 1,
    "start_time": "2026-01-01",
    "args": ["/opt/nccl/build/sendrecv_perf", "-J", "out.json"],
    "env": ["SECRET_TOKEN=hunter2", "HOME=/home/user"],
    "nccl_version": 22703,
    "config": {
        "nthreads": 1,
        "devices": [
            {
                "rank": i,
                "group": 0,
                "pid": 1,
                "hostname": "secrethost",
                "device": i,
                "device_hex": "x",
                "device_info": "GPU",
            }
            for i in range(2)
        ],
    },
    "results": [
        {"size": 1024, "count": 256, "out_of_place": {"time": 8.0, "nwrong": None}, "in_place": {"time": 9.0}},
        {"size": 1048576, "count": 262144, "out_of_place": None, "in_place": {"time": 60.0}},
    ],
    "out_of_bounds": {"count": 0, "okay": True},
}
NVIDIA = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-31\nGPU1\tNV4\t X \t0-31\n\nLegend:\n  X    = Self\n"
SLURM = "SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7] # second\nSwitchName=top Switches=s[0-1]\n"
SLURM_YAML = (DATA / "imports" / "slurm_several.yaml").read_text()
NEEDED = {"deepseek_v2": {"num_experts_per_tok": 6}}
"""Keys that have no default."""
CONFIGS = tuple(
    json.dumps({"model_type": kind, **own, **PARTS.get(kind, {}), **NEEDED.get(kind, {})}, indent=1)
    for kind, own in sorted(DEFAULTS.items())
)
TRACE = {
    "distributedInfo": {"rank": 0, "world_size": 2}, "host_name": "a", "baseTimeNanoseconds": 10**18,
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "Forward 0", "ts": 1.5, "dur": 10, "tid": 7, "pid": 1},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 2, "dur": 3, "tid": 7, "args": {"Sequence number": 4}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 4, "dur": 3, "tid": 9, "args": {"correlation": 5}},
    ],
}  # fmt: skip
PIPEDREAM = (
    "".join(
        f"node{i} -- Linear(1, 2) -- forward_compute_time={i}.2, backward_compute_time={2 * i}.5, "
        f"activation_size=2055.0, parameter_size=8.0\n"
        for i in (1, 2, 3)
    )
    + "\tnode1 -- node2\n\tnode2 -- node3\n"
)


def fuzzed(instances: Path | None = None) -> Mapping[str, Fuzzed]:
    """Return the readers by name; those of published instances where these are at hand (a folder)."""
    found = {
        kind: Fuzzed(
            _read_and_checked if kind == "plan" else read,
            ".toml" if kind == "cluster" else ".json",
            tuple(path.read_text() for path in sorted(GOLDEN.glob(f"{kind}*"))),
            {"links.json": (GOLDEN / "links.json").read_text()},
        )
        for kind, read in READERS.items()
    }
    found |= {
        "layers": Fuzzed(read_layers, ".csv", (LAYERS,)),
        "runs": Fuzzed(read_runs, ".csv", (RUNS,)),
        "pins": Fuzzed(read_pins, ".toml", (PINS,)),
        "calibration": Fuzzed(read_calibration, ".toml", (CALIBRATION,)),
        "torch-csv": Fuzzed(read_torch_csv, ".csv", (TORCH_CSV,)),
        "nccl-tests": Fuzzed(
            lambda path: links_of(read_nccl_runs([path])), ".txt", (NCCL_TEXT, json.dumps(NCCL_JSON, indent=1))
        ),
        "topology": Fuzzed(
            read_topology, ".txt", (NVIDIA, SLURM, (DATA / "imports" / "slurm_several.yaml").read_text())
        ),
        **{f"job of {trainer}": _jobs(trainer, suffix) for trainer, suffix in JOBS.items()},
        "config": Fuzzed(_described, ".json", CONFIGS),
        "kineto": Fuzzed(read_trace, ".json", (json.dumps(TRACE, indent=1),)),
        "pipedream": Fuzzed(read_pipedream, ".txt", (PIPEDREAM,)),
        "aceso": Fuzzed(_packed, ".txt", (ACESO,)),
        "tar": Fuzzed(_aceso, ".tar", (_tar(ACESO.encode()).decode(),)),
        "journal": Fuzzed(_journal, ".journal", (_journal_text(),)),
    }
    if instances:
        layer = instances / "dnn-partitioning" / "layer_bert24_training.json"
        found["dnn-partitioning"] = Fuzzed(read_dnn_partitioning, ".json", (layer.read_text(),))
        found["piper"] = Fuzzed(read_piper, ".json", ((instances / "piper" / "bert32a100.json").read_text(),))
    return found
