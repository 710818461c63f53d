"""One process of the call: `model NAME` (waits for its turns), `machine`, `fingerprints`, `ranks`, `nccl`.

Rows go to WORK/rows/NAME.jsonl at once. An exception in one question is a row with "error", and the next one is asked.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

SETTLE_S = 4.0  # the profiler's own limit of 20 s a size would take minutes for models that a host paces


class Rows:
    def __init__(self, work: Path, name: str) -> None:
        self.path, self.name = work / "rows" / f"{name}.jsonl", name

    def write(self, **row) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(json.dumps(row, default=str)[:2000], flush=True)

    def ask(self, question: str, call, *words) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        try:
            found = call(*words)
        except Exception as error:  # noqa: BLE001 - the rest goes on
            traceback.print_exc()
            self.write(
                question=question,
                model=self.name,
                seconds=round(time.perf_counter() - start, 1),
                cpu_s=round(time.process_time() - cpu, 1),
                error=f"{type(error).__name__}: {error}"[:1500],
                traceback=traceback.format_exc()[-3000:],
            )
            return
        each = {"seconds": round(time.perf_counter() - start, 1), "cpu_s": round(time.process_time() - cpu, 1)}
        for row in found if isinstance(found, list) else [found]:
            self.write(question=question, **each, row={"model": self.name, **row})


def make_setting(args):
    import torch
    from benchmarks.gpu import setting as of_benchmark
    from costmodel.capture.heap import keep_freed_memory
    from costmodel.profiling.measure import rounds

    rounds.SETTLE_S = 0.3 if args.plan == "smoke" else SETTLE_S
    torch.set_num_threads(1)
    keep_freed_memory()
    repeats = 2 if args.plan == "smoke" else 5
    made = of_benchmark.Setting(torch.device(args.device), args.work, repeats)
    if args.plan == "smoke" and args.device == "cuda":  # small models on the device

        class Small(of_benchmark.Setting):
            def spec(self, subject):
                return f"zoo:{subject.name}:small"

            def options(self, subject):
                found = super().options(subject)
                limit = 2**20 if subject.limit_gib else 0
                return replace(found, microbatch_sizes=of_benchmark.SMALL_SIZES, memory_limit_bytes=limit)

        made = Small(torch.device(args.device), args.work, repeats)
    return made


# -- one model ---------------------------------------------------------------------------------------------------------


def model(args) -> None:
    name, rows = args.name, Rows(args.work, args.name)
    passes = [p.split(",") for p in args.passes.split(";")]
    numbers = {"profile": 0, "kernels": 1, "stages": 2}
    rows.write(question="start", seconds=0, row={"model": name, "pid": os.getpid()})
    setting = make_setting(args)
    from benchmarks.gpu.setting import SUBJECTS

    subject = SUBJECTS[name]
    asked = {
        "profile": lambda: profile(args, setting, subject),
        "whole": lambda: whole(setting, subject),
        "kernels": lambda: kernels(args, setting, subject),
        "one_stage": lambda: one_stage(setting, subject),
        "stages": lambda: stages(setting, subject),
        "parts": lambda: parts(setting, subject),
    }
    only = {"stages": ("llama3",), "parts": ("mmt", "llama3", "unet3d")}
    for questions in passes:
        number = numbers[questions[0]]
        if questions[0] != "profile":  # the profile waits by itself, once the model is captured
            turn(args, number)
        for question in questions:
            if name in only.get(question, (name,)) and not (question == "whole" and name == "moe"):
                rows.ask(question, asked[question])
                setting.free()
        (args.work / "done" / f"{name}.{number}").touch()


def turn(args, number: int) -> None:
    go = args.work / "go" / f"{args.name}.{number}"
    while not go.exists():
        if os.getppid() == 1:
            sys.exit("the parent is gone")
        time.sleep(0.01)


def profile(args, setting, subject):
    """Profile; captured beside others, measured alone."""
    from costmodel.profiling import run

    def alone(function):
        def waits(*words, **named):
            (args.work / "done" / f"{args.name}.ready").touch()
            turn(args, 0)
            waits.start = time.perf_counter()
            return function(*words, **named)

        return waits

    for where, key in ((getattr(run, "_Session", None), "profile"), (run, "profile_in_blocks")):
        if where is not None and hasattr(where, key):  # else: not captured beside, that is all
            setattr(where, key, alone(getattr(where, key)))
    if not hasattr(run, "_Session"):
        turn(args, 0)
    plain, device = run.load_model, args.device

    def on_device(*words):  # 2.8 billion values drawn by one CPU thread take some 20 s
        import torch

        try:
            with torch.device(device):
                return plain(*words)
        except RuntimeError:
            traceback.print_exc()
            return plain(*words)

    run.load_model = on_device
    from costmodel.profiling.device import _driver

    start = time.perf_counter()
    found = setting.profile(subject)
    (args.work / "done" / f"{args.name}.ready").touch()
    unscaled = found.extra["unscaled"]
    row = {
        "prepared_and_measured_s": round(time.perf_counter() - start, 1),
        "dtype": found.dtype,
        "sizes": list(found.microbatch_sizes),
        "operators": len(found.graph.operators),
        "step_ms": [round(ns / 1e6, 2) for ns in found.whole.step_ns],
        "coverage": unscaled["coverage"],
        "optimizer_ms": round(found.whole.optimizer_ns / 1e6, 2),
        "accumulate_ms": round(found.whole.accumulate_ns / 1e6, 2),
        "driver_after": _driver(setting.device).get("driver") if setting.full else None,
        "catalogue": found.device.catalogue,
        "fingerprint": found.graph.fingerprint[:12],
    }
    for key in ("kernel_ns", "host_ns", "wall_ns"):
        if unscaled.get(key):
            row[key.replace("_ns", "_ms")] = [round(ns / 1e6, 2) for ns in unscaled[key]]
    if found.whole.split:
        row["split"] = [str(s) for s in found.whole.split]
    return row


def whole(setting, subject):
    from benchmarks.gpu import whole as question

    sizes = setting.profile(subject).microbatch_sizes
    return [dict(question._row(setting, subject, i)) for i in range(len(sizes))]


def parts(setting, subject):
    from benchmarks.gpu import parts as question

    return question._rows(setting, subject)


def one_stage(setting, subject):
    """The executor beside the plain loop, and both beside what the profile predicts of four micro-batches."""
    from benchmarks.gpu import execution

    row = dict(execution.one_stage(setting, subject.name))
    found = setting.profile(subject)
    size = subject.sizes[0] if setting.full else 1
    if size in found.microbatch_sizes:
        i = found.microbatch_sizes.index(size)
        predicted = execution.NUM_MICROBATCHES * found.whole.step_ns[i] / 1e6
        row["predicted_ms"] = round(predicted, 3)
        row["predicted_against_ours_%"] = round(100 * (predicted / row["ours_ms"] - 1), 1)
        row["predicted_against_plain_%"] = round(100 * (predicted / row["plain_ms"] - 1), 1)
    return row


def stages(setting, subject):
    """Each rank of a four-stage plan alone: memory at its highest and time of each kind of action, by the plan's own order."""
    import torch
    from benchmarks.gpu import memory
    from benchmarks.gpu.setting import percent
    from costmodel.capture.capture import capture
    from executor.program import Program
    from executor.worker import Worker

    plans = {case: memory.planned(setting, case) for case in memory.CASES}
    plan = next(iter(plans.values()))
    setting.free()
    loaded = setting.load(subject, plan.batch.global_size)
    captured = capture(loaded, plan.batch.microbatch_size)
    found = []
    for case, plan in plans.items():
        for rank in range(memory.NUM_STAGES):
            setting.free()
            room = torch.cuda.mem_get_info(setting.device)[0] if setting.full else 0
            worker = Worker(plan, captured, rank, setting.device)
            names = {name for stage in worker.stages.values() for name in stage.part.parameters}
            own = sum(captured.parameter(name).nbytes for name in names)
            with setting.growth() as growth:
                memory.run_alone(worker)
                setting.wait()
                measured = growth() + own
            drop = room - torch.cuda.mem_get_info(setting.device)[0] if setting.full else 0
            program = Program(
                rank,
                worker.wiring,
                worker.stages,
                memory.Alone(worker.device),
                lambda _: None,
                lambda _: None,
                plan.batch.num_microbatches,
            )
            instructions, clock, sums, busy = program.bind(worker.order), setting.clock, [], []
            for _ in range(3):
                clock.wait()
                spans = []
                first = clock.mark()
                for one in instructions:
                    received = one.collect() if one.collect is not None else None
                    start = clock.mark()
                    one.execute(received)
                    spans.append((one.action.kind.name, start, clock.mark()))
                last = clock.mark()
                clock.wait()
                by_kind = defaultdict(int)
                for kind, start, end in spans:
                    by_kind[kind] += clock.span_ns(start, end)
                sums.append(by_kind)
                busy.append(clock.span_ns(first, last))
                for stage in worker.stages.values():
                    stage.losses.clear()
            loaded.module.zero_grad(set_to_none=True)
            cost, m = plan.stages[rank].cost, plan.batch.num_microbatches
            planned = {
                "F": m * cost.forward_ns,
                "I": m * cost.backward_input_ns,
                "W": m * cost.backward_weight_ns,
                "B": m * (cost.backward_input_ns + cost.backward_weight_ns),
                "R": m * cost.recompute_ns,
            }
            row = {
                "case": case,
                "rank": rank,
                "measured_mib": round(measured / 2**20, 1),
                "point_mib": round(plan.prediction.peak_memory_bytes[rank] / 2**20, 1),
                "upper_mib": round(plan.prediction.peak_memory_upper_bytes[rank] / 2**20, 1),
                "device_mib": round(drop / 2**20, 1),
                "point_%": percent(plan.prediction.peak_memory_bytes[rank] / measured),
                "below_upper": measured <= plan.prediction.peak_memory_upper_bytes[rank],
                "busy_ms": round(statistics.median(busy[1:]) / 1e6, 2),
            }
            # a B that recomputes holds its R: judged together
            kinds = {k: statistics.median(s[k] for s in sums[1:]) for k in ("F", "B", "I", "W", "R") if sums[0].get(k)}
            expected = sum(planned[k] for k in kinds) + (
                planned["R"] if case == "recompute" and "R" not in kinds else 0
            )
            row.update({f"{k}_ms": round(ns / 1e6, 2) for k, ns in kinds.items()})
            row.update({f"{k}_%": percent(planned[k] / ns) for k, ns in kinds.items() if planned[k]})
            row["compute_%"] = percent(expected / sum(kinds.values()))
            found.append(row)
            del worker, program, instructions
    return found


