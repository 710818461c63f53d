"""import kineto: what a trace's marks, operations, kernels and modules say of a pipeline, to the nanosecond."""

import gzip
import json

import pytest

from costmodel.importers import kineto
from costmodel.model.profile import read_profile
from planner.commands import main
from simulator.timeline import read_timeline

RUN = (
    {"F0": (0, 1, 11), "F1": (12, 13, 23), "B0": (24, 71, 91), "B1": (92, 93, 113)},
    {"F0": (2, 15, 30), "F1": (31, 32, 47), "B0": (48, 49, 67), "B1": (68, 69, 87)},
)
"""Of two ranks, us: where the mark of each action begins, the wait in it included, and where it computes.

Between two actions 2 us pass on either rank, and a message takes 2 us more: 0F0 ends at 11, 1F0 begins at 15.
"""
STEP_US = 200
STEPS = ("_step_microbatches", "forward_one_chunk", "backward_one_chunk")


def event(category, name, start, end, thread=1, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": start, "dur": end - start,
            "args": args}  # fmt: skip


def gpipe(rank, name, start, end):
    yield event("user_annotation", f"{'Forward' if name[0] == 'F' else 'Backward'} {name[1]}", start, end)


def runtime(rank, name, start, end):
    yield event("user_annotation", f"PP:{rank}{name}", start, end)
    if name[0] == "F":
        yield event("user_annotation", f"PP:{rank}SEND_F{name[1]}", end, end + 0.5)


def calls(rank, name, start, end):
    where = "torch/distributed/pipelining/stage.py(857): "
    yield event("python_function", where + STEPS[1 if name[0] == "F" else 2], start, end)


def on_cpu(start, end):
    """Operations, among them one that communicates before and one behind, and a loader's on another thread."""
    yield event("cpu_op", "c10d::recv_", start - 0.5, start)
    yield event("cpu_op", "aten::linear", start, start + 1)
    yield event("cpu_op", "aten::mse_loss", start + 2, end)
    yield event("cpu_op", "c10d::send", end, end + 0.25)
    yield event("cpu_op", "aten::stack", start - 0.75, end + 0.5, thread=9)


def on_gpu(start, end):
    """Kernels of a stream, one of NCCL's before them, launched in the first half of a microsecond by two threads."""
    number = round(4 * start)
    for i, (name, thread, first, last) in enumerate(
        [("ncclDevKernel_SendRecv", 1, start - 0.9, start), ("gemm", 2, start, start + 3), ("relu", 1, start + 3, end)]
    ):
        issued = start - 0.9
        yield event("cuda_runtime", "cudaLaunchKernel", issued, issued + 0.1, thread, correlation=number + i)
        yield event("kernel", name, first, last, thread=77, correlation=number + i)


def trace(rank, marks=gpipe, work=on_cpu, steps=2, world=2):
    events = []
    for step in range(steps):
        begin = step * STEP_US
        events.append(event("python_function", f"schedules.py(878): {STEPS[0]}", begin, begin + 150))
        for name, (mark, start, end) in RUN[rank].items():
            events += marks(rank, name, begin + mark, begin + end + (0.1 if marks is gpipe else 0))
            events += work(begin + start, begin + end)
        events.append(event("user_annotation", "Optimizer.step#SGD.step", begin + 150, begin + 180))
        events.append(event("cpu_op", "aten::add_", begin + 151, begin + 179))
    told = {"rank": rank, "world_size": world, "backend": "gloo"}
    return {"distributedInfo": told, "host_name": "a", "baseTimeNanoseconds": 10**18, "traceEvents": events}


