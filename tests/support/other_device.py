"""Captures, profiles and trains models on a device that is not the CPU: one without values, that torch makes up.

Tensors there are fake, but an operator whose inputs lie on two devices is refused as on a GPU. Run as a process of its
own, because torch keeps the device for good.
"""

import os
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from benchmarks.gpu import memory
from costmodel.capture.capture import Capture, capture
from costmodel.capture.clock import HostClock
from costmodel.capture.models import load_model
from costmodel.capture.parts import extract
from costmodel.profiling.dry import load_on_meta
from costmodel.profiling.journal import Journal
from costmodel.profiling.measure.backward_split import weight_shares
from costmodel.profiling.measure.blocks import signatures, split_into_blocks
from costmodel.profiling.measure.blockwise import Bench, measure_blocks
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.measure.piecewise import state_bytes
from costmodel.profiling.measure.timing import MarkCost, time_in_context, time_whole
from costmodel.profiling.measure.walk import Walk
from costmodel.profiling.options import Options
from executor.context import RankContext
from executor.worker import Worker
from tests.support.plans_by_hand import in_equal_runs, plan_by_hand, split_backwards, with_recompute

NAME = "made_up"


def profile_pieces(captured: Capture) -> None:
    clock, model = HostClock(), captured.model
    counted_graph(captured, (model.batch // 2, model.batch))
    time_whole(extract(captured, captured.operators), model, clock)
    time_in_context(Walk(captured), model, clock)
    weight_shares(captured, model.batch, clock, 1)


def train(captured: Capture, device: torch.device) -> None:
    for schedule in ("graph-1f1b", with_recompute, split_backwards):
        groups = in_equal_runs(captured.operators, 3)
        plan = plan_by_hand(captured, groups, schedule=schedule, num_microbatches=2, microbatch_size=1)
        for rank in range(3):
            worker = Worker(RankContext(plan, captured, rank, device))
            print(rank, memory.run_alone(worker))
            assert {p.grad.device for p in worker.parameters.values()} <= {device}


def profile_blocks(device: torch.device) -> None:
    captured = capture(load_on_meta(Options("zoo:moe:small", (1, 2), dtype="bfloat16")), 2)
    graph = counted_graph(captured, (1, 2))
    blocks = split_into_blocks(
        graph, signatures(captured, 2), [o.name for o in graph.operators], 2, state_bytes(graph, 2) // 3
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        bench = Bench(captured, (1, 2), device, HostClock(), MarkCost(), 1, Journal(None, {}, False), print)
        assert len(measure_blocks(bench, blocks).times) == len(graph.operators)


def main() -> None:
    _setup_privateuseone_for_python_backend(NAME)
    torch.made_up.get_amp_supported_dtype = lambda: [torch.bfloat16]
    device = torch.device(f"{NAME}:0")
    for name in ("llama3", "unet3d"):
        with FakeTensorMode(allow_non_fake_inputs=True):
            with device:
                model = load_model(f"zoo:{name}:small", 2)
            captured = capture(model, 2)
            profile_pieces(captured)
            train(captured, device)
    profile_blocks(device)
    print("done")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's thread for the made-up device does not outlive the interpreter
