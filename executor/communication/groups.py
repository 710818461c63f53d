"""The ranks of one pipeline: their process groups, made once a set of ranks and ended as they were made.

A pipeline is a guest: in a world that the program has joined, whatever its backend, it makes a group of its own on the
CPU for what ranks tell each other, and of the device's backend where tensors travel there; where nobody has joined a
world it joins one. Only members make a group (torch's `new_group` wants all of the world, or names groups by how many
each rank has made): backends stand directly on the world's store, under names that members agree on without a word.
Ranks are numbered within the pipeline, and in a group by their place. Each group has a limit; who is late says the
watch, sooner.

A thread of gloo asks for the interpreter's lock when it drops a tensor that Python made, which it does a moment after
it has said that the work is complete. Is the interpreter ending by then, the thread is made to exit inside a destructor
and takes the process down: SIGABRT, "terminate called without an active exception" (torch's issues 38228 and 190489).
So these threads have to be joined before. Torch joins them when the last reference to their group goes, which
`destroy_process_group` alone does not see to. Leaves out groups that nobody has told to leave.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from socket import socket
from typing import Any

import torch
import torch.distributed as dist

from costmodel.errors import DoesNotMatch, PeerLost
from executor.communication.mesh import connect_all
from executor.communication.starts import agree_on_start, arrivals
from executor.communication.watch import Watchdog
from executor.plan_match.devices import carrier, identity, reached

_PIPELINES: dict[tuple[int, ...], int] = {}
"""How many pipelines this process has made over the same ranks of its world, as each of these ranks has."""

_NAMED: dict[str, Any] = {}
"""Groups that torch's own collectives find by these names."""

_USERS: Counter[str] = Counter()
"""How many pipelines of this process use each of them."""

MESSAGES = "messages"
MESSAGE_CTAS = 4
"""Most blocks (each takes an SM) of a communicator of two ranks: messages are small, and compute runs beside them."""

LIMIT_S = 300.0
"""Least limit of a group: ranks come to the first meeting as fast as they have loaded and captured their model."""


class RefusedAlike(DoesNotMatch):
    """What one rank has refused and all now do: they leave together."""

    alike = True


