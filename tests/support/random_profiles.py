"""Profiles made up for tests: random operator graphs, branches, a U-Net, a chain; no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from costmodel.machines.links import LinkClass, Links, SizeRange
from costmodel.model.graph import Operator, OperatorGraph, Parameter, SavedStorage, Tensor
from costmodel.model.profile import Device, OperatorTimes, Profile
from costmodel.model.whole_model import WholeModelMeasurements

SIZES = (1, 2, 4)


def profile_of(
    works: Sequence[int],
    edges: Iterable[tuple[int, int]],
    *,
    sizes: tuple[int, ...] = SIZES,
    tensor_bytes: int = 1000,
    saved_bytes: int = 4000,
    parameter_bytes: int = 20_000,
    latency_ns: int = 50,
    host_ns: int = 0,
    in_place: frozenset[int] = frozenset(),
    frozen: frozenset[int] = frozenset(),
    tied: Sequence[tuple[int, int]] = (),
    whole: WholeModelMeasurements | None = None,
) -> Profile:
    """Return a profile whose i-th operator works `works[i]` ns forward a sample and twice that backward.

    A message takes `host_ns` and a nanosecond for each 10 bytes from each of its ends, if that is given.
    """
    names = [f"op{i}" for i in range(len(works))]
    consumers: dict[int, list[int]] = {}
    for source, target in edges:
        consumers.setdefault(source, []).append(target)
    owner = {i: i for i in range(len(works))} | {second: first for first, second in tied}
    operators = tuple(
        Operator(
            name,
            "linear",
            parameters=(f"w{owner[i]}",),
            parameter_bytes=parameter_bytes,
            output_bytes=tuple(tensor_bytes * s for s in sizes),
            saved=(SavedStorage(i, saved_bytes),),
            trainable=i not in frozen,
            in_place=i in in_place,
        )
        for i, name in enumerate(names)
    )
    tensors = tuple(
        Tensor(
            f"t{i}",
            names[i],
            tuple(names[c] for c in row),
            tuple(tensor_bytes * s for s in sizes),
            gradient=i not in frozen,
            storage=1000 + i,
        )
        for i, row in sorted(consumers.items())
    )
    parameters = tuple(Parameter(f"w{i}", (5000,), parameter_bytes) for i in sorted(set(owner.values())))
    times = tuple(
        OperatorTimes(
            tuple(w * s for s in sizes),
            tuple(0 if i in frozen else w * s for s in sizes),
            tuple(0 if i in frozen else w * s for s in sizes),
            tuple(0.0 for _ in sizes),
        )
        for i, w in enumerate(works)
    )
    classes = {"p2p": LinkClass((SizeRange(0, latency_ns, 1.0),))}
    if host_ns:
        classes["p2p_host"] = LinkClass((SizeRange(0, host_ns, 10.0),))
    return Profile(
        OperatorGraph("made-up", operators, tensors, parameters),
        Device("cpu", "tester", 2**40),
        "float32",
        sizes,
        times,
        whole or WholeModelMeasurements(tuple(3 * sum(works) * s for s in sizes)),
        Links("gloo", "cpu", 2, classes),
    )


def chain(num_operators: int, work: int = 1000, **options: object) -> Profile:
    """Return operators in one line."""
    return profile_of([work] * num_operators, [(i, i + 1) for i in range(num_operators - 1)], **options)  # type: ignore[arg-type]


def branches(num_branches: int, length: int, work: int = 1000, head: int = 2, **options: object) -> Profile:
    """Return equal branches that meet in a head."""
    first_head = num_branches * length
    edges = [(b * length + i, b * length + i + 1) for b in range(num_branches) for i in range(length - 1)]
    edges += [(b * length + length - 1, first_head) for b in range(num_branches)]
    edges += [(first_head + i, first_head + i + 1) for i in range(head - 1)]
    return profile_of([work] * first_head + [work // 10] * head, edges, **options)  # type: ignore[arg-type]


def u_net(depth: int, work: int = 1000, **options: object) -> Profile:
    """Return an encoder and a decoder with skips between equal levels."""
    edges = [(i, i + 1) for i in range(2 * depth - 1)] + [(i, 2 * depth - 1 - i) for i in range(depth - 1)]
    return profile_of([work] * (2 * depth), edges, **options)  # type: ignore[arg-type]


def random_profile(rng: Random, num_operators: int, **options: object) -> Profile:
    """Return a random connected graph with uneven work, which ends in one operator as a loss does."""
    edges = []
    for target in range(1, num_operators - 1):
        sources = rng.sample(range(target), min(target, rng.choice((1, 1, 1, 2))))
        edges += [(source, target) for source in sorted(sources)]
    read = {source for source, _ in edges}
    edges += [(source, num_operators - 1) for source in range(num_operators - 1) if source not in read]
    return profile_of([rng.randint(100, 3000) for _ in range(num_operators)], edges, **options)  # type: ignore[arg-type]


def with_shared_storages(rng: Random, profile: Profile) -> Profile:
    """Return a profile in which operators share storages, as captured models do.

    Readers keep what they read, as a residual is kept by one reader and read by another; some outputs are two views of
    one packed storage, with readers of their own; some operators make a view of what they read.
    """
    graph, sizes = profile.graph, profile.microbatch_sizes
    storage_of = {t.producer: t.storage for t in graph.tensors}
    for tensor in graph.tensors:
        for reader in tensor.consumers:
            if reader in storage_of and rng.random() < 0.15:
                storage_of[reader] = storage_of[tensor.producer]
    tensors = []
    for tensor in graph.tensors:
        tensor = replace(tensor, storage=storage_of[tensor.producer])
        if len(tensor.consumers) > 1 and rng.random() < 0.5:
            part = rng.choice((1, 2)), 3
            first = tuple(size * part[0] // part[1] for size in tensor.size_bytes)
            rest = tuple(size - less for size, less in zip(tensor.size_bytes, first, strict=True))
            cut = rng.randrange(len(tensor.consumers)) + 1
            tensors.append(replace(tensor, consumers=tensor.consumers[:cut], size_bytes=first))
            tensors.append(
                replace(tensor, name=f"{tensor.name}.1", consumers=tensor.consumers[cut - 1 :], size_bytes=rest)
            )
        else:
            tensors.append(tensor)
    whole = {
        t.storage: max(u.size_bytes[0] for u in graph.tensors if storage_of[u.producer] == t.storage) for t in tensors
    }
    kept: dict[str, dict[int, SavedStorage]] = {o.name: {s.storage: s for s in o.saved if rng.random() < 0.5}
                                                for o in graph.operators}  # fmt: skip
    for tensor in tensors:
        for name in (tensor.producer, *tensor.consumers):
            if rng.random() < 0.5:
                kept[name][tensor.storage] = SavedStorage(tensor.storage, whole[tensor.storage] // sizes[0])
    operators = tuple(replace(o, saved=tuple(kept[o.name].values())) for o in graph.operators)
    return replace(profile, graph=replace(graph, operators=operators, tensors=tuple(tensors)))
