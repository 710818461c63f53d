"""When Ctrl-C and SIGTERM end a search, and when they only wait: a plan that was found is written all the same.

A scheduler that takes a machine back sends SIGTERM and kills some seconds later, so both signals are one here: they end
the search, which keeps its best (`planner.search.loop`), and nothing before or behind it. Leaves out other threads than
the main one, where Python handles no signals.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_deferred: list[int] = []


def defer() -> None:
    """Defer signals from now on: the command that is being loaded decides what they do."""
    _deferred.clear()
    _handle(_defer)


def restore() -> None:
    """Let signals raise KeyboardInterrupt again, those that were deferred included."""
    if _is_deferring():
        _handle(signal.default_int_handler)
        check(lambda: True)


def ignore() -> None:
    """Let signals do nothing from now on: as Python ends it would handle them as usual, and lose our exit code."""
    _handle(signal.SIG_IGN)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer signals in this block, except within `raised`, and ignore them afterwards: the result is written."""
    if not _is_deferring():
        defer()
    try:
        yield
    finally:
        ignore()


@contextmanager
def raised(ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in this block; while there is no result to keep, only a second one does."""

    def handle(number: int, _: object) -> None:
        _deferred.append(number)
        if ready() or len(_deferred) > 1:
            raise KeyboardInterrupt

    if getattr(signal.getsignal(signal.SIGTERM), "__module__", "") != __name__:
        _deferred.clear()  # what ended an earlier search of a program that goes on
    with as_before():
        _handle(handle)
        check(ready)
        yield


def check(ready: Callable[[], bool]) -> None:
    """Raise KeyboardInterrupt if a signal was deferred and there is a result to keep."""
    if _deferred and ready():
        raise KeyboardInterrupt


@contextmanager
def as_before() -> Iterator[None]:
    """Restore the handlers of signals at the end of this block."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, usual in before.items():
            _handle(usual, number)


def _defer(number: int, _: object) -> None:
    _deferred.append(number)


def _is_deferring() -> bool:
    return signal.getsignal(signal.SIGTERM) is _defer


def _handle(handler: Any, *signals: signal.Signals) -> None:
    """Install a handler in the main thread, where alone Python handles signals; for both of them by default."""
    if threading.current_thread() is threading.main_thread():
        for number in signals or SIGNALS:
            signal.signal(number, handler)
