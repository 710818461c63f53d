"""Profiling a model from its spec to a `Profile`: capture, measure item by item, put together.

Leaves out the command line (`command`) and what one measurement is (`timing`, `ratio`, `memory`,
`links`, `optimizer`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path

import torch

from costmodel.capture.capture import Capture, capture, operator_graph
from costmodel.capture.clock import clock_for
from costmodel.capture.heap import keep_freed_memory
from costmodel.capture.models import explain, load_model
from costmodel.capture.separation import check_separates
from costmodel.errors import InvalidInput
from costmodel.model.graph import OperatorGraph
from costmodel.model.origin import Origin
from costmodel.model.profile import Profile
from costmodel.profiling.dry import load_on_meta
from costmodel.profiling.journal import Journal, begin_journal
from costmodel.profiling.measure.blocks import GIB, signatures
from costmodel.profiling.measure.blockwise import Bench
from costmodel.profiling.measure.memory import counted_graph
from costmodel.profiling.measure.piecewise import profile_in_blocks, profile_reusing, read_old, state_bytes
from costmodel.profiling.measure.timing import MarkCost, measure_mark_cost
from costmodel.profiling.options import Options
from costmodel.profiling.session import Session, measured_links, versions

ROUNDS_WRITTEN = 4
"""How a journal writes rounds down (`Round.to_list`); one with other rounds cannot be continued."""


def profile(
    options: Options,
    journal_path: Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure a model.

    Parameters
    ----------
    options : Options
    journal_path : Path, optional
        Where measured items are kept; the caller removes it once the profile is written.
    resume : bool
        Insist on taking over what that journal holds; by default that happens when it agrees.
    say : callable
        Gets one line of text at each step, with the time left.

    Raises
    ------
    UsageError, InvalidInput
        When the spec, the options or the model cannot be used.
    """
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    sizes = tuple(sorted(options.microbatch_sizes))
    if options.memory_limit_bytes:
        found = _in_blocks(options, sizes, journal_path, resume, say)
        if found is not None:
            return found
    say("capturing the model")
    model = options.placed(load_model(options.model, max(sizes), options.seed, options.sequence), options.device)
    captured = capture(model, max(sizes), plan_only=True)
    if captured.program.plan_only:
        say(f"plan only: {captured.program.plan_only}. One eager run was written down instead")
    for remark in filter(None, (model.remark, captured.program.remark, check_separates(model))):
        say(remark)
    graph = operator_graph(captured, sizes)
    journal = begin_journal(journal_path, _heading(graph, options), resume, say)
    if options.reuse:
        old = read_old(options.reuse)
        bench = _bench(options, sizes, captured, journal, say)
        alike = signatures(captured, sizes[-1])
        counted = counted_graph(captured, sizes)
        reused = profile_reusing(bench, counted, alike, options.dtype_of(model), old, options.reuse)
        extra, origin = {**reused.extra, "signatures": alike}, Origin(autocast=options.autocast)
        return replace(reused, links=old.links, extra=extra, origin=origin)
    try:
        return Session(options, sizes, captured, journal, say).profile()
    except RuntimeError as error:
        if not captured.program.plan_only:
            raise
        raise InvalidInput(
            f"{options.model}: the written-down run cannot be repeated ({explain(error)}): its shapes hang on random "
            f"numbers. {captured.program.plan_only}"
        ) from None


def _heading(graph: OperatorGraph, options: Options) -> Mapping[str, object]:
    return {"fingerprint": graph.fingerprint, **asdict(options), **versions(), "rounds": ROUNDS_WRITTEN}


def _in_blocks(
    options: Options, sizes: tuple[int, ...], journal_path: Path | None, resume: bool, say: Callable[[str], None]
) -> Profile | None:
    """Return the profile of a model that needs more than the limit, None where it fits."""
    say("capturing the model on meta")
    captured = capture(load_on_meta(options), sizes[-1])
    graph = counted_graph(captured, sizes)
    needed = state_bytes(graph, sizes[-1])
    if needed <= options.memory_limit_bytes:
        return None
    check_separates(captured.model)
    for remark in filter(None, (captured.model.remark, captured.program.remark)):
        say(remark)
    say(f"training needs {needed / GIB:.2f} GiB, the limit is {options.memory_limit_bytes / GIB:.2f}: block by block")
    journal = begin_journal(journal_path, _heading(graph, options), resume, say)
    alike = signatures(captured, sizes[-1])
    bench = _bench(options, sizes, captured, journal, say)
    found = profile_in_blocks(bench, graph, alike, options.dtype_of(captured.model), options.memory_limit_bytes)
    links = measured_links(options, journal, say)
    return replace(
        found, links=links, extra={**found.extra, "signatures": alike}, origin=Origin(autocast=options.autocast)
    )


def _bench(
    options: Options, sizes: tuple[int, ...], captured: Capture, journal: Journal, say: Callable[[str], None]
) -> Bench:
    device = torch.device(options.device)
    clock = clock_for(device, options.threads)
    marks = MarkCost(*journal.item("marks", lambda: list(astuple(measure_mark_cost(clock, device)))))
    return Bench(captured, sizes, device, clock, marks, options.repeats, journal, say)
