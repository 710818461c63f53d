"""Who is still there: a thread on every rank that hears at once when another dies, and in time when one stalls.

Ranks are joined by plain sockets. The kernel closes those of a dead process, so its end is seen within
milliseconds whatever the main thread is doing; a stopped process falls silent, a stuck one goes on
saying that it works. In either case this rank says what it was at and ends with `PeerLost`'s exit code:
its main thread may sit in a call that nothing interrupts. Leaves out recovery.
"""

import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

from costmodel.errors import PeerLost
from executor.mesh import connect_all
from simulator.actions import Action

BEAT_S = 0.5
"""Between two signs of life, and the longest a watch sleeps."""

SETTLING_S = 0.5
"""How long a broken connection waits for the news of who died: neighbours of the dead fall too."""

OUTSIDE, WORKING, LEAVING = -1, -2, -3
"""What a rank says instead of whom it waits for: it is not in a step, it computes, it ends."""

_BEAT = struct.Struct(">iii")  # state; when leaving also exit code and the rank whose loss is the reason, or -1


class Watch:
    """Signs of life to and from all other ranks.

    Parameters
    ----------
    rank, num_ranks : int
    timeout_s : float
        A rank that is silent, or lets this one wait within a step, for longer is stalled.

    Attributes
    ----------
    at : Action or None
        What the main thread is at.
    last_complete_step : int
        -1 before the first.
    answers_json : bool
        Whether the last words also go to stdout as ``{"error", "exit"}``.
    """

    def __init__(self, rank: int, num_ranks: int, timeout_s: float) -> None:
        self.rank, self.timeout_s = rank, timeout_s
        self.at: Action | None = None
        self.last_complete_step = -1
        self.answers_json = False
        self._state, self._since = OUTSIDE, time.monotonic()
        self._sockets = connect_all(rank, num_ranks) if num_ranks > 1 else {}
        self._heard = dict.fromkeys(self._sockets, time.monotonic())
        self._said = dict.fromkeys(self._sockets, OUTSIDE)
        self._unread = dict.fromkeys(self._sockets, b"")
        self._gone: set[int] = set()
        self._closed = self._catches = False
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._waker, self._wakes = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._thread.start()

    def waits_for(self, peer: int) -> None:
        """Note that the main thread waits for a rank."""
        self._since = time.monotonic()
        self._state = peer

    def works(self) -> None:
        """Note that the main thread computes."""
        self._state = WORKING

    def rests(self) -> None:
        """Note that the main thread is between two steps, where it may stay as long as it likes."""
        self._state, self.at = OUTSIDE, None

    def catch_signals(self) -> None:
        """Let SIGTERM and SIGINT end this rank with its own last words; call it from the main thread."""
        self._catches = True
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def lost(self, peer: int, reason: str) -> PeerLost:
        """Return the error for a connection to `peer` that broke.

        Waits a moment first: if some rank has died, the watch hears of it and ends this process by itself.
        """
        self.listen()
        return PeerLost(self._message(peer, f"its connection broke ({reason})"))

    def listen(self) -> None:
        """Wait for the news that may explain an error: the watch ends this process if a rank has died."""
        time.sleep(SETTLING_S)

    def close(self, exit_code: int = 0) -> None:
        """End the watch: with 0 as agreed with the other ranks, else because this rank alone fails."""
        self._closed = True
        self._waker.send(b"\0")
        self._thread.join(2 * BEAT_S)
        if self._catches:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._say(LEAVING, exit_code)
        for connection in (*self._sockets.values(), self._waker, self._wakes):
            connection.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakes, selectors.EVENT_READ, -1)
            for peer, connection in self._sockets.items():
                selector.register(connection, selectors.EVENT_READ, peer)
            next_beat = time.monotonic()
            while not self._closed:
                for key, _ in selector.select(max(0.0, next_beat - time.monotonic())):
                    if key.data < 0:
                        self._woken()
                    elif not self._hear(key.data):
                        selector.unregister(key.fileobj)
                if time.monotonic() >= next_beat:
                    self._say(self._state)
                    self._judge()
                    next_beat = time.monotonic() + BEAT_S

    def _woken(self) -> None:
        """Answer a signal; the number 0 only asks the thread to look whether the watch is closed."""
        numbers = set(self._wakes.recv(64)) - {0}
        if signal.SIGINT in numbers:
            self._end(130, f"rank {self.rank}: interrupted{self._place()}")
        elif numbers:
            time.sleep(SETTLING_S)
            for peer in self._sockets:
                self._hear(peer)
            self._end(8, f"rank {self.rank}: ended by the launcher, because another rank ended{self._place()}")

    def _hear(self, peer: int) -> bool:
        """Read what a rank says; False when there is no more to come."""
        try:
            data = self._sockets[peer].recv(4096)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data and peer not in self._gone:
            self._end(8, self._message(peer, "its process has ended"), peer)
        data = self._unread[peer] + data
        whole = len(data) - len(data) % _BEAT.size
        self._unread[peer] = data[whole:]
        self._heard[peer] = time.monotonic()
        for state, code, culprit in _BEAT.iter_unpack(data[:whole]):
            self._said[peer] = state
            if state == LEAVING:
                self._leaves(peer, code, culprit)
        return peer not in self._gone

    def _leaves(self, peer: int, code: int, culprit: int) -> None:
        self._gone.add(peer)
        if culprit >= 0 and culprit != self.rank:
            self._end(8, self._message(culprit, f"rank {peer} has lost it"), culprit)
        if code:
            self._end(8, self._message(peer, f"it ended with exit code {code}"), peer)

    def _say(self, state: int, code: int = 0, culprit: int = -1) -> None:
        for peer, connection in self._sockets.items():
            if peer not in self._gone:
                with suppress(OSError):
                    connection.send(_BEAT.pack(state, code, culprit))

    def _judge(self) -> None:
        """End this rank when another one is silent or stuck for too long, or the launcher is gone."""
        if self._launcher is not None and os.getppid() != self._launcher:
            self._end(8, f"rank {self.rank}: the launcher has ended{self._place()}")
        now = time.monotonic()
        for peer, heard in self._heard.items():
            if now - heard > self.timeout_s and peer not in self._gone:
                self._end(8, self._message(peer, f"it has been silent for {now - heard:.0f} s"), peer)
        waited = now - self._since
        if self._state >= 0 and waited > self.timeout_s:
            peer = self._last_in_line()
            if self._said.get(peer) != OUTSIDE:
                limit = f"timeout {self.timeout_s:g} s"
                self._end(8, self._message(peer, f"nothing came for {waited:.0f} s ({limit})"), peer)

    def _last_in_line(self) -> int:
        """Return the rank that all others in line wait for, this one first."""
        peer, seen = self._state, {self.rank}
        while peer not in seen and self._said[peer] >= 0:
            seen.add(peer)
            peer = self._said[peer]
        return peer if peer != self.rank else self._state

    def _message(self, peer: int, reason: str) -> str:
        return f"rank {self.rank}: lost rank {peer}: {reason}{self._place()}"

    def _place(self) -> str:
        where, step = "between steps", "no step is complete"
        if self.at is not None:
            where = f"at {self.at} (stage {self.at.stage}"
            where += f", micro-batch {self.at.microbatch})" if self.at.microbatch >= 0 else ")"
        if self.last_complete_step >= 0:
            step = f"the last complete step is {self.last_complete_step}"
        return f"; this rank was {where}; {step}"

    def _end(self, code: int, message: str, culprit: int = -1) -> None:
        """End the process; the main thread may be in a call that nothing interrupts."""
        if self.answers_json:
            os.write(1, json.dumps({"error": message, "exit": code}).encode() + b"\n")
        farewell(code, message)
        self._say(LEAVING, code, culprit)
        os._exit(code)


def farewell(code: int, message: str = "") -> None:
    """Write a rank's last words: the message and ``PENSTOCK_EXIT``, in one piece."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, (f"{message}\n" if message else "").encode() + f"PENSTOCK_EXIT={code}\n".encode())
