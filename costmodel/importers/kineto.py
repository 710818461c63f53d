"""A Kineto trace, the Chrome JSON that ``torch.profiler`` exports, one file a rank: the events that tell of a pipeline.

Reading is bounded and runs nothing. Events that are not needed are dropped as they are read, for traces are large; what
Kineto writes in addition is passed over. Leaves out what the events mean (`costmodel.importers.kineto_actions`).
"""

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from costmodel.errors import InvalidInput
from costmodel.files import check_regular

MOST_BYTES = 1 << 30
"""Of a trace once it is unpacked."""
LONGEST_US = 1e16
"""No time in a trace is larger (300 years)."""
KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
MODULE = "nn.Module: "
CHUNK = re.compile(r".*: (forward|backward)_one_chunk")
"""The calls in which torch's stages compute; they are seen where the profiler ran with stacks."""
STEP = re.compile(r".*: _step_microbatches")
_KEPT = KERNELS | LAUNCHES | {"user_annotation", "cpu_op"}


@dataclass(frozen=True, slots=True)
class Event:
    """A span of one thread (or stream), ns on the rank's clock; `sequence` and `correlation` are -1 where not told."""

    name: str
    category: str
    thread: str
    start_ns: int
    end_ns: int
    sequence: int = -1
    correlation: int = -1


@dataclass(frozen=True)
class RankTrace:
    """The events of one rank, by start."""

    path: str
    rank: int
    world_size: int
    host: str
    events: tuple[Event, ...]


def read_trace(path: str | Path) -> RankTrace:
    """Read a trace (``.json`` or ``.json.gz``).

    Raises
    ------
    InvalidInput
        When the file is no trace of a rank of a distributed run; says what was found.
    """
    try:
        root = json.loads(_text(Path(path)), object_hook=_event, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidInput(f"{path}: nested too deeply for a trace of torch.profiler") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON: {error}; was the file cut off?") from None
    if not isinstance(root, dict) or not isinstance(root.get("traceEvents"), list):
        raise InvalidInput(f"{path}: no traceEvents; a trace that torch.profiler's export_chrome_trace wrote is needed")
    told = root.get("distributedInfo", {"rank": 0, "world_size": 1})  # nothing is told of one process alone
    if not isinstance(told, dict) or not _is_count(told.get("rank")) or not _is_count(told.get("world_size")):
        raise InvalidInput(
            f"{path}: distributedInfo names no rank; profile inside a run whose process group is initialised"
        )
    base_ns = root.get("baseTimeNanoseconds", 0)
    base_ns = base_ns if _is_count(base_ns) else 0
    events = sorted((event for event in root["traceEvents"] if isinstance(event, Event)), key=lambda e: e.start_ns)
    shifted = tuple(
        Event(e.name, e.category, e.thread, e.start_ns + base_ns, e.end_ns + base_ns, e.sequence, e.correlation)
        for e in events
    )
    return RankTrace(str(path), told["rank"], told["world_size"], str(root.get("host_name", "")), shifted)


def _text(path: Path) -> str:
    try:
        check_regular(path)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file; check the name and the working folder") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidInput(f"{path}: not a whole gzip file; was it cut off?") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(
            f"{path}: more than {MOST_BYTES >> 20} MiB unpacked; profile fewer steps, or without shapes and memory"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: byte {error.start} is not UTF-8 text; is this the right file?") from None


def _event(members: dict[str, Any]) -> Any:
    """Turn an event into what is kept of it, None where nothing is; leave other objects."""
    if "ph" not in members:
        return members
    name, category = members.get("name"), members.get("cat")
    if members["ph"] != "X" or not isinstance(name, str) or not isinstance(category, str):
        return None
    if category == "python_function":
        if not (name.startswith(MODULE) or CHUNK.fullmatch(name) or STEP.fullmatch(name)):
            return None
    elif category not in _KEPT:
        return None
    start, length = (_microseconds(name, members.get(key)) for key in ("ts", "dur"))
    args = members.get("args")
    told: Mapping[str, Any] = args if isinstance(args, dict) else {}
    sequence, correlation = (_number(told.get(key)) for key in ("Sequence number", "correlation"))
    thread = f"{members.get('pid')}/{members.get('tid')}"
    return Event(name, category, thread, round(1000 * start), round(1000 * (start + length)), sequence, correlation)


def _microseconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_US:
        raise InvalidInput(
            f"the event {name[:60]!r} has a time of {str(value)[:40]}; microseconds, 0 or more, are needed"
        )
    return value


def _number(value: object) -> int:
    return value if isinstance(value, int) and _is_count(value) else -1


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _no_constant(name: str) -> NoReturn:
    raise InvalidInput(f"found {name}; only finite numbers are allowed")