# -- kernels: attribution by marks against what the profiler itself links -----------------------------------------------


def kernels(args, setting, subject):
    """Every kernel's owner by marks and launch times, against its owner by the profiler's own links.

    Forward: the CPU operator that the kernel's external id names, and the mark that stood before it. Backward: that
    operator's sequence number, which the forward operator has too, and the mark that stood before that one.
    """
    from costmodel.capture.batches import take
    from costmodel.capture.capture import capture
    from costmodel.profiling.measure.marks import PREFIX, KernelMarks
    from costmodel.profiling.measure.records import KERNELS, LAUNCHES, NOTE, sum_kernels
    from costmodel.profiling.measure.timing import observe
    from costmodel.profiling.measure.walk import Walk

    sizes = subject.sizes if args.plan == "main" and setting.full else (1, 2)
    size = sizes[1]
    loaded = setting.load(subject, size)
    captured = capture(loaded, size)
    piece, walk = take(captured.model, size), Walk(captured)
    if not setting.full:
        return {"size": size, "left_out": "a CPU writes no kernels"}
    clock = setting.clock
    from benchmarks.gpu.setting import eager_step

    for _ in range(4):
        eager_step(loaded)
    began = time.perf_counter()
    with clock.records() as plain:
        eager_step(loaded)
    plain_s = time.perf_counter() - began
    marks = KernelMarks(clock)
    began = time.perf_counter()
    with clock.records() as events:
        seen = observe(walk, piece, marks)
    traced_s = time.perf_counter() - began
    _keep(args.work / "traces" / f"{args.name}-marks.json.gz", events)
    _keep(args.work / "traces" / f"{args.name}-plain.json.gz", plain)
    marks._sums = sum_kernels(events, PREFIX, marks._count)
    spans = seen.spans(marks.span_ns)
    notes = sorted(
        (int(e["name"].removeprefix(PREFIX)), e["ts"])
        for e in events
        if e.get("cat") == NOTE and e["name"].startswith(PREFIX)
    )
    times = [ts for _, ts in notes]
    owner = {}
    for name, start, end in seen.forward:
        owner.update(dict.fromkeys(range(start, end), ("F", name)))
    for (name, start), (_, end) in zip(seen.backward, seen.backward[1:]):
        owner.update(dict.fromkeys(range(start, end), ("B", name)))
    launched = {
        e["args"]["correlation"]: e for e in events if e.get("cat") in LAUNCHES and "correlation" in e.get("args", {})
    }
    ops = {
        e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})
    }
    backward_from = seen.backward[0][1]
    forward_of = {}  # sequence number -> owner, by the forward operators in order (the last one made the node)
    for e in events:
        number = e.get("args", {}).get("Sequence number")
        place = bisect_right(times, e["ts"]) - 1 if e.get("cat") == "cpu_op" and number is not None else -1
        if 0 <= place < backward_from and place in owner and e["args"].get("Fwd thread id", 0) == 0:
            forward_of[number] = owner[place][1]
    ns, apart, unlinked, early, backward_apart, backward_ns, kinds = 0.0, 0.0, 0.0, 0, 0.0, 0.0, defaultdict(float)
    by_owner, pairs = defaultdict(lambda: [0.0, 0.0]), []
    for e in events:
        if e.get("cat") not in KERNELS:
            continue
        us, ids = e["dur"], e["args"]
        ns += us
        kinds[e["name"][:60]] += us
        pairs.append((e["ts"], e["ts"] + us))
        launch = launched.get(ids.get("correlation"))
        if launch is None:
            unlinked += us
            continue
        early += e["ts"] < launch["ts"]
        ours = owner.get(bisect_right(times, launch["ts"]) - 1, ("?", "?"))
        op = ops.get(ids.get("External id"))
        place = bisect_right(times, op["ts"]) - 1 if op else -1
        theirs = owner.get(place, ("?", "?"))
        by_owner[ours][0] += us
        by_owner[theirs][1] += us
        apart += us if ours != theirs else 0
        number = op["args"].get("Sequence number") if op else None
        if ours[0] == "B" and number in forward_of:
            backward_ns += us
            backward_apart += us if forward_of[number] != ours[1] else 0
    pairs.sort()
    union, reach = 0.0, 0.0
    for start, end in pairs:
        union += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    total = max(ns, 1e-9)
    worst = sorted(
        (
            (abs(a - b) / max(a, b, 1e-9), f"{k} {n}", round(a, 1), round(b, 1))
            for (k, n), (a, b) in by_owner.items()
            if max(a, b) >= 0.01 * total
        ),
        reverse=True,
    )[:3]
    plain_us = sum(e["dur"] for e in plain if e.get("cat") in KERNELS)
    return {
        "size": size,
        "kernels": len(pairs),
        "kernel_ms": round(ns / 1e3, 3),
        "plain_kernel_ms": round(plain_us / 1e3, 3),
        "marks_against_plain_%": round(100 * (ns / max(plain_us, 1e-9) - 1), 2),
        "unlinked_%": round(100 * unlinked / total, 3),
        "before_launch": early,
        "overlap_%": round(100 * (1 - union / total), 3),
        "attribution_apart_%": round(100 * apart / total, 3),
        "backward_by_sequence_apart_%": round(100 * backward_apart / max(backward_ns, 1e-9), 3),
        "backward_linked_%": round(
            100 * backward_ns / max(sum(v[0] for k, v in by_owner.items() if k[0] == "B"), 1e-9), 1
        ),
        "unattributed_%": round(0.1 * marks._sums.unattributed_ns / total, 3),
        "spans_ms": round((sum(spans.forward_ns.values()) + sum(spans.backward_ns.values())) / 1e6, 3),
        "categories": {c: sum(e.get("cat") == c for e in events) for c in sorted({str(e.get("cat")) for e in events})},
        "trace_s": round(traced_s, 2),
        "plain_trace_s": round(plain_s, 2),
        "worst": worst,
        "top_kernels": [(n, round(us / 1e3, 3)) for n, us in sorted(kinds.items(), key=lambda r: -r[1])[:6]],
    }


_KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "cpu_op", "fwdbwd"}


def _keep(path: Path, events) -> None:
    """Keep a trace small enough to be replayed by a test."""
    args = {"correlation", "External id", "Sequence number", "Fwd thread id", "stream"}
    rows = [
        {
            **{k: e[k] for k in ("ph", "cat", "name", "ts", "dur", "tid", "pid", "id") if k in e},
            "args": {k: v for k, v in e.get("args", {}).items() if k in args},
        }
        for e in events
        if e.get("cat") in _KEPT
    ]
    path.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode()))


# -- the machine ---------------------------------------------------------------------------------------------------------


def machine(args) -> None:
    rows = Rows(args.work, "machine")
    if args.plan == "main":
        import torch  # noqa: F401 - imported while others capture

        turn(args, 0)
    rows.ask("machine", _machine, args)


def _machine(args):
    import torch
    from costmodel.profiling.device import describe_device, describe_settings

    device = torch.device(args.device)
    row = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    row |= {"device": describe_device(device).name, "catalogue": describe_device(device).catalogue}
    if args.device != "cuda":
        return row
    row["settings"] = describe_settings(device)
    row["smi"] = subprocess.run(
        ["nvidia-smi", "-q", "-d", "CLOCK,POWER,TEMPERATURE,COMPUTE"], capture_output=True, text=True
    ).stdout[:3000]

    def timed(call, count):
        for _ in range(3):
            call()
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        for _ in range(count):
            call()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b) / count / 1e3

    n = 8192
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        x, y = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        row[f"{name}_tflops"] = round(2 * n**3 / timed(lambda: x @ y, 10 if dtype is torch.bfloat16 else 3) / 1e12, 1)
        del x, y
    big = torch.empty(2**30, dtype=torch.uint8, device=device)
    other = torch.empty_like(big)
    row["copy_tb_s"] = round(2 * big.numel() / timed(lambda: other.copy_(big), 10) / 1e12, 2)
    host = torch.empty(2**28, dtype=torch.uint8).pin_memory()
    row["host_to_device_gb_s"] = round(
        host.numel() / timed(lambda: big[: 2**28].copy_(host, non_blocking=True), 5) / 1e9, 1
    )
    one = torch.ones(1, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(900):
        one.add_(1)
    row["launch_us"] = round((time.perf_counter() - start) / 900 * 1e6, 2)
    torch.cuda.synchronize()
    start = time.perf_counter()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(500)]
    for event in events:
        event.record()
    row["event_us"] = round((time.perf_counter() - start) / 500 * 1e6, 2)
    used = torch.cuda.mem_get_info()
    row["context_mib"] = round((used[1] - used[0] - torch.cuda.memory_reserved()) / 2**20)
    return row


