"""What devices and hosts have no room for is refused, with the bytes that are lacking, and nothing else is."""

from dataclasses import replace
from functools import cache

import pytest

from costmodel.architectures.command import make
from costmodel.errors import NoPlanFits
from costmodel.model.profile import Profile
from costmodel.stages.config import StageConfig
from planner import Effort, Problem, Space
from planner.answer.decide import plan
from planner.candidate.evaluate import Evaluated
from planner.plan.rung import rung
from planner.search.bounders.memory_shortfall import memory_shortfall_bytes
from planner.search.proposers.lowest_memory import lowest_memory_candidates
from planner.search.space.family import Family
from planner.search.state.prepared import PreparedProblem
from tests.support.described_models import described
from tests.support.offers_of_memory import GIB, WHOLE_OPERATORS, asked, cluster
from tests.support.random_profiles import chain


@cache
def llama_70b() -> Profile:
    return make("llama3-70b", "h100-sxm-80", (1,))[0]


def test_llama_70b_on_8_devices_of_80_gib_lacks_what_its_states_are_over_them() -> None:
    """18 bytes a parameter over 8 devices, gradients in fp32; hosts count where they have memory to offload to."""
    count = sum(p.size_bytes for p in llama_70b().graph.parameters) // 2
    for host_gib in (0, 256):
        problem = Problem(llama_70b(), cluster(8, host_gib=host_gib), 8, 8, target="any")
        assert memory_shortfall_bytes(PreparedProblem(problem)) == 18 * count // 8 - (80 + host_gib // 8) * GIB
    assert (
        memory_shortfall_bytes(PreparedProblem(Problem(llama_70b(), cluster(8, host_gib=2048), 8, 8, target="any")))
        == 0
    )


def test_llama_70b_is_offloaded_where_hosts_have_the_memory() -> None:
    fixed = Space(data=1, tensor=8, context=1, stages=1, chunks=1)
    problem = Problem(llama_70b(), cluster(8, host_gib=2048), 8, 8, 1, target="any", space=fixed)
    found = plan(replace(problem, effort=Effort(60.0, 0.0)))
    assert rung(found) == "offload+tensor"
    assert max(found.prediction.peak_memory_bytes) <= 80 * GIB


def test_what_is_proved_to_be_lacking_no_plan_has() -> None:
    """Random chains under random limits: what states prove to be lacking the candidate of lowest memory lacks."""
    proved = 0
    for number in range(12):
        profile = chain(3 + number % 4, saved_bytes=1000 * number, parameter_bytes=1 << 20)
        problem = Problem(profile, None, 1 + number % 3, 12, 1, target="any", memory_limit_bytes=(1 + number % 5) << 20)
        lacking = memory_shortfall_bytes(PreparedProblem(problem))
        (_, least), *_ = lowest_memory_candidates(PreparedProblem(problem), 1.0)
        assert least.excess_bytes >= lacking
        proved += lacking > 0
    assert 0 < proved < 12


def simulated(config: StageConfig, chunks: int, schedule: str, host_gib: float) -> Evaluated:
    """Two places of a small Llama, cut into equally many layers a stage."""
    problem = asked(described("llama"), cluster(2, host_gib=host_gib), 32, space=Space(), microbatch_size=4)
    prepared = PreparedProblem(problem)
    partition = prepared.equal_layers(2 * chunks)
    assert partition
    return prepared.cuts(Family(config, 4, chunks)).evaluate(partition, schedule)


def test_stages_of_one_device_share_its_part_of_the_host() -> None:
    """Each of two interleaved stages has room for the 14 bytes a parameter that it offloads; both have not."""
    config = StageConfig(offload="optimizer")
    offloaded = 14 * sum(p.size_bytes for p in described("llama").graph.parameters) // 2
    assert simulated(config, 2, "interleaved-1f1b", 1.1 * offloaded / GIB).fits
    with pytest.raises(NoPlanFits, match=r"offload keeps \d+ bytes of rank \d in host memory"):
        simulated(config, 2, "interleaved-1f1b", 0.9 * offloaded / GIB)


def test_offloaded_activations_count_for_every_micro_batch_in_flight() -> None:
    """GPipe keeps eight at once, 1F1B two; room for four is enough for one of them."""
    config = StageConfig(offload="activations")
    problem = asked(described("llama"), cluster(2), 32, space=Space(), microbatch_size=4)
    one = problem.stage_model(problem.machines.device_of(0), 4).kept_bytes(StageConfig())
    assert simulated(config, 1, "1f1b", 4 * one / GIB).fits
    with pytest.raises(NoPlanFits, match="in host memory"):
        simulated(config, 1, "gpipe", 4 * one / GIB)


def test_stages_are_offloaded_where_no_host_has_room_for_the_whole_model_of_one_device() -> None:
    offloaded = 14 * sum(p.size_bytes for p in described("llama").graph.parameters) // 2
    fixed = replace(WHOLE_OPERATORS, stages=2, data=1, offload="optimizer")
    problem = asked(described("llama"), cluster(2, host_gib=1.4 * offloaded / GIB), 8, microbatch_size=4, space=fixed)
    assert rung(plan(replace(problem, effort=Effort(60.0, 0.01)))) == "offload+pipeline"
