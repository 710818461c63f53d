"""Readers under mutated files: every one is read, or refused by an error of ours, within seconds.

    python -m benchmarks.fuzz [--mutants 50000] [--only REGEX] [--seed 0] [--keep FOLDER] [--json]
    python -m benchmarks.fuzz --flags [--only REGEX] [--json]
    python -m benchmarks.fuzz --fields [--only REGEX] [--json]

A mutant is a whole file with one to three changes: of its bytes, of its numbers and words (the largest and the oddest
of them, and others of the same file), of its lines, and where it is JSON of its structure. A reader fails where it
raises anything but a declared error (`costmodel.errors.PenstockError`), takes longer than `MOST_S`, or lets the
process grow beyond `MOST_BYTES`; what fails is kept with `--keep`. With `--flags` every number that
a command takes on its line is enormous or odd instead, one at a time; with `--fields` every number of the files that
commands read is enormous. Leaves out what happens while files are written (`benchmarks.reliability`).
"""

import argparse
import copy
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from costmodel.errors import PenstockError
from tests.support.example_files import write_examples
from tests.support.fuzzed_fields import READ_BY, readings
from tests.support.fuzzed_flags import LINES, MOST_BYTES, MOST_S, command_lines, load, outcome
from tests.support.fuzzed_readers import Fuzzed, fuzzed
from tests.support.schema_corpus import places

TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|[A-Za-z_][\w.-]*")
ODD_TOKENS = (
    b"0", b"-1", b"1", b"0.5", b"-0.0", b"1e-320", b"1e308", b"1e999", b"NaN", b"Infinity", b"-Infinity", b"nan",
    b"1000000", b"1000000000", b"9223372036854775807", b"9223372036854775808", b"9" * 400, b"9" * 5000, b"1_000",
    b"0x10", b"007", b"true", b"null", b"", b'""', b"[]", b"{}", b"\\u0000", b"\\ud800", "٣".encode(), "é".encode(),
)  # fmt: skip
ODD_BYTES = (
    b"\x00",
    b"\xff",
    b"\x1b[31m",
    b"\r",
    b"\n",
    b'"',
    b"'",
    b",",
    b";",
    b"[",
    b"]",
    b"{",
    b"}",
    b"=",
    b"#",
    b"\xef\xbb\xbf",
)
ODD_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.5, 1e-320, 1e308, 10**6, 10**9, 2**63 - 1, 2**63, 10**400, "", "x", "0", " ",
    "\x00", "\x1b[31m", "\ud800", "a" * 70_000, [], {}, [[]], [{}], {"": {}},
)  # fmt: skip


def mutant(rng: Random, text: bytes) -> bytes:
    """Return a file with one to three changes."""
    changes = (_of_bytes, _of_tokens, _of_tokens, _of_lines, _of_structure, _of_structure)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(changes)(rng, text)
    return text


def _span(rng: Random, size: int) -> tuple[int, int]:
    start = rng.randrange(size + 1)
    return start, min(size, start + rng.choice((0, 1, 1, 2, 8, 64, size)))


def _of_bytes(rng: Random, text: bytes) -> bytes:
    """Drop, double or replace a span, or end the file there."""
    start, end = _span(rng, len(text))
    put = rng.choice((b"", text[start:end] * 2, rng.choice(ODD_BYTES), bytes([rng.randrange(256)])))
    return text[:start] + put + (b"" if rng.random() < 0.1 else text[end:])


def _of_tokens(rng: Random, text: bytes) -> bytes:
    """Put an odd token, or another one of the file, in the place of one."""
    tokens = list(TOKEN.finditer(text))
    if not tokens:
        return _of_bytes(rng, text)
    old = rng.choice(tokens)
    new = rng.choice(ODD_TOKENS) if rng.random() < 0.7 else rng.choice(tokens)[0]
    return text[: old.start()] + new + text[old.end() :]


def _of_lines(rng: Random, text: bytes) -> bytes:
    """Drop, double or exchange lines."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[one]
    elif kind == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _of_structure(rng: Random, text: bytes) -> bytes:
    """In a JSON file drop, add or replace a value, or put one of the file's own values in the place of another."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _of_tokens(rng, text)
    every = [(pointer, value) for pointer, value in places(document) if pointer]
    if not every:
        return _of_tokens(rng, text)
    pointer, old = rng.choice(every)
    parent: Any = document
    for key in pointer[:-1]:
        parent = parent[key]
    kind, key = rng.randrange(4), pointer[-1]
    if kind == 0:
        del parent[key]
    elif kind == 1:
        parent[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind == 2:
        parent[key] = copy.deepcopy(rng.choice(every)[1])
    elif isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(old))
    else:
        parent[rng.choice(("unknown", "", "\x1b", str(key) + " "))] = copy.deepcopy(old)
    return json.dumps(document).encode()


