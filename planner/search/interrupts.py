"""When Ctrl-C and SIGTERM end a search, and when they only wait: a plan that was found is written all the same.

A scheduler that takes a machine back sends SIGTERM and kills some seconds later, so both signals are one here: they end
the search, which keeps its best (`planner.search.ours`), and nothing before or behind it. Leaves out other threads than
the main one, where Python hears no signals.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_waiting: list[int] = []


@contextmanager
def held_back() -> Iterator[None]:
    """Let signals wait in here, except within `raised`; those that came before a search end it as it begins."""
    _waiting.clear()
    with _handled(lambda number, _: _waiting.append(number)):
        yield


@contextmanager
def raised() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt in here, one that waits at once."""
    with _handled(signal.default_int_handler):
        if _waiting:
            raise KeyboardInterrupt
        yield


@contextmanager
def _handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
