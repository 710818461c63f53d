"""Feed-forward blocks: gated (Shazeer, 2020), plain, and mixtures of experts (Shazeer et al., 2017).

Experts are one grouped matrix product over the rows that `dispatch` sent to them, `active` a token when evenly spread;
`combine` weighs and sums them; the all-to-alls lie between these and the experts. Leaves out the auxiliary losses and
tokens dropped for capacity.
"""

from costmodel.architectures.builder import Shape, Value
from costmodel.architectures.layer_operators import LayerOperators, join
from costmodel.architectures.shapes import Experts
from costmodel.model.work import Work


def gated_feed_forward(builder: LayerOperators, path: str, x: Value, width: int, bias: bool = False) -> Value:
    """Add gate, up, activation and down."""
    gate = builder.linear(join(path, "gate_proj"), x, width, "column", bias=bias)
    up = builder.linear(join(path, "up_proj"), x, width, "column", bias=bias)
    inner = builder.gated(join(path, "act_fn"), "silu", gate, up)
    return builder.linear(join(path, "down_proj"), inner, x.width, "row", bias=bias)


def mixture(builder: LayerOperators, path: str, x: Value, shape: Experts) -> Value:
    """Add router, dispatch, experts, combine and the shared expert."""
    routed = _routed(builder, path, x, shape)
    if not shape.shared_width:
        return routed
    shared = gated_feed_forward(builder, join(path, shape.shared_name), x, shape.shared_width)
    reads = [routed, shared]
    if shape.shared_gate:
        gate = builder.linear(join(path, "shared_expert_gate"), x, 1, "sequence")
        return builder.elementwise(join(path, "add"), "add", [*reads, gate], keeps=[shared, gate], module=path)
    return builder.elementwise(join(path, "add"), "add", reads, module=path)


def _routed(builder: LayerOperators, path: str, x: Value, shape: Experts) -> Value:
    num, rows = shape.num_experts, x.tokens * shape.active
    scores = builder.linear(
        join(path, shape.router), _for_router(builder, path, x, shape), num, "whole", bias=shape.biased
    )
    owner = join(path, "experts")
    correction = {join(path, f"{shape.router}.e_score_correction_bias"): (num,)} if shape.corrected else None
    chosen = builder.elementwise(
        join(path, "topk"), "topk", [scores], split="whole", width=shape.active, keeps=[scores], buffers=correction,
        module=path,
    )  # fmt: skip
    work = Work("elementwise", "sequence", rows, outer=x.width, passes=2)
    sent = builder.add(join(path, "dispatch"), "dispatch", path, [x, chosen], work, x.width, saved=[chosen.saved])
    up = _expert_product(builder, owner, "gate_up_proj", sent, 2 * shape.width, shape)
    work = Work("elementwise", "expert", rows, outer=shape.width, passes=3, experts=num)
    act = join(owner, "act_fn")
    inner = builder.add(act, "silu_mul", act, [up], work, shape.width, saved=[up.saved])
    down = _expert_product(builder, owner, "down_proj", inner, x.width, shape)
    work = Work("elementwise", "sequence", x.tokens, outer=x.width, passes=1 + shape.active)
    saved = [down.saved, chosen.saved]
    return builder.add(join(path, "combine"), "combine", path, [down, chosen], work, x.width, saved=saved)


def _for_router(builder: LayerOperators, path: str, x: Value, shape: Experts) -> Value:
    """Return what the router reads: where it corrects its scores, in 32 bits (DeepSeek-V3's code)."""
    if not shape.corrected:
        return x
    work = Work("elementwise", "sequence", x.tokens, outer=x.width)
    return builder.add(join(path, f"{shape.router}.to"), "to", path, [x], work, x.width, element_bytes=4)


def _expert_product(builder: LayerOperators, owner: str, name: str, x: Value, outer: int, shape: Experts) -> Value:
    num, path = shape.num_experts, join(owner, name)
    weight: Shape = (num, x.width, outer) if shape.biased else (num, outer, x.width)
    parameters = {path: weight}
    if shape.biased:
        parameters[f"{path}_bias"] = (num, outer)
    tokens = x.tokens // shape.active
    work = Work(
        "matmul", "expert", tokens, inner=x.width, outer=outer, experts=num, active=shape.active, groups=shape.groups,
        reached=shape.reached,
    )  # fmt: skip
    return builder.add(
        path, "grouped_linear", owner, [x], work, outer, parameters=parameters, saved=[x.saved], tokens=x.tokens
    )