@pytest.fixture(name="imported")
def importer(tmp_path, capsys):
    def run(traces, *words, suffix=".json"):
        paths = []
        for number, content in enumerate(traces):
            paths.append(tmp_path / f"rank{number}{suffix}")
            text = content if isinstance(content, str) else json.dumps(content)
            paths[-1].write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
        code = main(["import", "kineto", *map(str, paths), "-o", str(tmp_path / "profile.json"), *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("work", [on_cpu, on_gpu])
@pytest.mark.parametrize("marks", [gpipe, runtime, calls])
def test_marks_of_every_kind_tell_the_same_run(imported, tmp_path, marks, work):
    timeline = tmp_path / "timeline.json"
    made = [trace(rank, marks, work) for rank in (1, 0)]  # in any order
    code, answer = imported(made, "--timeline-output", str(timeline), suffix=".json.gz")
    assert code == 0
    assert answer["stages"] == [
        {"stage": 0, "rank": 0, "B_ns": 22_000, "F_ns": 12_000},
        {"stage": 1, "rank": 1, "B_ns": 20_000, "F_ns": 17_000},
    ]
    assert answer["edges_p2p_ns"] == [{"from": 0, "to": 1, "p2p_ns": 2_000}]
    assert (answer["steps"], answer["microbatches"], answer["step_time_ns"]) == (2, 2, 112_000)
    assert answer["simulated_step_time_ns"] == 114_000  # 12 + 2 + 17 + 17 + 20 + 2 + 22 + 22
    assert answer["waits_ns"] == [48_000, 14_000]
    spans = [(str(s.action), s.rank, s.start_ns, s.end_ns) for s in read_timeline(timeline).spans if s.rank == 0]
    assert spans == [
        ("0F0", 0, 0, 10_000), ("0F1", 0, 12_000, 22_000), ("0B0", 0, 70_000, 90_000), ("0B1", 0, 92_000, 112_000),
        ("0RECV_B0<1", 0, 22_000, 70_000),
    ]  # fmt: skip


def test_what_was_read_is_simulated_again_by_the_command_and_under_another_schedule(imported, tmp_path, capsys):
    costs, orders = str(tmp_path / "costs.json"), str(tmp_path / "orders.csv")
    _, answer = imported([trace(0), trace(1)], "--costs-output", costs, "--orders-output", orders)
    assert (answer["costs"], answer["orders"]) == (costs, orders)
    words = ["simulate", "--costs", costs, "--microbatches", "2", "--json", "--schedule"]
    assert main([*words, orders]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] == 114_000
    assert main([*words, "1f1b"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] < 120_000


def test_a_profile_without_modules_has_a_stage_an_operator_and_is_planned_as_it_ran(imported, tmp_path, capsys):
    cluster, found = str(tmp_path / "cluster.toml"), str(tmp_path / "plan.json")
    imported([trace(0), trace(1)], "--model", "mine", "--device", "h100-sxm-80", "--cluster-output", cluster)
    profile = read_profile(tmp_path / "profile.json")
    assert profile.graph.name == "mine"
    assert profile.device.catalogue == "h100-sxm-80"
    assert [(o.name, t.forward_ns[0]) for o, t in zip(profile.graph.operators, profile.times, strict=True)] == [
        ("stage0", 12_000), ("stage1", 17_000), ("loss", 0),
    ]  # fmt: skip
    asked = "--devices 2 --batch 2 --microbatch-size 1 --stages 2 --schedule gpipe --optimizer none --planner uniform"
    for more in ((), ("--cluster", cluster)):
        assert main(["plan", str(tmp_path / "profile.json"), *asked.split(), *more, "-o", found, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["step_time_ns"] == 114_000


def modules(rank, name, start, end):
    """A stage of two layers: the first takes 3 us of F, the second the rest; backward 1 to 3."""
    yield from gpipe(rank, name, start, end)
    first = RUN[rank][name][1] + start - RUN[rank][name][0]
    number = 100 * rank + 10 * int(name[1]) + round(start) // STEP_US * 1000
    if name[0] == "F":
        yield event("python_function", "nn.Module: Sequential_0", first, end)
        for i, (low, high) in enumerate([(first, first + 3), (first + 3, end - 0.1)]):
            yield event("python_function", f"nn.Module: Linear_{i}", low, high)
            yield event("cpu_op", "aten::addmm", low, high, **{"Sequence number": number + i})
    else:
        quarter = (end - 0.1 - first) / 4
        for i, (low, high) in enumerate([(first + 3 * quarter, end - 0.1), (first, first + 3 * quarter)]):
            yield event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", low, high,
                        **{"Sequence number": number + i})  # fmt: skip


def test_modules_are_operators_and_their_backward_is_that_of_their_operations(imported, tmp_path):
    code, _ = imported([trace(rank, modules, lambda start, end: ()) for rank in (0, 1)])
    profile = read_profile(tmp_path / "profile.json")
    rows = {o.name: t for o, t in zip(profile.graph.operators, profile.times, strict=True)}
    assert code == 0
    assert list(rows) == ["stage0.Linear_0", "stage0.Linear_1", "stage1.Linear_0", "stage1.Linear_1", "loss"]
    took = {n: (t.forward_ns[0], t.backward_input_ns[0] + t.backward_weight_ns[0]) for n, t in rows.items()}
    assert took["stage0.Linear_0"] == pytest.approx((12_000 * 3 / 10, 22_000 / 4), rel=0.02)
    assert took["stage1.Linear_1"] == pytest.approx((17_000 * 12 / 15, 20_000 * 3 / 4), rel=0.02)
    assert sum(forward for forward, _ in took.values()) == 12_000 + 17_000


def without(key, rank=0):
    return {name: value for name, value in trace(rank).items() if name != key}


def pairs(rank):
    made = trace(rank)
    made["traceEvents"].append(event("user_annotation", "PP:(1F0;0B1)OVERLAP_F_B", 1, 2))
    return made


def other_step():
    made = trace(0)
    made["traceEvents"] = [e for e in made["traceEvents"] if not (e["name"] == "Backward 1" and e["ts"] > STEP_US)]
    return made


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([{"distributedInfo": {}, "traceEvents": [event("cpu_op", "aten::add", 0, 1)]}], "names no rank"),
        ([without("traceEvents")], "no traceEvents"),
        (["[1, 2]"], "no traceEvents"),
        (['{"traceEvents": [{"ph": "X"'], "was the file cut off?"),
        (['{"traceEvents": NaN}'], "found NaN"),
        (["[" * 100_000], "nested too deeply"),
        (['{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e999, "dur": 1}]}'], "a time of inf"),
        (['{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": -1}]}'], "a time of -1"),
        ([trace(0), trace(0)], "are both of rank 0; give one trace a rank"),
        ([trace(0), trace(1, steps=1)], "unlike numbers of steps (2 in "),
        ([trace(0, lambda *_: ()), trace(1)], "no action of a pipeline among its annotations ('Optimizer.step#SGD"),
        ([pairs(0), trace(1)], "overlapped pairs"),
        ([other_step(), trace(1)], "rank 0 did other actions in step 1 (3) than in step 0 (4)"),
    ],
)
def test_what_is_no_run_is_refused_with_what_was_found_and_nothing_is_written(imported, tmp_path, traces, message):
    code, answer = imported(traces)
    assert (code, answer["exit"]) == (3, 3)
    assert message in answer["error"]
    assert not (tmp_path / "profile.json").exists()


def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_held(imported, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_BYTES", 1 << 20)
    bomb = json.dumps(trace(0)) + " " * (1 << 24)
    code, answer = imported([bomb], suffix=".json.gz")
    assert code == 3
    assert "more than 1 MiB unpacked" in answer["error"]


def test_flags_of_traces_go_with_no_other_format(tmp_path, capsys):
    words = ["import", "layers", "table.csv", "-o", str(tmp_path / "out"), "--timeline-output", "t.json", "--json"]
    assert main(words) == 2
    assert "--timeline-output goes with import kineto" in json.loads(capsys.readouterr().out)["error"]


def training(steps=2, microbatches=2, modules=True):
    """A loop without a pipeline: per micro-batch loading, two modules, a loss (F 20 us), their backward (B 30 us)."""
    events, number = [], 0
    for step in range(steps):
        begin = 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step + 3}", begin, begin + 900))
        for at in range(begin + 10, begin + 10 + 100 * microbatches, 100):
            events.append(event("cpu_op", "aten::stack", at, at + 4, **{"Sequence number": number}))
            if modules:
                events.append(event("python_function", "nn.Module: Net_0", at + 5, at + 18))
                events.append(event("python_function", "nn.Module: Linear_0", at + 5, at + 11))
                events.append(event("python_function", "nn.Module: Linear_1", at + 12, at + 18))
            forward = ((at + 5, at + 11), (at + 12, at + 18), (at + 18, at + 25))
            for i, (first, last) in enumerate(forward):
                events.append(event("cpu_op", "aten::linear", first, last, **{"Sequence number": number + i}))
            back = ((at + 25, at + 30), (at + 30, at + 45), (at + 45, at + 55))
            for i, (first, last) in enumerate(back):
                told = {"Sequence number": number + 2 - i}
                name = "autograd::engine::evaluate_function: AddmmBackward0"
                events.append(event("cpu_op", name, first, last, thread=2, **told))
                events.append(event("cpu_op", "aten::mm", first, last, thread=2, **{"Sequence number": number + 9}))
            number += 3
        events.append(event("user_annotation", "Optimizer.step#SGD.step", begin + 500, begin + 600))
    return {"traceEvents": events}


def test_a_training_loop_of_one_rank_gives_a_profiles_times(imported, tmp_path):
    code, answer = imported([training()])
    assert code == 0
    assert (answer["steps"], answer["microbatches"]) == (4, 1)
    assert answer["stages"] == [{"stage": 0, "rank": 0, "B_ns": 30_000, "F_ns": 20_000}]
    profile = read_profile(tmp_path / "profile.json")
    assert [operator.name for operator in profile.graph.operators] == ["stage0.Linear_0", "stage0.Linear_1", "loss"]
    assert [times.forward_ns[0] for times in profile.times] == [10_000, 10_000, 0]
    backward = [times.backward_input_ns[0] + times.backward_weight_ns[0] for times in profile.times]
    assert sum(backward) == 30_000


def test_a_training_loop_without_modules_is_one_operator(imported):
    code, answer = imported([training(modules=False)])
    assert (code, answer["operators"]) == (0, 2)
    assert answer["stages"] == [{"stage": 0, "rank": 0, "B_ns": 30_000, "F_ns": 20_000}]


def test_training_loops_of_several_ranks_are_no_pipeline_and_are_refused(imported):
    traces = [{**training(), "distributedInfo": {"rank": rank, "world_size": 2}} for rank in (0, 1)]
    code, answer = imported(traces)
    assert code == 3
    assert "give one rank's trace" in answer["error"]


def test_a_trace_without_a_backward_is_refused(imported):
    without = [e for e in training()["traceEvents"] if "evaluate_function" not in e["name"]]
    code, answer = imported([{"traceEvents": without}])
    assert code == 3
    assert "no action of a pipeline" in answer["error"]
