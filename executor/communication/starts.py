"""Which start of a job this is, agreed on by its ranks through the launcher's store.

A launcher that starts ranks again after one was lost may keep its store, with all that ranks of an earlier start have
said there. So each rank says a name that nobody has had before, and a start is called by the names of all its ranks,
once each of them has seen these. Leaves out who the ranks are: that says the launcher.
"""

import secrets
import time
from datetime import timedelta
from hashlib import sha256
from typing import Any

LOOK_S = 0.02
"""After which ranks look again who has come."""


def arrivals(size: int) -> list[str]:
    """Return the keys under which ranks say that they have come."""
    return [f"penstock/world/{size}/{rank}" for rank in range(size)]


def agree_on_start(store: Any, rank: int, size: int, limit: timedelta) -> str:
    """Return a name of this start that all of its ranks know; collective.

    Raises
    ------
    RuntimeError, OSError
        As torch's store does, and TimeoutError when ranks of an earlier start were seen alone until the limit.
    """
    names, until = arrivals(size), time.monotonic() + limit.total_seconds()
    store.set(names[rank], secrets.token_hex(8))
    store.wait(names, limit)
    while time.monotonic() < until:
        start = f"penstock/{sha256(b''.join(store.multi_get(names))).hexdigest()}"
        seen = [f"{start}/{each}" for each in range(size)]
        store.set(seen[rank], b"")
        if store.check(seen):
            return start
        time.sleep(LOOK_S)  # the name of an earlier start's rank may have been read for one that comes later
    raise TimeoutError("only ranks of an earlier start have come")