class ProcessGroups:
    """The ranks of one pipeline and what they share.

    Parameters
    ----------
    rank, size : int
        Within the pipeline.
    timeout_s : float
        After which a rank that the others wait for is lost.
    group : torch.distributed.ProcessGroup, optional
        The pipeline's ranks in a world of the user's; default: all of the world.

    Attributes
    ----------
    control : ProcessGroup or None
        All ranks, on the CPU; None for a rank that is alone.
    watch : Watchdog
    carrier : str
        What takes tensors of the ranks' devices: ``gloo`` or ``nccl``; known after `choose_carrier`.
    communicators : int
        Groups on the devices that this rank is in; each holds memory of its device.
    """

    def __init__(self, rank: int, size: int, timeout_s: float, group: Any = None) -> None:
        self.rank, self.size = rank, size
        self._limit = timedelta(seconds=max(timeout_s, LIMIT_S))
        self._owns_world = size > 1 and not dist.is_initialized()
        self._made: dict[str, Any] = {}
        self._named: set[str] = set()
        self.control: Any = None
        self.carrier, self.communicators = "gloo", 0
        self._store: Any = None
        self._signs: list[str] = []
        try:
            sockets = self._meet(group) if size > 1 else {}
        except (RuntimeError, OSError) as error:  # torch's errors of its store and of gloo are RuntimeErrors
            raise PeerLost(f"rank {rank}: {self._not_there()} ({str(error).strip().splitlines()[0]})") from None
        self.watch = Watchdog(rank, sockets, timeout_s)

    def _meet(self, group: Any) -> dict[int, socket]:
        """Make the control group with all ranks once each has said that it is there; return sockets to the others."""
        if self._owns_world:
            rendezvous: Any = dist.rendezvous  # type: ignore[attr-defined]
            self._store, rank, size = next(iter(rendezvous("env://", timeout=self._limit)))
            self._signs = arrivals(size)
            start = agree_on_start(self._store, rank, size, self._limit)
            self._store = dist.distributed_c10d.PrefixStore(start, self._store)
            dist.init_process_group("gloo", store=self._store, rank=rank, world_size=size, timeout=self._limit)
        members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
        _PIPELINES[members] = _PIPELINES.get(members, 0) + 1
        self._name = f"penstock/{'.'.join(map(str, members))}/{_PIPELINES[members]}"
        self._store = dist.distributed_c10d._get_default_store()
        self._here(self._name)
        self.control = self.group(range(self.size), "gloo")
        return connect_all(self.rank, self.all_gather_bytes)

    def _here(self, name: str) -> None:
        """Say that this rank is there, and wait until all have said so."""
        self._signs = [f"{name}/here/{rank}" for rank in range(self.size)]
        self._store.set(self._signs[self.rank], b"")
        self._store.wait(self._signs, self._limit)

    def _not_there(self) -> str:
        """Return which ranks have not come to the start, for people."""
        late: list[int] = []
        with suppress(RuntimeError):  # the store may be what is lost
            late = [rank for rank, sign in enumerate(self._signs) if not self._store.check([sign])]
        who = f"rank {', '.join(map(str, late))}" if late else "another rank"
        limit_s = self._limit.total_seconds()
        return f"{who} has said nothing within the {limit_s:g} s of the start: end all ranks and start them together"

    def group(self, ranks: Sequence[int], backend: str, purpose: str = "") -> Any:
        """Return the group of some ranks, made when it is first asked for; collective over them.

        `purpose` tells groups of the same ranks apart where one must not wait for another.
        """
        key = f"{self._name}/{backend}/{'.'.join(map(str, ranks))}/{purpose}"
        if key not in self._made:
            store = dist.distributed_c10d.PrefixStore(key, dist.distributed_c10d._get_default_store())
            place = list(ranks).index(self.rank)
            if backend == "nccl":
                made: Any = dist.ProcessGroupNCCL(store, place, len(ranks), self._nccl_options(purpose))
                self._made[key] = made
                device = torch.device("cuda", torch.cuda.current_device())
                bind(made, store, place, len(ranks), device)
                with self.waiting(ranks):  # now, and messages travel by this communicator: torch would make another
                    made.eager_connect_single_device(device)
            else:
                self._made[key] = dist.ProcessGroupGloo(store, place, len(ranks), self._limit)
            self.communicators += backend != "gloo"
        return self._made[key]

    def _nccl_options(self, purpose: str) -> Any:
        """Return the options of a communicator: messages of the pipeline go first, and take little from compute."""
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = self._limit
        if purpose == MESSAGES:
            options.is_high_priority_stream = True
            options.config.max_ctas = MESSAGE_CTAS
        return options

    @property
    def asynchronous(self) -> bool:
        """Whether what carries tensors only orders the device's streams, so that no call waits for another rank."""
        return self.carrier != "gloo"

    def everyone(self) -> Any:
        """Return the group of all ranks for numbers of a step: on the device where the host waits for none of it.

        On gloo one of its own: a rank's loss may set out before a sum of gradients over all ranks, another's behind it.
        """
        return self.group(range(self.size), self.carrier, "" if self.asynchronous else "numbers")

    def group_on(self, ranks: Sequence[int], purpose: str = "") -> Any:
        """Return the group of some ranks that takes tensors of their devices (through the host if it must)."""
        return self.group(ranks, self.carrier, purpose)

    def named_group(self, ranks: Sequence[int]) -> Any:
        """Return a group of some ranks that torch's own collectives find by its name; collective over them.

        Torch remembers names by meshes that look alike: a later pipeline's group has the same name, and meets elsewhere
        in the store. The last pipeline that uses a group ends it.
        """
        backend = self.carrier
        c10d: Any = dist.distributed_c10d
        name = f"penstock/{backend}/{'.'.join(map(str, ranks))}"
        if name not in self._named:
            self._named.add(name)
            _USERS[name] += 1
        if _NAMED.get(name) not in c10d._world.pg_map:
            store = c10d.PrefixStore(self._name, c10d._get_default_store())
            place = list(ranks).index(self.rank)
            made, _ = c10d._new_process_group_helper(
                len(ranks), place, list(ranks), c10d.Backend(backend), store, name, timeout=self._limit
            )
            c10d._world.pg_group_ranks[made] = {rank: i for i, rank in enumerate(ranks)}
            _NAMED[name] = made
        return _NAMED[name]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, in order of rank; collective (and without numpy, which torch's objects need)."""
        return self._told(data, everyone=True) or []

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """Return every rank's bytes on rank 0, None elsewhere; collective."""
        return self._told(data, everyone=False)

    def _told(self, data: bytes, everyone: bool) -> list[bytes] | None:
        if self.size == 1:
            return [data]
        length = torch.tensor([len(data)])
        lengths = [torch.zeros_like(length) for _ in range(self.size)]
        with self.waiting():
            self.control.allgather(lengths, length).wait()
            width = max(1, *(int(n) for n in lengths))
            own = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8)
            buffers = [bytearray(width) for _ in range(self.size if everyone or self.rank == 0 else 0)]
            rows = [torch.frombuffer(buffer, dtype=torch.uint8) for buffer in buffers]
            (self.control.allgather(rows, own) if everyone else self.control.gather(rows, own, 0)).wait()
        return [bytes(buffer[: int(n)]) for buffer, n in zip(buffers, lengths, strict=True)] if buffers else None

    @contextmanager
    def refusing_alike(self) -> Iterator[None]:
        """Refuse on all ranks what one of them refuses within the block; collective."""
        refused = ""
        try:
            yield
        except DoesNotMatch as error:
            refused = str(error)
        for told in self.all_gather_bytes(refused.encode()):
            if told:
                raise RefusedAlike(told.decode())

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a CPU tensor over all ranks, in place; collective."""
        if self.size > 1:
            with self.waiting():
                self.control.allreduce([values]).wait()
        return values

    def sum_on_devices(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor of the device over all ranks, on the CPU where its carrier is; collective."""
        if self.size == 1:
            return values
        if not self.asynchronous:
            return self.sum(values.cpu())
        self.everyone().allreduce([values]).wait()
        self.expects(values.device, (self.rank + 1) % self.size)
        return values

    @contextmanager
    def waiting(self, ranks: Iterable[int] | None = None) -> Iterator[None]:
        """Wait for some ranks (all by default) under the watch; a connection that breaks is a lost rank."""
        watch = getattr(self, "watch", None)  # none while its own connections are made: there the group's limit counts
        if watch is None:
            yield
            return
        peers = tuple(rank for rank in ranks or range(self.size) if rank != self.rank)
        watch.waits_for(*peers)
        try:
            yield
        except RuntimeError as error:
            raise watch.lost(peers[0], str(error).strip().split("\n")[0]) from None
        finally:
            watch.works()

    def expects(self, device: torch.device, peer: int) -> None:
        """Let the watch judge by the device what a call of NCCL has only put into its streams."""
        if self.asynchronous:
            self.watch.expects(peer, reached(device))

    def choose_carrier(self, device: torch.device) -> None:
        """Agree on what carries tensors of the ranks' devices, and say it once; collective."""
        self.carrier = carrier([row.decode() for row in self.all_gather_bytes(identity(device).encode())])
        if self.rank == 0 and self.size > 1 and device.type == "cuda":
            how = "nccl" if self.asynchronous else "gloo through the host, for ranks share a GPU"
            print(f"messages of {self.size} ranks travel by {how}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the groups that were made here, and no others, and take their keys out of the world's store."""
        for key in list(self._made):
            self._made.pop(key).shutdown()
        for name in sorted(self._named):
            _USERS[name] -= 1
            if not _USERS[name]:
                made = _NAMED.pop(name, None)
                if made in dist.distributed_c10d._world.pg_map:
                    dist.destroy_process_group(made)
        self._named.clear()
        in_world = not self._owns_world and dist.is_initialized()  # which its program may have ended before
        if self.rank == 0 and self.size > 1 and in_world:  # all have left: nobody makes a group any more
            store = dist.distributed_c10d._get_default_store()
            for key in getattr(store, "list_keys", list)():  # not all of torch's stores list theirs
                if key.startswith(f"{self._name}/"):
                    store.delete_key(key)
        self.control = self._store = None
        if self._owns_world and dist.is_initialized():
            while _NAMED:
                _NAMED.popitem()[1].shutdown()
            dist.destroy_process_group()


def bind(backend: Any, store: Any, place: int, size: int, device: torch.device) -> None:
    """Tell a backend the one device that it will ever use; only a group can, when the backend is made part of it."""
    group = dist.ProcessGroup(store, place, size)
    group.bound_device_id = device
    group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
