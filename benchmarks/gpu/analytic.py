"""Question `analytic` (Show 3): how far analytic costs of a Llama stack are from its measured ones, kind by kind.

The description is the one that ``penstock model llama3-8b`` prices, with as many layers as the measured stack has. Its
operators and the captured ones are not the same (one describes a norm, the other may be several kernels), so sums over
each kind of work are compared. On a CPU, which the catalogue does not have, the numbers mean nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.gpu.setting import SUBJECTS, Row, Setting, Verdict, percent
from costmodel.architectures.describe import describe_config
from costmodel.architectures.table import find
from costmodel.architectures.whitelist import Default
from costmodel.machines.catalogue import CatalogueDevice
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import LOSS, Operator, OperatorGraph
from costmodel.model.profile import Profile
from costmodel.model.work import KINDS
from costmodel.roofline import OperatorEstimate, estimate

MODELS = ("llama3",)
ANY_DEVICE = "h100-sxm-80"
"""What a CPU's run is priced on, so that the code runs."""

_WORDS = (
    ("scaled_dot_product_attention", "attention"),
    ("linear", "matmul"),
    ("norm", "norm"),
    ("embedding", "embedding"),
)
"""Words of a captured operator's kind, and the kind of work that it is; anything else is elementwise."""

NUM_HEADS = {4096: 32, 128: 8}
"""Attention heads of the stack and of the small one by their width: no tensor of a profile says it."""

Times = dict[str, tuple[float, float]]
"""Kind of work -> forward and backward in ns."""


def rows(setting: Setting) -> Iterator[Callable[[], list[Row]]]:
    """Yield what compares each micro-batch size."""
    if not setting.chosen(MODELS):
        return
    profile = setting.profile(SUBJECTS["llama3"])
    for place in range(len(profile.microbatch_sizes)):
        yield lambda place=place: _rows(profile, place)  # type: ignore[misc]


def _rows(profile: Profile, place: int) -> list[Row]:
    device = catalogue_device(profile.device.catalogue or ANY_DEVICE)
    size = profile.microbatch_sizes[place]
    graph = described(profile, size)
    estimated = [_estimated(graph, device, size, scenario) for scenario in ("low_ns", "central_ns", "high_ns")]
    measured = _measured(profile, place)
    found = [_row(size, kind, measured, estimated) for kind in KINDS if kind in measured]
    return [*found, _row(size, "all", *_with_sums(measured, estimated))]


def described(profile: Profile, size: int) -> OperatorGraph:
    """Return the described stack of the measured one's shape, read off its parameters and tensors."""
    shapes = {parameter.name: parameter.shape for parameter in profile.graph.parameters}
    vocabulary, hidden = shapes["tokens.weight"]
    head = hidden // NUM_HEADS[hidden]
    width = 2 if profile.dtype == "bfloat16" else 4
    embedded = next(o for o in profile.graph.operators if "tokens.weight" in o.parameters)
    tokens = embedded.output_bytes[0] // profile.microbatch_sizes[0] // hidden // width
    config = find("llama3-8b").config()
    values: dict[str, Default] = {
        **config.values,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": shapes["layers.0.ffn.gate.weight"][0],
        "num_hidden_layers": sum(name.endswith("attention.query.weight") for name in shapes),
        "num_attention_heads": NUM_HEADS[hidden],
        "num_key_value_heads": shapes["layers.0.attention.key.weight"][0] // head,
    }
    made = replace(config, values=values)
    return describe_config("llama3", made, tokens=tokens, microbatch_sizes=(size,)).graph


def _estimated(graph: OperatorGraph, device: CatalogueDevice, size: int, scenario: str) -> Times:
    """Return the estimates in bf16 summed over kinds of work."""
    found: Times = {}
    for operator in graph.operators:
        assert operator.work is not None
        priced: OperatorEstimate = estimate(operator.work, device, "bf16", size)
        back = getattr(priced.backward_input, scenario) + getattr(priced.backward_weight, scenario)
        _add(found, operator.work.kind, getattr(priced.forward, scenario), back)
    return found


def _measured(profile: Profile, place: int) -> Times:
    found: Times = {}
    for operator, times in zip(profile.graph.operators, profile.times, strict=True):
        back = times.backward_input_ns[place] + times.backward_weight_ns[place]
        _add(found, kind_of_work(operator), times.forward_ns[place], back)
    return found


def kind_of_work(operator: Operator) -> str:
    """Return what kind of work a captured operator mostly is."""
    if operator.name == LOSS:
        return "loss"
    return next((kind for word, kind in _WORDS if word in operator.kind), "elementwise")


def _add(times: Times, kind: str, forward: float, backward: float) -> None:
    known = times.get(kind, (0.0, 0.0))
    times[kind] = (known[0] + forward, known[1] + backward)


def _with_sums(measured: Times, estimated: list[Times]) -> tuple[Times, list[Times]]:
    def all_of(times: Times) -> Times:
        return {"all": (sum(f for f, _ in times.values()), sum(b for _, b in times.values()))}

    return all_of(measured), [all_of(times) for times in estimated]


def _row(size: int, kind: str, measured: Times, estimated: list[Times]) -> Row:
    low, central, high = (times.get(kind, (0.0, 0.0)) for times in estimated)
    row: dict[str, object] = {"size": size, "kind": kind}
    for place, part in enumerate(("forward", "backward")):
        ns = measured[kind][place]
        row[f"{part}_ms"] = round(ns / 1e6, 3)
        row[f"{part}_%"] = percent(central[place] / ns) if ns else None
        row[f"{part}_inside"] = low[place] <= ns <= high[place]
    return row


def verdicts(found: list[Row]) -> list[Verdict]:
    """Say how many sums lie between the low and the high estimate: no bar, the errors are to be stated."""
    inside = sum(row[f"{part}_inside"] for row in found for part in ("forward", "backward"))
    return [(f"errors stated; {inside} of {2 * len(found)} sums lie between the low and the high estimate", True)]
