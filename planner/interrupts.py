"""When Ctrl-C and SIGTERM end a search, and when they only wait: a plan that was found is written all the same.

A scheduler that takes a machine back sends SIGTERM and kills some seconds later, so both signals are one here: they end
the search, which keeps its best (`planner.search.loop`), and nothing before or behind it. Leaves out other threads than
the main one, where Python hears no signals.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_waiting: list[int] = []


def listen() -> None:
    """Let signals wait from now on: a command is being loaded, which says what is to become of them."""
    _waiting.clear()
    _handle(_wait)


def hear() -> None:
    """Let signals raise KeyboardInterrupt again, those too that `listen` let wait."""
    if _waits():
        _handle(signal.default_int_handler)
        heed(lambda: True)


def ignore() -> None:
    """Let signals do nothing from now on: Python hears them in its usual way as it ends, and lost our exit code."""
    _handle(signal.SIG_IGN)


@contextmanager
def held_back() -> Iterator[None]:
    """Let signals wait in here, except within `raised`, and be ignored from then on: what is to be kept is written."""
    if not _waits():
        listen()
    try:
        yield
    finally:
        ignore()


@contextmanager
def raised(ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in here; while there is nothing to keep only a second one does."""

    def handle(number: int, _: object) -> None:
        _waiting.append(number)
        if ready() or len(_waiting) > 1:
            raise KeyboardInterrupt

    if getattr(signal.getsignal(signal.SIGTERM), "__module__", "") != __name__:
        _waiting.clear()  # what ended an earlier search of a program that goes on
    with as_before():
        _handle(handle)
        heed(ready)
        yield


def heed(ready: Callable[[], bool]) -> None:
    """Raise KeyboardInterrupt if a signal waits and there is something to keep now."""
    if _waiting and ready():
        raise KeyboardInterrupt


@contextmanager
def as_before() -> Iterator[None]:
    """Leave signals handled as they were in the end."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, usual in before.items():
            _handle(usual, number)


def _wait(number: int, _: object) -> None:
    _waiting.append(number)


def _waits() -> bool:
    return signal.getsignal(signal.SIGTERM) is _wait


def _handle(handler: Any, *signals: signal.Signals) -> None:
    """Let the main thread, where alone Python hears signals, handle them so; all by default."""
    if threading.current_thread() is threading.main_thread():
        for number in signals or SIGNALS:
            signal.signal(number, handler)
