"""Spans of a step on a device that works behind its host, told by marks of the device's own stream."""

import time

import pytest

from executor.recording import Recorder
from simulator.actions import parse_action


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


def test_a_computation_lasts_as_long_as_the_device_takes_and_ends_before_now():
    stream = Stream()
    recorder = Recorder(stream)
    for text, ns in (("0F0", 700), ("0B0", 1300)):
        start = recorder.mark("compute")
        stream.now += ns
        recorder.note(parse_action(text), "compute", start)
    stream.now += 50
    (_, _, first, middle), (_, _, again, end) = recorder.spans()
    assert (middle - first, again, end - again) == (700, middle, 1300)
    assert end <= time.perf_counter_ns() - 50
    assert stream.waited == 1


@pytest.mark.parametrize("device", [None, Stream()])
def test_a_message_lasts_as_long_as_the_hosts_call(device):
    recorder = Recorder(device)
    before = time.perf_counter_ns()
    recorder.note(parse_action("0SEND_F0>1"), "send", recorder.mark("send"))
    ((_, stream, start, end),) = recorder.spans()
    assert stream == "send"
    assert before <= start <= end <= time.perf_counter_ns()


def test_a_step_begins_without_the_spans_of_the_one_before():
    recorder = Recorder()
    recorder.note(parse_action("0F0"), "compute", recorder.mark("compute"))
    recorder.clear()
    assert recorder.spans() == []
