"""Who is still there: a thread on every rank that hears at once when another dies, and in time when one stalls.

Ranks are joined by plain sockets. The kernel closes those of a dead process, so its end is seen within milliseconds
whatever the main thread is doing; a stopped process falls silent; every other one says twice a second what it is in (a
step, a check, the end) and whom it waits for. A rank that others wait for longer than the timeout is lost, whether it
computes, stands in the program's own code or has left it; one that is in something else than they are is lost at once.
Then this rank says what it was at and ends with `PeerLost`'s exit code: its main thread may sit in a call that nothing
interrupts. Leaves out recovery.
"""

import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from costmodel.errors import PeerLost
from costmodel.printing import printable
from executor.communication.heartbeats import NOTHING, Sign
from simulator.actions import Action

BEAT_S = 0.5
"""Between two signs of life, and the longest a watch sleeps."""

SETTLING_S = 0.5
"""How long a broken connection waits for the news of who died: neighbours of the dead fall too."""

START = "the start"
"""What ranks are in until each has found that it can run the plan: an error of one ends all with its exit code."""

REFUSALS = frozenset((2, 3, 6, 7))
"""Exit codes with which a rank refuses something that all ranks then refuse alike."""


class Watchdog:
    """Signs of life to and from all other ranks.

    Parameters
    ----------
    rank : int
    sockets : mapping of int to socket
        To every other rank.
    timeout_s : float
        A rank that is silent, or lets this one wait, for longer is lost.

    Attributes
    ----------
    at : Action or None
        What the main thread is at.
    last_complete_step : int
        -1 before the first.
    answers_json : bool
        Whether the last words also go to stdout as ``{"error", "exit"}``.
    """

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        self.rank, self.timeout_s, self._limit_s = rank, timeout_s, timeout_s
        self.at: Action | None = None
        self.last_complete_step = -1
        self.answers_json = False
        self._now: tuple[int, str, tuple[int, ...]] = (0, NOTHING, ())  # one value, which the thread reads at once
        self._since = self._moved = time.monotonic()
        self._expected: deque[tuple[int, Callable[[], bool]]] = deque()
        self._sockets = dict(sockets)
        self._heard = dict.fromkeys(self._sockets, time.monotonic())
        self._said = dict.fromkeys(self._sockets, Sign())
        self._unread = dict.fromkeys(self._sockets, b"")
        self._gone: set[int] = set()
        self._closed = self._catches = False
        self._launcher = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None
        self._waker, self._wakes = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)
        self._thread.start()

    def enters(self, what: str, patience: int = 1) -> None:
        """Note that the main thread begins what all ranks do together; it computes.

        `patience` is how many timeouts one rank may work while others wait for it.
        """
        self._limit_s = patience * self.timeout_s
        self._now = (self._now[0] + 1, what, ())

    def waits_for(self, *peers: int) -> None:
        """Note that the main thread waits for some ranks."""
        self._since = time.monotonic()
        self._now = (*self._now[:2], peers)

    def works(self) -> None:
        """Note that the main thread computes."""
        self._now = (*self._now[:2], ())

    def expects(self, peer: int, is_there: Callable[[], bool]) -> None:
        """Note what a device waits for by itself, when the host's call returns at once; in the device's order."""
        self._expected.append((peer, is_there))

    def rests(self) -> None:
        """Note that the main thread is in the program's own code."""
        self._now, self.at = (self._now[0], NOTHING, ()), None

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

    def close(self, exit_code: int = 0, why: str = "") -> None:
        """End the watch: with 0 as agreed with the other ranks, else because this rank alone fails."""
        if self._closed:
            return
        self._closed = True
        self._waker.send(b"\0")
        self._thread.join(2 * BEAT_S)
        if self._catches:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._say(Sign(leaves=True, code=exit_code, why=why))
        for connection in (*self._sockets.values(), self._waker, self._wakes):
            connection.close()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without its watch a rank could hang for ever
            if not self._closed:
                self._end(1, f"rank {self.rank}: its watch has failed, which is a bug: {error!r}{self._place()}")

    def _watch(self) -> None:
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
                    self._say(Sign(*self._now))
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
            data = self._sockets[peer].recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data and peer not in self._gone:
            self._lose(peer, "its process has ended")
        *lines, self._unread[peer] = (self._unread[peer] + data).split(b"\n")
        self._heard[peer] = time.monotonic()
        for line in lines:
            self._take(peer, Sign.read(line))
        return peer not in self._gone

    def _take(self, peer: int, sign: Sign) -> None:
        self._said[peer] = sign
        if not sign.leaves:
            return
        self._gone.add(peer)
        if sign.culprit >= 0 and sign.culprit != self.rank:
            self._lose(sign.culprit, f"rank {peer} has lost it ({sign.why})", sign.why)
        if sign.code:
            why = f": {sign.why}" if sign.why else ""
            if sign.code in REFUSALS or (self._now[1] == START and sign.code != PeerLost.exit_code):
                self._end(sign.code, f"rank {self.rank}: all ranks end as rank {peer} does{why}{self._place()}")
            self._lose(peer, f"it ended with exit code {sign.code}{why}")

    def _say(self, sign: Sign) -> None:
        line = sign.line()
        for peer, connection in self._sockets.items():
            if peer not in self._gone:
                with suppress(OSError):
                    connection.send(line)

    def _judge(self) -> None:
        """End this rank when another one is silent, elsewhere or stuck for too long, or the launcher is gone."""
        if self._launcher is not None and os.getppid() != self._launcher:
            self._end(8, f"rank {self.rank}: the launcher has ended{self._place()}")
        now = time.monotonic()
        for peer, heard in self._heard.items():
            if now - heard > self.timeout_s and peer not in self._gone:
                self._lose(peer, f"it has been silent for {now - heard:.0f} s")
        since, (meeting, within, waits_for) = self._since, self._now
        for peer in waits_for:
            said = self._said[peer]
            if within and said.within and said.meeting == meeting and said.within != within:
                self._lose(peer, f"it is in {said.within}, this rank in {within}")
        if waits_for and now - since > self._limit_s:
            self._stalled(self._last_in_line(waits_for), now - since)
        self._judge_device(now)

    def _judge_device(self, now: float) -> None:
        """End this rank when what its device waits for has not moved for too long."""
        while self._expected and self._expected[0][1]():
            self._expected.popleft()
            self._moved = now
        if not self._expected:
            self._moved = now
        elif now - self._moved > self.timeout_s:
            self._stalled(self._expected[0][0], now - self._moved)

    def _stalled(self, peer: int, waited_s: float) -> None:
        said = self._said[peer]
        where = f"it is in {said.within}" if said.within else "it is in its program's own code"
        self._lose(peer, f"nothing came for {waited_s:.0f} s (timeout {self._limit_s:g} s), {where}")

    def _last_in_line(self, waits_for: tuple[int, ...]) -> int:
        """Return the rank that all others in line wait for, this one first."""
        line, seen = list(waits_for), {self.rank}
        while line:
            peer = line.pop(0)
            if peer in seen:
                continue
            seen.add(peer)
            said = self._said[peer]
            done = said.meeting >= self._now[0] and not said.within
            if not said.waits_for and not done:
                return peer
            line = [*said.waits_for, *line]
        return waits_for[0]

    def _message(self, peer: int, reason: str) -> str:
        return f"rank {self.rank}: lost rank {peer}: {reason}{self._place()}"

    def _place(self) -> str:
        within, step = self._now[1], "no step is complete"
        where = f"in {within}" if within else "between steps"
        if self.at is not None:
            where = f"at {self.at} (stage {self.at.stage}"
            where += f", micro-batch {self.at.microbatch})" if self.at.microbatch >= 0 else ")"
        if self.last_complete_step >= 0:
            step = f"the last complete step is {self.last_complete_step}"
        return f"; this rank was {where}; {step}"

    def _lose(self, peer: int, reason: str, first_reason: str = "") -> None:
        """End this rank because of another one."""
        self._end(8, self._message(peer, reason), peer, first_reason or reason)

    def _end(self, code: int, message: str, culprit: int = -1, why: str = "") -> None:
        """End the process; the main thread may be in a call that nothing interrupts."""
        if self.answers_json:
            os.write(1, json.dumps({"error": message, "exit": code}).encode() + b"\n")
        farewell(code, message)
        self._say(Sign(leaves=True, code=code, culprit=culprit, why=why))
        os._exit(code)


def farewell(code: int, message: str = "") -> None:
    """Write a rank's last words: the message and ``PENSTOCK_EXIT``, in one piece."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError):
        said = printable(message, kept="\n")
        os.write(2, (f"{said}\n" if said else "").encode() + f"PENSTOCK_EXIT={code}\n".encode())
