"""A GPT as Korthikanti et al. (2022) count its activations: every stored value one storage, masks one byte."""

from costmodel.machines.cluster import Cluster
from costmodel.machines.cluster_parts import DeviceType, Host, LinkGroup
from costmodel.model.graph import Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements
from costmodel.model.work import Work

TWO = 2


class Gpt:
    """Collects the operators of a GPT in 16 bits: sequence s, hidden h, a heads, vocabulary v."""

    def __init__(self, s: int, h: int, a: int, v: int = 0) -> None:
        self.s, self.h, self.a, self.v = s, h, a, v
        self.operators: list[Operator] = []
        self.outputs: dict[str, int] = {}
        self.readers: dict[str, list[str]] = {}
        self.parameters: dict[str, Parameter] = {}

    def add(self, name, module, work, reads=(), keeps=(), weights=(), width=0, mask=0):
        """Add an operator that keeps the outputs of `keeps` and a mask of its own; `weights` are (name, shape)."""
        for source in reads:
            self.readers[source].append(name)
        for weight, shape in weights:
            size = TWO
            for n in shape:
                size *= n
            self.parameters[weight] = Parameter(weight, shape, size)
        storages = {source: i for i, source in enumerate(self.outputs)}
        saved = [SavedStorage(storages[source], self.outputs[source]) for source in keeps]
        saved += [SavedStorage(10_000 + len(self.operators), mask)] * bool(mask)
        self.outputs[name] = TWO * self.s * width
        self.readers[name] = []
        names = tuple(weight for weight, _ in weights)
        held = sum(self.parameters[n].size_bytes for n in names)
        self.operators.append(
            Operator(name, work.kind, module, 1, names, held, (self.outputs[name],), tuple(saved), work=work)
        )
        return name

    def layer(self, index: int, x: str) -> str:
        """Add one transformer layer that reads `x`."""
        s, h, a = self.s, self.h, self.a
        m = f"layers.{index}"
        norm = Work("norm", "sequence", s, outer=h)
        n1 = self.add(f"{m}.ln1", m, norm, [x], [x], [(f"{m}.ln1.w", (h,))], h)
        qkv = self.add(
            f"{m}.qkv", m, Work("matmul", "column", s, h, 3 * h), [n1], [n1], [(f"{m}.qkv.w", (3 * h, h))], 3 * h
        )
        core = Work("attention", "inner", s, h // a, h // a, heads=a, kv_heads=a, context=s, causal=True)
        mix = self.add(f"{m}.core", m, core, [qkv], [qkv], (), h)
        out = self.add(f"{m}.proj", m, Work("matmul", "row", s, h, h), [mix], [mix], [(f"{m}.proj.w", (h, h))], h)
        drop = Work("elementwise", "sequence", s, outer=h)
        r1 = self.add(f"{m}.drop1", m, drop, [out, x], (), (), h, mask=s * h)
        n2 = self.add(f"{m}.ln2", m, norm, [r1], [r1], [(f"{m}.ln2.w", (h,))], h)
        up = self.add(
            f"{m}.up", m, Work("matmul", "column", s, h, 4 * h), [n2], [n2], [(f"{m}.up.w", (4 * h, h))], 4 * h
        )
        act = self.add(f"{m}.gelu", m, Work("elementwise", "inner", s, outer=4 * h), [up], [up], (), 4 * h)
        down = self.add(
            f"{m}.down", m, Work("matmul", "row", s, 4 * h, h), [act], [act], [(f"{m}.down.w", (h, 4 * h))], h
        )
        return self.add(f"{m}.drop2", m, drop, [down, r1], (), (), h, mask=s * h)

    def source(self) -> str:
        """Add what feeds the first layer: an embedding where there is a vocabulary, else nothing but a value."""
        work = (
            Work("embedding", "row", self.s, self.v, self.h)
            if self.v
            else Work("elementwise", "sequence", self.s, outer=self.h)
        )
        weights = [("tokens", (self.v, self.h))] if self.v else ()
        return self.add("source", "", work, (), (), weights, self.h)

    def head(self, x: str) -> None:
        """Add a tied head and the loss over the divided vocabulary."""
        logits = self.add(
            "head",
            "",
            Work("matmul", "column", self.s, self.h, self.v),
            [x],
            [x],
            [("tokens", (self.v, self.h))],
            self.v,
        )
        self.add("loss", "", Work("loss", "inner", self.s, outer=self.v), [logits], [logits], (), 0)

    def profile(self, forward_ns: int = 1000, catalogue: str = "a100-sxm-80") -> Profile:
        """Return all operators, each taking `forward_ns` for F, I and, with weights, W."""
        tensors = tuple(
            Tensor(o.name, o.name, tuple(self.readers[o.name]), o.output_bytes, storage=i)
            for i, o in enumerate(self.operators)
            if self.readers[o.name]
        )
        graph = OperatorGraph("gpt", tuple(self.operators), tensors, tuple(self.parameters.values()))
        times = tuple(
            OperatorTimes((forward_ns,), (forward_ns,), (forward_ns if o.parameters else 0,), (0.0,))
            for o in self.operators
        )
        device = Device("cuda", catalogue or "unknown", 80 * 2**30, catalogue)
        return Profile(graph, device, "float16", (1,), times, WholeModelMeasurements((1,), 0, 700, 9000))


def gpt(num_layers: int = 1, s: int = 64, h: int = 32, a: int = 4, v: int = 0, **options: object) -> Profile:
    """Return the profile of a GPT; without a vocabulary it has neither embedding nor head."""
    model = Gpt(s, h, a, v)
    x = model.source()
    for index in range(num_layers):
        x = model.layer(index, x)
    if v:
        model.head(x)
    return model.profile(**options)


def cluster(num_devices: int = 64, memory_gib: int = 0) -> Cluster:
    """Return hosts of eight A100 with NVLink inside and InfiniBand between them."""
    per_host = min(8, num_devices)
    return Cluster(
        (DeviceType("a100", 80 * 2**30, "cuda", "a100-sxm-80"),),
        (Host("a100", per_host, num_devices // per_host, memory_gib * 2**30),),
        (LinkGroup("nvlink", per_host, 240.0, 6000), LinkGroup("ib", 0, 24.0, 15000)),
    )
