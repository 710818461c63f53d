"""Whether a plan, from which a search is to start or which is priced again, is one of the profiled model.

Profiles of other sequences are of the same model, but their samples differ. Leaves out what of a plan is still
possible (`planner.search.proposers.warm_start`).
"""

from collections import Counter
from collections.abc import Sequence

from costmodel.errors import DoesNotMatch, InvalidInput
from costmodel.model.graph import OperatorGraph
from costmodel.model.work import Work
from costmodel.roofline.attention import num_pairs
from planner.plan import Plan
from planner.plan.provenance import of_a_sample

MOST_NAMES = 3
"""Names that an error lists of many."""
SAME_WORK = 100
"""Two profiles of one model may differ by one part in this many of a sample's work."""


def check_same_model(old: Plan, graph: OperatorGraph, called: str = "old plan (--from)", drop: str = "--from") -> None:
    """Refuse a plan of another model, and one that does not give each operator one stage.

    Parameters
    ----------
    old : Plan
    graph : OperatorGraph
        Of the profile.
    called, drop : str
        What people are told that it is, and which flag may be left out.

    Raises
    ------
    DoesNotMatch
        When the fingerprints differ; says which operators do.
    InvalidInput
        When operators are missing or occur twice, or a stage is empty: the file was damaged.
    """
    held, known = [name for stage in old.stages for name in stage.operators], list(graph.index)
    if old.fingerprint != graph.fingerprint:
        raise DoesNotMatch(
            f"the {called} is of the model {old.model_name!r} (fingerprint {old.fingerprint[:12]}), and the "
            f"profile of {graph.name!r} ({graph.fingerprint[:12]}): {_what_differs(held, known)}; give a plan of this "
            f"model, or leave {drop} out"
        )
    counts = Counter(held)
    wrong = {
        "has in no stage": [name for name in known if not counts[name]],
        "has twice": [name for name, count in counts.items() if count > 1],
        "has, and its own model does not,": [name for name in counts if name not in graph.index],
        "leaves without operators": [f"stage {i}" for i, stage in enumerate(old.stages) if not stage.operators],
    }
    found = [f"{what} {_some(names)}" for what, names in wrong.items() if names]
    if found:
        raise InvalidInput(f"the {called} {'; it '.join(found)}: the file was changed by hand; plan anew")


def check_same_samples(plan: Plan, graph: OperatorGraph) -> None:
    """Refuse a profile whose samples are of other sizes than those that a plan was made for (other sequences, say).

    Raises
    ------
    DoesNotMatch
        Says what a sample takes in either.
    """
    planned, own = of_a_sample(plan, "flop"), sample_of(graph)["flop"]
    if planned and SAME_WORK * abs(planned - own) > planned:
        raise DoesNotMatch(
            f"the plan was made for samples of {planned:.3g} FLOP, and the profile's take {own:.3g}: they are "
            "of other sizes, and their times do not compare; give --profile the file that the plan was made from"
        )


def sample_of(graph: OperatorGraph) -> dict[str, int]:
    """Return a sample's forward FLOP, those without the half that causal masks leave out, and its tokens.

    The two latter only where some attention is causal, and where the loss says how many rows it has.
    """
    works = [operator.work for operator in graph.operators if operator.work]
    tokens = max((work.tokens for work in works if work.kind == "loss"), default=0)
    flop, masked = sum(operator.flop for operator in graph.operators), sum(map(_masked_flop, works))
    return {
        "flop": flop,
        **({"causal_flop": flop - masked} if masked else {}),
        **({"tokens": tokens} if tokens else {}),
    }


def _masked_flop(work: Work) -> int:
    """Return the FLOP of the pairs of query and key that an attention's mask leaves out, two matmuls a pair."""
    if work.kind != "attention":
        return 0
    return 2 * work.heads * (work.inner + work.outer) * (work.tokens * work.context - num_pairs(work))


def _what_differs(held: Sequence[str], known: Sequence[str]) -> str:
    ours, theirs = set(known), set(held)
    gone, new = [name for name in held if name not in ours], [name for name in known if name not in theirs]
    if not gone and not new:
        return "operators of the same names, whose kinds, parameters, shapes or edges differ"
    rows = {"only the plan has": gone, "only the profile has": new}
    return ", ".join(f"{text} {len(names)} operators ({_some(names)})" for text, names in rows.items() if names)


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(map(repr, names[:MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
