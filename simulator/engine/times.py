"""What is known of a schedule under some costs: times of its events, memory of its ranks, and the timeline of both."""

from functools import cached_property

from simulator.engine.event_times import EventTimes
from simulator.engine.memory import Memory, memory
from simulator.engine.spans import timeline
from simulator.timeline import Timeline


class Times(EventTimes):
    """Result of timing a schedule, with memory and spans."""

    @cached_property
    def memory(self) -> Memory:
        """Memory of all ranks over time."""
        return memory(self)

    @property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """Peak of each rank's memory."""
        return self.memory.peak_bytes

    def timeline(self) -> Timeline:
        """Return spans of all actions and messages, and memory over time."""
        return timeline(self, self.memory)
