"""Questions of exactness: fingerprints of captures, four ranks over gloo, two ranks by NCCL on one GPU."""

from dataclasses import replace
from functools import partial

import torch

from benchmarks.gpu import execution
from benchmarks.gpu.call.errand import Errand
from benchmarks.gpu.call.measuring import setting_for
from benchmarks.gpu.setting import Row
from costmodel.capture.batches import move
from costmodel.capture.capture import capture, operator_graph
from costmodel.capture.models import load_model
from costmodel.zoo import NAMES
from planner.plan import write_plan
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand

HUGGING_FACE = ("llama", "mixtral", "mistral", "gemma", "bert", "gpt2", "t5", "vit")
SECONDS = {"cuda": 85.0, "cpu": 400.0}
"""After which ranks are given up."""

NCCL = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1",
        "NCCL_DEBUG": "WARN"}  # fmt: skip
"""Messages over the host's own sockets: NCCL takes the two ranks for two hosts."""


def fingerprints(errand: Errand) -> None:
    """Capture models on the CPU and on the device."""
    torch.set_num_threads(1)
    specs = [f"tests.support.hugging_face_models:{name}" for name in HUGGING_FACE]
    for spec in [*specs, *(f"zoo:{name}:small" for name in NAMES)]:
        errand.ask("fingerprint", partial(_fingerprint, spec, errand.device))


def _fingerprint(spec: str, device: str) -> Row:
    captures = [capture(move(load_model(spec, 2), where)) for where in ("cpu", device)]
    first, second = (operator_graph(captured, (2,)).fingerprint for captured in captures)
    return {"spec": spec, "equal": first == second}


def ranks(errand: Errand) -> None:
    """Run four ranks that share the device."""
    setting = replace(setting_for(errand), folder=errand.work / "files")
    errand.ask("ranks", partial(execution.four_ranks, setting, SECONDS[errand.device]))


def nccl(errand: Errand) -> None:
    """Run two ranks on one GPU by NCCL; on a CPU over gloo."""
    errand.ask("nccl", partial(_nccl, errand))


def _nccl(errand: Errand) -> Row:
    setting, spec, on_gpu = setting_for(errand), "zoo:gpt:small", errand.device == "cuda"
    captured = capture(load_model(spec, 2), 2)
    plan = plan_by_hand(captured, in_equal_runs(captured.operators, 2), schedule="1f1b")
    path = errand.work / "files" / "two-ranks.plan.json"
    write_plan(path, execution.on_device(setting, plan))
    timeout = "40" if on_gpu else "200"
    answer, said = execution.run_ranks(
        2,
        "benchmarks.gpu.call.nccl_rank" if on_gpu else "executor",
        [str(path), "--model", spec, "--steps", "20", "--check", "--json", "--timeout", timeout],
        SECONDS[errand.device],
        NCCL if on_gpu else {},
    )
    print(said[-6000:], flush=True)
    return {
        "carrier": [line for line in said.splitlines() if "travel by" in line][:1],
        "gradient_error": answer["max_gradient_error"],
        "loss_error": answer["loss_error"],
        "step_ms": round(answer["step_time_ns"] / 1e6, 2),
        "steps": answer["steps"],
    }