@dataclass
class Judged:
    """What came of one reader's mutants: how many were read, refused, and which failed in what way."""

    name: str
    num_read: int = 0
    num_refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    all_s: float = 0.0

    def note(self, kind: str, took_s: float) -> None:
        """Count one that was read, refused, or failed in some way."""
        self.longest_s, self.all_s = max(self.longest_s, took_s), self.all_s + took_s
        self.num_read += kind == "read"
        self.num_refused += kind == "refused"
        if kind not in ("read", "refused"):
            self.failures[kind] += 1

    @property
    def line(self) -> str:
        """All but the failures, for people."""
        return (
            f"{self.name}: {self.num_read} read, {self.num_refused} refused, {self.failures.total()} failed; "
            f"longest {self.longest_s:.2f} s, all {self.all_s:.0f} s"
        )


class TookTooLong(BaseException):
    """Raised by the alarm; no reader catches it."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Raise `TookTooLong` in here after so many seconds."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    old = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def judge(
    name: str, reader: Fuzzed, num_mutants: int, seed: int, keep: Path | None = None, most_s: int = MOST_S
) -> Judged:
    """Read mutants of a reader's files, drawn by a seed; failures are counted by kind and place."""
    judged, rng = Judged(name), Random(f"{seed}.{name}")  # noqa: S311
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"mutant{reader.suffix}"
        for other, text in reader.beside.items():
            (Path(folder) / other).write_text(text)
        for number in range(num_mutants):
            path.write_bytes(mutant(rng, rng.choice(reader.texts).encode()))
            start = time.perf_counter()
            kind = _outcome(reader, path, most_s)
            took_s = time.perf_counter() - start
            if keep and kind not in ("read", "refused", *judged.failures):
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}-{seed}-{number}{reader.suffix}").write_bytes(path.read_bytes())
            judged.note(kind, took_s)
    return judged


def _outcome(reader: Fuzzed, path: Path, most_s: int) -> str:
    """Return ``read``, ``refused``, or what was raised, and where."""
    try:
        with alarm(most_s):
            reader.read(path)
    except PenstockError:
        return "refused"
    except TookTooLong:
        return f"longer than {most_s} s"
    except Exception as error:
        row = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(row.filename).name}:{row.lineno}: {str(error)[:80]!r}"
    return "read"


def readers() -> Mapping[str, Fuzzed]:
    """Return all readers; those of published instances are left out, loudly, where these are absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    instances = Path(os.environ.get("PENSTOCK_DATA", default), "instances")
    if not instances.is_dir():
        print(f"{instances} is absent: readers of published instances are left out", file=sys.stderr)
        return fuzzed()
    return fuzzed(instances)


def judge_flags(command: str) -> Judged:
    """Run a command with each of its flags at each odd and enormous value."""
    lines = lambda _: ((words[-1][:80], words) for words in command_lines() if words[0] == command)  # noqa: E731
    return _judge_commands(f"flags of {command}", lines)


def judge_fields(name: str) -> Judged:
    """Run what reads a file with each of the file's numbers at each enormous value."""
    return _judge_commands(f"fields of {name}", lambda home: readings(home, name))


def _judge_commands(name: str, lines: Callable[[Path], Iterable[tuple[str, list[str]]]]) -> Judged:
    judged = Judged(name)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_examples(home)
        for what, words in lines(home):
            start = time.perf_counter()
            kind = outcome(words, home)
            kind = kind if kind in ("read", "refused") else f"{words[0]}: {what}: {kind}"
            judged.note(kind, time.perf_counter() - start)
    return judged


def main() -> int:
    """Run what the command line asks for; 1 where anything fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=50_000, help="of each reader")
    parser.add_argument("--flags", action="store_true", help="odd and enormous numbers on command lines, not in files")
    parser.add_argument("--fields", action="store_true", help="enormous numbers in files, read by whole commands")
    parser.add_argument("--only", default="", metavar="REGEX", help="readers such as 'plan', commands, or files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="one mutant of each kind of failure is kept there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows, out = [], sys.stderr if args.json else sys.stdout
    for found in _all_commands(args) if args.flags or args.fields else _all_readers(args):
        rows.append(found)
        print(found.line, *(f"  {n} x {kind}" for kind, n in found.failures.most_common()), sep="\n", file=out)
        out.flush()
    if args.json:
        print(json.dumps([{"mutants": args.mutants, "seed": args.seed, **vars(row)} for row in rows]))
    return int(any(row.failures for row in rows))


def _all_readers(args: argparse.Namespace) -> Iterator[Judged]:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for name, reader in readers().items():
        if re.search(args.only, name):
            yield judge(name, reader, args.mutants, args.seed, args.keep)


def _all_commands(args: argparse.Namespace) -> Iterator[Judged]:
    load()
    chosen = (LINES, judge_flags) if args.flags else (READ_BY, judge_fields)
    yield from (chosen[1](name) for name in chosen[0] if re.search(args.only, name))


if __name__ == "__main__":
    sys.exit(main())
