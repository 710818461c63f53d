"""Spans of a step on a device that works behind its host, told by marks of the device's own stream."""

import time

import pytest

from executor.observe.recording import Recorder
from simulator.actions import parse_action
from simulator.attribution import measured_parts
from simulator.timeline import Span, Timeline


class Stream:
    """A device's stream of work: marks are its own ns, of which the host's clock knows nothing."""

    def __init__(self):
        self.now, self.waited = 0, 0

    def mark(self):
        return self.now

    def wait(self):
        self.waited += 1

    def span_ns(self, start, end):
        return end - start


def did(recorder, stream, text, kind, ns, waits=False):
    """Let the device take so long for an action; the host is through with it at once."""
    start = recorder.mark()
    stream.now += ns
    recorder.note(parse_action(text), kind, start, waits)


def test_a_computation_lasts_as_long_as_the_device_takes_and_ends_before_now():
    stream = Stream()
    recorder = Recorder(stream)
    did(recorder, stream, "0F0", "compute", 700)
    did(recorder, stream, "0B0", "compute", 1300)
    stream.now += 50
    (_, _, first, middle), (_, _, again, end) = recorder.spans()
    assert (middle - first, again, end - again) == (700, middle, 1300)
    assert end <= time.perf_counter_ns() - 50
    assert stream.waited == 1


def test_where_nothing_works_behind_it_a_message_lasts_as_long_as_the_hosts_call():
    recorder = Recorder()
    before = time.perf_counter_ns()
    recorder.note(parse_action("0SEND_F0>1"), "send", recorder.mark())
    ((_, stream, start, end),) = recorder.spans()
    assert stream == "send"
    assert before <= start <= end <= time.perf_counter_ns()


@pytest.mark.parametrize("device", [None, Stream()])
def test_what_an_action_took_leaves_out_the_waits(device):
    recorder = Recorder(device)
    recorder.note(parse_action("1RECV_F0<0"), "receive", recorder.mark())
    recorder.note(parse_action("1RECV_F0<0"), "receive", recorder.mark(), waits=True)
    assert (len(recorder.spans()), len(recorder.spans(waits=False))) == (2, 1)


def test_a_stream_that_stands_still_for_a_message_waits_and_one_without_work_is_left_to_python():
    """The host's calls return at once on both ranks; only the device's own points tell idle time from its cause."""
    sender, receiver = Stream(), Stream()
    first, second = Recorder(sender), Recorder(receiver)
    did(first, sender, "0F0", "compute", 1000)
    did(first, sender, "0SEND_F0>1", "send", 0)
    did(second, receiver, "1RECV_F0<0", "receive", 0)
    did(second, receiver, "1RECV_F0<0", "receive", 1200, waits=True)  # 200 after its SEND
    did(second, receiver, "1F0", "compute", 300)
    receiver.now += 40  # nothing launched
    did(second, receiver, "1B0", "compute", 600)
    rows = []
    for rank, recorder in enumerate((first, second)):
        spans = recorder.spans()
        zero = spans[0][2]
        rows += [Span(action, rank, stream, start - zero, end - zero) for action, stream, start, end in spans]
    _, parts = measured_parts(Timeline(2, tuple(rows)))
    assert (parts.waiting, parts.communication, parts.compute, parts.python) == (1000, 200, 900, 40)


def test_a_step_begins_without_the_spans_of_the_one_before():
    recorder = Recorder()
    recorder.note(parse_action("0F0"), "compute", recorder.mark())
    recorder.clear()
    assert recorder.spans() == []