# -- fingerprints, ranks -------------------------------------------------------------------------------------------------


def fingerprints(args) -> None:
    rows = Rows(args.work, "fingerprints")
    import torch
    from costmodel.capture.capture import capture, operator_graph
    from costmodel.capture.models import load_model
    from costmodel.capture.batches import move
    from costmodel.zoo import NAMES

    torch.set_num_threads(1)
    specs = [
        f"tests.hugging_face_models:{n}" for n in ("llama", "mixtral", "mistral", "gemma", "bert", "gpt2", "t5", "vit")
    ]
    for spec in [*specs, *(f"zoo:{name}:small" for name in NAMES)]:

        def one(spec=spec):
            found = [
                operator_graph(capture(move(load_model(spec, 2), where)), (2,)).fingerprint
                for where in ("cpu", args.device)
            ]
            return {"spec": spec, "equal": found[0] == found[1]}

        rows.ask("fingerprint", one)


def ranks(args) -> None:
    from benchmarks.gpu import execution

    rows, setting = Rows(args.work, "ranks"), make_setting(args)
    execution.SECONDS = 85.0 if args.device == "cuda" else 400.0
    setting = type(setting)(setting.device, args.work / "files", setting.repeats)
    rows.ask("ranks", execution.four_ranks, setting)


NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_DEBUG": "WARN",
    "GLOO_SOCKET_IFNAME": "lo",
}


