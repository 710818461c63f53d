"""A device that works behind its host, for tests: streams on few hardware queues, messages that wait for both ends.

Tensors live on the CPU. An operator's outputs are made at once, without values; what fills them is put into the queue
of the stream that computes, and a thread runs it when what stands before it is done. Messages and collectives have a
stream a communicator; their `wait` only lets the computing stream wait. Streams share hardware queues, and whatever
stands at the head of one blocks all behind it. Where the host asks for a value it waits for the device: it is noted.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import executor.communication.groups
import executor.communication.transport

ASKS = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero", "aten::allclose"}
RECEIPT = 1 << 20
COMPUTE = 0
DONE = threading.Event()
DONE.set()


class Streams(TorchDispatchMode):
    """The device of one rank."""

    def __init__(self, num_queues: int) -> None:
        super().__init__()
        self.asked: list[str] = []
        """Operators and calls for which the host has waited, in order."""
        self.num_streams = count(1)
        self.failed: list[BaseException] = []
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(num_queues)]
        self._shapes: dict[Any, Any] = {}
        self._threads = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._queues]
        for thread in self._threads:
            thread.start()

    def put(self, stream: int, work: Callable[[], Any]) -> threading.Event:
        """Queue some work of a stream; returns what is set once it is done."""
        done = threading.Event()
        self._queues[stream % len(self._queues)].put((work, done))
        return done

    def waits_for(self, stream: int, done: threading.Event) -> None:
        """Let what a stream does next wait for other work."""
        self.put(stream, done.wait)

    def drain(self, why: str) -> None:
        """Let the host wait for what computes."""
        self.asked.append(why)
        self.put(COMPUTE, lambda: None).wait()
        self.check()

    def check(self) -> None:
        if self.failed:
            raise RuntimeError(f"the device failed: {self.failed[0]!r}") from self.failed[0]

    def close(self) -> None:
        for one in self._queues:
            one.put(None)
        for thread in self._threads:
            thread.join(10)

    def _work(self, tasks: "queue.SimpleQueue[Any]") -> None:
        torch.set_num_threads(1)
        while (task := tasks.get()) is not None:
            work, done = task
            try:
                with torch.no_grad(), torch._C._AutoDispatchBelowADInplaceOrView():
                    work()
            except BaseException as error:
                self.failed.append(error)
            done.set()
            del task, work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, FakeTensor) or leaf.is_meta for leaf in given) or _makes_views(func):
            return func(*args, **kwargs)
        if func._schema.name in ASKS:
            self.drain(func._schema.name)
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func._schema.name:
            return self._drawn(func, args, kwargs)
        if not given:  # makes values of nothing
            return func(*args, **kwargs)
        outputs = self._made(func, args, kwargs)
        self.put(COMPUTE, lambda: _fill(outputs, func(*args, **kwargs)))
        return outputs

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Draw now, as the generators stand; the numbers may not depend on values that are still to be computed."""
        if not func._schema.is_mutable:
            self.put(COMPUTE, lambda: None).wait()
            return func(*args, **kwargs)
        target, *others = args
        drawn = func(torch.empty_like(target), *others, **kwargs)
        self.put(COMPUTE, lambda: target.copy_(drawn))
        return target

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the outputs, without values: arguments that are written to, or new tensors of the right shapes."""
        returns = [_written(func, result.alias_info, args, kwargs) for result in func._schema.returns]
        if all(value is not None for value in returns):
            return None if not returns else returns[0] if len(returns) == 1 else tuple(returns)
        key = str((func, pytree.tree_map_only(torch.Tensor, _shape, (args, kwargs))))
        if key not in self._shapes:
            with FakeTensorMode(allow_non_fake_inputs=True) as fake:
                like = pytree.tree_map_only(torch.Tensor, lambda t: fake.from_tensor(t.detach()), (args, kwargs))
                found = func(*like[0], **like[1])
            self._shapes[key] = pytree.tree_map_only(torch.Tensor, _shape, found)
        shapes = self._shapes[key]
        return pytree.tree_map_only(_Shape, lambda s: torch.empty_strided(s.size, s.stride, dtype=s.dtype), shapes)


class _Shape:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.size, self.stride, self.dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype

    def __repr__(self) -> str:
        return f"{self.size}{self.stride}{self.dtype}"


_shape = _Shape


def _makes_views(func: Any) -> bool:
    infos = [result.alias_info for result in func._schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def _written(func: Any, info: Any, args: Any, kwargs: Any) -> Any:
    """Return the argument that a result is, None where it is new."""
    if info is None:
        return None
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & info.before_set:
            return args[i] if i < len(args) else kwargs[argument.name]
    return None


def _fill(outputs: Any, values: Any) -> None:
    if outputs is None:
        return
    for output, value in zip(pytree.tree_leaves(outputs), pytree.tree_leaves(values), strict=True):
        if isinstance(output, torch.Tensor) and output.data_ptr() != value.data_ptr():
            output.copy_(value)


class Work:
    """What a communicator has been given: waiting for it orders streams."""

    def __init__(self, streams: Streams, done: threading.Event) -> None:
        self._streams, self._done = streams, done

    def wait(self) -> None:
        self._streams.waits_for(COMPUTE, self._done)

    def is_completed(self) -> bool:
        return self._done.is_set()


class Communicator:
    """A group of the device's: every call stands in the communicator's stream until all others have come to it."""

    def __init__(self, streams: Streams, group: Any) -> None:
        self._streams, self._group, self._stream = streams, group, next(streams.num_streams)

    def _put(self, work: Callable[[], Any]) -> Work:
        self._streams.waits_for(self._stream, self._streams.put(COMPUTE, lambda: None))  # what it sends is computed
        return Work(self._streams, self._streams.put(self._stream, work))

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        def work() -> None:
            self._group.send(tensors, peer, 0).wait()
            self._group.recv([torch.zeros(1)], peer, RECEIPT).wait()

        return self._put(work)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Work:
        def work() -> None:
            self._group.recv(tensors, peer, 0).wait()
            self._group.send([torch.zeros(1)], peer, RECEIPT).wait()

        return self._put(work)

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return self._put(lambda: self._group.allreduce(tensors).wait())

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        return self._put(lambda: self._group.broadcast(tensor, root).wait())

    def shutdown(self) -> None:
        self._group.shutdown()


class Control:
    """The group on the host: whoever hands it a tensor has waited for the device."""

    def __init__(self, streams: Streams, group: Any) -> None:
        self._streams, self._group = streams, group

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Work:
            self._streams.drain(f"control {name}")
            with _disable_current_modes():
                getattr(self._group, name)(*arguments).wait()
            return Work(self._streams, DONE)

        return call

    def shutdown(self) -> None:
        self._group.shutdown()


@contextmanager
def behind_the_host(num_queues: int) -> Iterator[Streams]:
    """Let the executor run on such a device within the block."""
    streams, patched = Streams(num_queues), {}
    company = executor.communication.groups.ProcessGroups
    plain = company.group

    def group(self: Any, ranks: Any, backend: str, purpose: str = "") -> Any:
        if backend != "virtual":
            return Control(streams, plain(self, ranks, backend, purpose))
        key = f"{self._name}/virtual/{'.'.join(map(str, ranks))}/{purpose}"
        if key not in self._made:
            self._made[key] = Communicator(streams, plain(self, ranks, "gloo", f"virtual {purpose}"))
            self.communicators += 1
        return self._made[key]

    told = company._told

    def _told(self: Any, data: bytes, everyone: bool) -> Any:
        with _disable_current_modes():  # the host's own tensors
            return told(self, data, everyone)

    def reached(device: torch.device) -> Callable[[], bool]:
        return streams.put(COMPUTE, lambda: None).is_set

    patches = {
        (company, "group"): group,
        (company, "_told"): _told,
        (executor.communication.groups, "carrier"): lambda identities: "virtual",
        (executor.communication.groups, "reached"): reached,
    }
    for (where, name), value in patches.items():
        patched[where, name] = getattr(where, name)
        setattr(where, name, value)
    try:
        with streams:
            yield streams
    finally:
        for (where, name), value in patched.items():
            setattr(where, name, value)
        streams.close()
