"""Operators that the layers of every architecture are made of, each with what autograd keeps of it.

Kept: a matrix product its input; a norm and an activation function theirs; flash attention (Dao et al., 2022) queries,
keys, values, output and one float a row (log-sum-exp); dropout a mask of one byte a value; the loss its logits in 32
bits (Korthikanti et al., 2022, section 4.4). A gated activation is one fused operator that keeps gate and up. Leaves
out biases' additions (part of the matrix product).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from costmodel.architectures.builder import GraphBuilder, Shape, Value
from costmodel.model.graph import LOSS
from costmodel.model.work import Work


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention's shape: heads, key and value heads, widths of a head, keys seen at most (0: all), masked or not."""

    num_heads: int
    num_kv_heads: int
    width: int
    value_width: int
    window: int = 0
    causal: bool = True


def join(path: str, name: str) -> str:
    """Return the path of a submodule."""
    return f"{path}.{name}" if path else name


class LayerOperators(GraphBuilder):
    """A graph builder that knows the operators of layers; every method adds one and returns its output."""

    def linear(
        self,
        module: str,
        x: Value,
        outer: int,
        split: str,
        *,
        bias: bool = False,
        transposed: bool = False,
        tied: str = "",
        inner: int = 0,
    ) -> Value:
        """Multiply by a weight of `module`, or the one named `tied`; `inner` regroups rows (fewer, wider ones)."""
        inner = inner or x.width
        shape = (inner, outer) if transposed else (outer, inner)
        parameters: dict[str, Shape] = {tied or join(module, "weight"): shape}
        if bias:
            parameters[join(module, "bias")] = (outer,)
        work = Work("matmul", split, x.tokens * x.width // inner, inner=inner, outer=outer)
        return self.add(module, "linear", module, [x], work, outer, parameters=parameters, saved=[x.saved])

    def norm(self, module: str, x: Value, *, bias: bool = False, split: str = "sequence", width: int = 0) -> Value:
        """Normalise each row, or each head's `width` numbers of it."""
        parameters: dict[str, Shape] = {join(module, "weight"): (width or x.width,)}
        if bias:
            parameters[join(module, "bias")] = (width or x.width,)
        work = Work("norm", split, x.tokens, outer=x.width)
        kind = "layer_norm" if bias else "rms_norm"
        return self.add(module, kind, module, [x], work, x.width, parameters=parameters, saved=[x.saved])

    def elementwise(
        self,
        path: str,
        kind: str,
        reads: Sequence[Value],
        *,
        split: str = "sequence",
        width: int = 0,
        tokens: int = 0,
        keeps: Sequence[Value] = (),
        parameters: Mapping[str, Shape] | None = None,
        buffers: Mapping[str, Shape] | None = None,
        module: str | None = None,
    ) -> Value:
        """Combine values number by number; nothing is kept but `keeps`. Small ones are read in no time."""
        width, tokens = width or reads[0].width, tokens or reads[0].tokens
        made = tokens * width
        read = sum(min(value.tokens * value.width, made) for value in reads)
        work = Work("elementwise", split, tokens, outer=width, passes=1 + round(read / made))
        owner = path.rpartition(".")[0] if module is None else module
        saved = [value.saved for value in keeps]
        return self.add(path, kind, owner, reads, work, width, parameters=parameters, buffers=buffers, saved=saved)

    def activation(self, path: str, kind: str, x: Value, split: str = "inner") -> Value:
        """Apply an activation function, a module of its own."""
        return self.elementwise(path, kind, [x], split=split, keeps=[x], module=path)

    def gated(self, path: str, kind: str, gate: Value, up: Value, split: str = "inner") -> Value:
        """Multiply `up` by the activated gate."""
        return self.elementwise(path, f"{kind}_mul", [gate, up], split=split, keeps=[gate, up], module=path)

    def dropout(self, path: str, x: Value, rate: float, split: str = "sequence") -> Value:
        """Drop values at this rate; at 0 there is no operator."""
        if not rate:
            return x
        work = Work("elementwise", split, x.tokens, outer=x.width)
        return self.add(path, "dropout", path, [x], work, x.width, saved=[self.keep(x.tokens * x.width)])

    def embedding(
        self, module: str, tokens: int, rows: int, width: int, split: str = "row", tied: str = "", batched: bool = True
    ) -> Value:
        """Look rows up; the indices are raw inputs. Not `batched`: one result for all samples (positions)."""
        work = Work("embedding", split, tokens, inner=rows, outer=width)
        parameters: dict[str, Shape] = {tied or join(module, "weight"): (rows, width)}
        return self.add(module, "embedding", module, (), work, width, parameters=parameters, fixed=not batched)

    def attention(
        self,
        path: str,
        q: Value,
        k: Value,
        v: Value,
        heads: Heads,
        *,
        parameters: Mapping[str, Shape] | None = None,
        bias: Value | None = None,
    ) -> Value:
        """Attend with a flash kernel; `q`, `k` and `v` may be one value, `bias` is added to the scores."""
        context = min(heads.window, k.tokens) if heads.window else k.tokens
        work = Work(
            "attention", "inner", q.tokens, inner=heads.width, outer=heads.value_width, heads=heads.num_heads,
            kv_heads=heads.num_kv_heads, context=context, causal=heads.causal,
        )  # fmt: skip
        reads = [q, k, v] + ([bias] if bias else [])
        saved = [value.saved for value in reads]
        owner = path.rpartition(".")[0]
        width = heads.num_heads * heads.value_width
        rows = self.keep(4 * heads.num_heads * q.tokens)
        out = self.add(path, "attention", owner, reads, work, width, parameters=parameters, saved=[*saved, rows])
        last = self.operators[-1]
        # The output's storage is known only once the operator is there.
        self.operators[-1] = replace(last, saved=(*last.saved, out.saved))
        return out

    def head_and_loss(self, x: Value, vocabulary: int, tied: str = "") -> Value:
        """Multiply by the (perhaps tied) vocabulary and take the cross-entropy."""
        logits = self.linear("lm_head", x, vocabulary, "column", tied=tied)
        return self.cross_entropy([logits])

    def cross_entropy(self, logits: Sequence[Value], split: str = "inner") -> Value:
        """Add the operator `loss`; with several values it sums their losses. `split`: whether logits are divided."""
        tokens, width = sum(value.tokens for value in logits), logits[0].width
        work = Work("loss", split, tokens, outer=width)
        saved = [self.keep(4 * tokens * width)]
        return self.add(LOSS, LOSS, "", logits, work, 1, saved=saved, tokens=1, element_bytes=4, fixed=True)