def nccl(args) -> None:
    """Two ranks on one GPU by NCCL: it refuses a GPU twice on one host, so each says that it is a host of its own."""
    Rows(args.work, "nccl").ask("nccl", _nccl, args)


def _nccl(args):
    from benchmarks.gpu import execution
    from costmodel.capture.capture import capture
    from costmodel.capture.models import load_model
    from planner.plan import write_plan
    from tests.plans_by_hand import in_equal_runs, plan_by_hand

    setting, spec = make_setting(args), "zoo:gpt:small"
    captured = capture(load_model(spec, 2), 2)
    plan = plan_by_hand(captured, in_equal_runs(captured.operators, 2), schedule="1f1b")
    path = args.work / "files" / "two-ranks.plan.json"
    write_plan(path, execution.on_device(setting, plan))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        __file__,
        "rank",
        "--device",
        args.device,
        "--work",
        str(args.work),
        "--words",
        json.dumps(
            [
                str(path),
                "--model",
                spec,
                "--steps",
                "20",
                "--check",
                "--json",
                "--timeout",
                "40" if args.device == "cuda" else "200",
            ]
        ),
    ]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=85 if args.device == "cuda" else 400,
        check=False,
        env={**os.environ, **(NCCL if args.device == "cuda" else {})},
    )
    print(run.stdout[-3000:], run.stderr[-6000:], flush=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode or not lines:
        raise RuntimeError(f"ended with {run.returncode}: {(run.stdout + run.stderr)[-1200:]}")
    answer = json.loads(lines[-1])
    carried = [line for line in run.stderr.splitlines() if "travel by" in line]
    return {
        "carrier": carried[:1],
        "gradient_error": answer["max_gradient_error"],
        "loss_error": answer["loss_error"],
        "step_ms": round(answer["step_time_ns"] / 1e6, 2),
        "steps": answer["steps"],
    }


def rank(args) -> None:
    import executor.groups

    if args.device == "cuda":
        os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
        executor.groups.carrier = lambda identities: "nccl"
    sys.argv = ["executor", *json.loads(args.words)]
    from executor.__main__ import main as run

    sys.exit(run())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("model", "machine", "fingerprints", "ranks", "nccl", "rank"))
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--passes", default="")
    parser.add_argument("--words", default="[]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plan", default="main")
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    globals()[args.what](args)


if __name__ == "__main__":
    main()
