"""Promises that are kept on every case tried: the full counts of what `make test` runs in small.

python -m benchmarks.reliability [--full] [--only NAME] [--json]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """A sentence that holds on every case.

    Attributes
    ----------
    name, sentence : str
    small, full : int
        Cases tried without and with ``--full``.
    failures : callable
        Tries so many cases and returns a line for each that fails.
    """

    name: str
    sentence: str
    small: int
    full: int
    failures: Callable[[int], list[str]]


def _engines_agree(num_cases: int) -> list[str]:
    from tests.properties.engines_agree import disagreements

    return disagreements(num_cases)


def _closed_forms(num_cases: int) -> list[str]:
    from tests.properties.schedule_promises import closed_form_failures

    return closed_form_failures(num_cases)


def _behind_plans(num_cases: int) -> list[str]:
    from tests.properties.executor_promises import behind_plan_failures

    return behind_plan_failures(num_cases)


def _schedules_of_peers(num_rows: int) -> list[str]:
    from tests.properties.schedule_promises import REFERENCES, SYNTHESES, reference_failures

    return reference_failures(num_rows, {**REFERENCES, **SYNTHESES})


def _peers_problems(num_cases: int) -> list[str]:
    from tests.properties.peer_promises import failures

    return failures(num_cases)


def _exact_plans(num_cases: int) -> list[str]:
    from tests.properties.exact_promises import failures

    return failures(num_cases)


def _lattice_bounds(num_cases: int) -> list[str]:
    from tests.properties.lattice_promises import failures

    return failures(num_cases)


def _bounds_by_stage(num_cases: int) -> list[str]:
    from tests.properties.by_stage_promises import failures

    return failures(num_cases)


def _best_is_found(num_cases: int) -> list[str]:
    from tests.properties.search_promises import failures

    return failures(num_cases)


def _mixed_clusters(num_cases: int) -> list[str]:
    from tests.properties.mixed_promises import failures

    return failures(num_cases)


def _odd_problems(num_cases: int) -> list[str]:
    from tests.properties.odd_promises import failures

    return failures(num_cases)


def _interrupts(num_cases: int) -> list[str]:
    from tests.properties.interrupted_runs import interrupt_failures

    return interrupt_failures(num_cases)


def _limits(num_cases: int) -> list[str]:
    from tests.properties.interrupted_runs import limit_failures

    return limit_failures(num_cases)


def _rivals_objectives(num_cases: int) -> list[str]:
    from tests.properties.rival_promises import failures

    return failures(num_cases)


def _synthesis_is_best(num_cases: int) -> list[str]:
    from tests.properties.synthesis_promises import brute_failures

    return brute_failures(num_cases)


def _synthesised_are_legal(num_cases: int) -> list[str]:
    from tests.properties.synthesis_promises import illegal_failures

    return illegal_failures(num_cases)


def _synthesis_of_chains(num_rows: int) -> list[str]:
    from tests.properties.synthesis_promises import peer_failures

    return peer_failures(num_rows)


def _curve_within_memory(num_points: int) -> list[str]:
    from tests.properties.synthesis_promises import curve_failures

    return curve_failures(num_points)


def _behind_peers(num_rows: int) -> list[str]:
    from tests.properties.schedule_promises import behind_failures

    return behind_failures(num_rows)


def _bubbles_within_memory(num_rows: int) -> list[str]:
    from tests.properties.schedule_promises import memory_limit_failures

    return memory_limit_failures(num_rows)


def _schedules_are_legal(num_cases: int) -> list[str]:
    from tests.properties.schedule_promises import engine_failures

    return engine_failures(num_cases)


def _bounds_hold(num_cases: int) -> list[str]:
    from tests.properties.judge_promises import bound_failures

    return bound_failures(num_cases)


def _accounts_add_up(num_cases: int) -> list[str]:
    from tests.properties.judge_promises import account_failures, any_case_failures

    return account_failures(num_cases) + any_case_failures(num_cases)


def _plans_run(num_cases: int) -> list[str]:
    from tests.properties.executor_promises import random_plan_failures

    return random_plan_failures(num_cases)


def _module_stages(num_cases: int) -> list[str]:
    from tests.properties.module_promises import failures

    return failures(num_cases)


def _no_rank_is_left(num_cases: int) -> list[str]:
    from tests.properties.executor_promises import lost_rank_failures

    return lost_rank_failures(num_cases)


def _altered_plans(num_cases: int) -> list[str]:
    from tests.properties.altered_plans import altered_plan_failures

    with tempfile.TemporaryDirectory() as folder:
        return altered_plan_failures(num_cases, folder)


def _misused_loops(num_cases: int) -> list[str]:
    from tests.properties.misuse_runs import misuse_failures

    return misuse_failures(num_cases)


def _user_loops(num_loops: int) -> list[str]:
    from tests.support.loops.user_loops import loop_failures

    return loop_failures(num_loops)


def _shard_groups(num_cases: int) -> list[str]:
    from tests.properties.shard_group_runs import failures

    return failures(num_cases)


def _ranks_disagree(num_cases: int) -> list[str]:
    from tests.support.loops.user_loops import RANKS, loop_failures

    return loop_failures(num_cases, RANKS)


def _real_loops(num_steps: int) -> list[str]:
    from tests.support.loops.loop_jobs import all_job_failures

    return all_job_failures(num_steps)


def _profiles_resume(num_cases: int) -> list[str]:
    from tests.properties.profiler_promises import interruption_failures

    return interruption_failures(num_cases)


def _one_price(num_cases: int) -> list[str]:
    from tests.properties.one_price import one_price_failures

    return one_price_failures(num_cases)


def _exports(num_cases: int) -> list[str]:
    from tests.properties.export_cases import failures

    return failures(num_cases)


def _layouts(num_cases: int) -> list[str]:
    from tests.properties.export_cases import layout_failures

    return layout_failures(num_cases)


def _faults(num_cases: int) -> list[str]:
    from tests.properties.faulted_commands import fault_failures

    return fault_failures(num_cases)


def _large_limits(num_cases: int) -> list[str]:
    from tests.properties.interrupted_runs import large_limit_failures

    return large_limit_failures(num_cases)


def _failed_writes(num_commands: int) -> list[str]:
    from tests.properties.failed_writes import write_failures

    return write_failures(num_commands)


def _killed_writes(num_kills: int) -> list[str]:
    from tests.properties.killed_writes import kill_failures

    return kill_failures(num_kills)


def _altered_plans_2(num_cases: int) -> list[str]:
    from tests.properties.altered_divided_plans import altered_plan_failures

    with tempfile.TemporaryDirectory() as folder:
        return altered_plan_failures(num_cases, folder)


def _killed_saves(num_kills: int) -> list[str]:
    from tests.properties.killed_saves import failures

    return failures(num_kills)


def _caps(num_models: int) -> list[str]:
    from tests.properties.capped_plans import failures

    return failures(num_models)


def _naming_is_free(num_problems: int) -> list[str]:
    from tests.properties.naming import naming_failures

    return naming_failures(range(num_problems))


PROMISES = [
    Promise(
        "engines-agree",
        "Two engines that share no code give the same start, end and memory for any order, to the nanosecond and byte",
        1_500,
        50_000,
        _engines_agree,
    ),
    Promise(
        "closed-forms",
        "Closed forms of bubble and peak memory are exact under their conditions, for p <= 16 and m <= 64",
        300,
        20_000,
        _closed_forms,
    ),
    Promise(
        "schedules-of-peers",
        "Schedules take no longer and no more memory than the published schedules of peers",
        240,
        2_680,
        _schedules_of_peers,
    ),
    Promise(
        "peers-problems",
        "Problems of dnn-partitioning, Piper and PipeDream are solved as by brute force",
        100,
        1_000,
        _peers_problems,
    ),
    Promise(
        "exact-plans",
        "--exact finds the best plan of brute force and proves it; no bound is above it, nothing is called impossible",
        60,
        1_000,
        _exact_plans,
    ),
    Promise(
        "lattice-bounds",
        "no cut of a family is quicker than the bound that its lattice proves",
        60,
        2_000,
        _lattice_bounds,
    ),
    Promise(
        "bounds-by-stage",
        "No bound is above a plan whose stages differ in replicas, ZeRO or recompute, on fast and slow networks",
        10,
        1_000,
        _bounds_by_stage,
    ),
    Promise(
        "best-is-found",
        "without flags the best is found in 90 % of small problems, within 1 % in 99 %, as by brute force; bounds hold",
        24,
        2_000,
        _best_is_found,
    ),
    Promise(
        "mixed-clusters",
        "on unlike devices 90 of 100 plans are the best of brute force, 99 within 1 % of it; no bound is above it",
        20,
        400,
        _mixed_clusters,
    ),
    Promise(
        "odd-problems",
        "With host memory, frozen parts, no bytes, unlike devices: no error, bounds hold, 97 % are the best there is",
        20,
        300,
        _odd_problems,
    ),
    Promise(
        "interrupts-keep-a-plan",
        "plan told to end at a random moment ends with 130, or 0 when done, and leaves a plan that validates",
        6,
        60,
        _interrupts,
    ),
    Promise(
        "limits-are-kept",
        "plan ends at most a second after its time limit (on a quiet machine) with a plan that validates",
        4,
        40,
        _limits,
    ),
    Promise(
        "large-limits-are-kept",
        "plan of up to 10,000 operators on 1,024 devices ends within its limit and 2 s, with a plan or why none fits",
        4,
        40,
        _large_limits,
    ),
    Promise(
        "rivals-objectives",
        "PipeDream, Piper and Alpa find the best of their objective, chain the best line, as brute force does",
        100,
        1_000,
        _rivals_objectives,
    ),
    Promise(
        "behind-peers",
        "v-half and v-min take at most 2.3 % and 0.3 % longer than the peers' at no more memory",
        12,
        120,
        _behind_peers,
    ),
    Promise(
        "bubble-within-memory",
        "zb-v within a memory limit has no larger bubble than the published one",
        8,
        153,
        _bubbles_within_memory,
    ),
    Promise(
        "schedules-are-legal",
        "Every schedule of the catalogue passes the validator, and two engines agree on its times and memory",
        84,
        2_100,
        _schedules_are_legal,
    ),
    Promise(
        "bounds-hold",
        "No lower bound, with or without a memory limit, is above the step of any schedule of its family",
        300,
        50_000,
        _bounds_hold,
    ),
    Promise(
        "accounts-add-up",
        "Lowered lists cannot hang and change no time; idle time by cause and critical path add up to the nanosecond",
        200,
        20_000,
        _accounts_add_up,
    ),
    Promise(
        "plans-run",
        "Random plans of random models (placements, replicas, orders, split backward) finish with the exact gradients",
        30,
        200,
        _plans_run,
    ),
    Promise(
        "module-stages",
        "Stages that call the user's modules give the flat program's loss and gradients to the bit, whatever the cuts",
        12,
        480,
        _module_stages,
    ),
    Promise(
        "no-rank-is-left",
        "When a rank dies the others end within 5 s, when it stops within the timeout and 2 s, and name it",
        6,
        80,
        _no_rank_is_left,
    ),
    Promise(
        "behind-plans",
        "On devices that work behind their hosts, with one hardware queue and with eight, random plans are exact",
        15,
        300,
        _behind_plans,
    ),
    Promise(
        "synthesis-is-best",
        "graph-zb and graph-auto are as short as the best of all orders on small stage graphs, within memory limits",
        5,
        300,
        _synthesis_is_best,
    ),
    Promise(
        "synthesised-are-legal",
        "graph-zb and graph-auto pass the validator and keep the limit on random stage graphs (replicas, multiples)",
        4,
        100,
        _synthesised_are_legal,
    ),
    Promise(
        "synthesis-of-chains",
        "graph-zb in 2 s is never behind zero-bubble schedules of chains in their memory, and beats half of the others",
        10,
        300,
        _synthesis_of_chains,
    ),
    Promise(
        "curve-within-memory",
        "graph-zb in 2 s is never behind a peer of no more memory, at ten limits, and more memory is never slower",
        2,
        100,
        _curve_within_memory,
    ),
    Promise(
        "altered-plans",
        "A plan altered at random is refused by all ranks alike (3, 6 or 7) or runs exactly; none hangs",
        100,
        5_000,
        _altered_plans,
    ),
    Promise(
        "misused-loops",
        "A misused training loop has the plain loop's losses, or every rank ends in an error within the timeout",
        10,
        60,
        _misused_loops,
    ),
    Promise(
        "user-loops",
        "Loops as people write them are exact to 1e-5 after 6 steps, state included, or refused before a wrong step",
        12,
        1_000,
        _user_loops,
    ),
    Promise(
        "shard-groups",
        "States divided in groups of 2 and 4 of eight ranks: gradients of one process, what is sent as planned",
        3,
        9,
        _shard_groups,
    ),
    Promise(
        "ranks-disagree",
        "Ranks that differ in plan, code, option or batch all end alike in a refusal that names the rank and in what",
        4,
        74,
        _ranks_disagree,
    ),
    Promise(
        "real-loops",
        "Steps of a real job (groups, warm-up, clipping, evaluation, resumed under another cut) have the plain losses",
        10,
        50,
        _real_loops,
    ),
    Promise(
        "profiles-resume",
        "A profiling interrupted at random moments (kill -9 too) and resumed knows the same and measures nothing twice",
        3,
        30,
        _profiles_resume,
    ),
    Promise(
        "faults",
        "A command that is killed or told to end leaves no process after 3 s and no torn file",
        5,
        200,
        _faults,
    ),
    Promise(
        "killed-writes",
        "A write killed at a random moment leaves the old or the new file whole, and the next clears what it left",
        50,
        1_000,
        _killed_writes,
    ),
    Promise(
        "failed-writes",
        "A full disk or a place where nothing can be written ends a command with 3, each file old or new",
        4,
        13,
        _failed_writes,
    ),
    Promise(
        "altered-plans-2",
        "Plans of divided stages, altered in units, sums, borders or modules: what the gate passes runs exact",
        40,
        400,
        _altered_plans_2,
    ),
    Promise(
        "caps",
        "Small models planned under a cap on memory and run: what fits does; at most 5 % false refusals, 20 % doubts",
        3,
        200,
        _caps,
    ),
    Promise(
        "killed-saves",
        "Ranks killed while they save leave a folder that loads whole, of the step before or this one, never a mixture",
        20,
        200,
        _killed_saves,
    ),
    Promise(
        "one-price",
        "A candidate by search, by flags or by pins is one plan: 0 ns and 0 bytes apart, and the sum of its parts",
        100,
        1_000,
        _one_price,
    ),
    Promise(
        "naming-is-free",
        "Naming any single choice of a plan leaves nothing slower than that plan, and the scope says what is fixed",
        20,
        200,
        _naming_is_free,
    ),
    Promise(
        "exports",
        "What a plan's runs_on lists is exported and read by that target's own loader or rules; else it is refused",
        20,
        300,
        _exports,
    ),
    Promise("layouts", "Pipeline layouts are written and read as Megatron-LM reads them", 500, 5_000, _layouts),
]
"""All promises; a new one is a row here."""


def main() -> int:
    """Try the promises; exit 1 if one is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cases, which takes minutes")
    parser.add_argument("--only", choices=[promise.name for promise in PROMISES])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [_try(promise, full=args.full) for promise in PROMISES if args.only in (None, promise.name)]
    if args.json:
        print(json.dumps({"rows": rows}))
    for row in rows if not args.json else ():
        print(f"{row['promise']}: {row['num_failures']} of {row['cases']} cases fail ({row['seconds']:.0f} s)")
    return 1 if any(row["num_failures"] for row in rows) else 0


def _try(promise: Promise, *, full: bool) -> dict[str, object]:
    count = promise.full if full else promise.small
    print(f"{promise.sentence}: {count} cases", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    failures = promise.failures(count)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr, flush=True)
    return {
        "promise": promise.name,
        "sentence": promise.sentence,
        "cases": count,
        "num_failures": len(failures),
        "failures": failures[:20],
        "seconds": time.perf_counter() - begin,
    }


if __name__ == "__main__":
    sys.exit(main())
