"""What ``penstock model`` does: from a name to a profile and its facts.

A model is described from its shape, by the standard library alone, or captured from its torch module on `meta`. Leaves
out flags and printing (`planner.commands.model`).
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate, repeat, takewhile
from operator import mul
from pathlib import Path

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.configs import Config, NotDescribed, read_config
from costmodel.architectures.describe import Description, count, describe_config
from costmodel.architectures.estimate import estimated_profile
from costmodel.architectures.table import find, rows
from costmodel.architectures.whitelist import DEFAULTS
from costmodel.calibration import Calibration
from costmodel.errors import UsageError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.graph import OperatorGraph
from costmodel.model.profile import Profile
from costmodel.zoo import NAMES
from costmodel.zoo.generated import generate

DEFAULT_DEVICE = "h100-sxm-80"
DEFAULT_PRECISION = "bf16"
"""Of models whose function does not say by its parameters what it trains in."""
DESCRIBED, CAPTURED = "described", "captured"
SOURCES = (DESCRIBED, CAPTURED)
"""Where a profile's operators come from: a model's shape, or its torch module."""
USUAL_SIZES, LARGEST_SIZE = (1, 2, 4), 32
"""Micro-batch sizes of a profile for which none are said, and the largest that is added."""
DIVIDED = ("column", "row", "inner", "expert")
"""Splits by which ranks of a tensor-parallel group share an operator."""

Facts = dict[str, object]


def make(
    name: str,
    device: str,
    microbatch_sizes: Sequence[int],
    sequence: int = 0,
    precision: str = "",
    trainer: str = "",
    calibration: Calibration | None = None,
    source: str = "",
    lora_rank: int = 0,
) -> tuple[Profile, Facts]:
    """Return the profile of a model by name, and what there is to say about it.

    Parameters
    ----------
    name : str
        An id of the table, a config.json, ``module:function``, ``nasnet``, ``random:N:SEED`` or ``zoo:NAME[:small]``.
    device : str
        Catalogue id.
    microbatch_sizes : sequence of int
        Rising; where there are none, `USUAL_SIZES` and on by doubling, up to `LARGEST_SIZE`, while a device holds all
        that a micro-batch of the whole model keeps.
    sequence : int
        Tokens of a sample; 0 for the default.
    precision : str
        One of `PRECISIONS`; by default `DEFAULT_PRECISION`, of a ``module:function`` what it is built in.
    trainer : str
        Trainer whose habits price plans of the model, where the command names no other.
    calibration : Calibration, optional
        Rates in place of the published ones.
    source : str
        One of `SOURCES`; by default described where that is possible.
    lora_rank : int
        Of the adapters of a described model's layers, which train alone; 0 for none.

    Raises
    ------
    UsageError
        When no such model is known, or it does not have the source or is not adapted; says what is.
    InvalidInput
        When a config.json cannot be read, or a module cannot be captured.
    """
    if not microbatch_sizes:
        known = device, sequence, precision, trainer, calibration, source, lora_rank
        usual, facts = _made(name, USUAL_SIZES, *known)
        further = _further_sizes(usual)
        return _made(name, (*USUAL_SIZES, *further), *known) if further else (usual, facts)
    return _made(name, microbatch_sizes, device, sequence, precision, trainer, calibration, source, lora_rank)


def _further_sizes(profile: Profile) -> tuple[int, ...]:
    """Return sizes beyond the usual ones of which a device holds all that a micro-batch of the whole model keeps."""
    if profile.microbatch_sizes != USUAL_SIZES:
        return ()
    kept = {each.storage: each.size_bytes for operator in profile.graph.operators for each in operator.saved}
    most = profile.device.memory_bytes // max(1, sum(kept.values()))
    sizes = accumulate(repeat(2), mul, initial=2 * USUAL_SIZES[-1])
    return tuple(takewhile(lambda size: size <= min(most, LARGEST_SIZE), sizes))


def _made(
    name: str,
    microbatch_sizes: Sequence[int],
    device: str,
    sequence: int,
    precision: str,
    trainer: str,
    calibration: Calibration | None,
    source: str,
    lora_rank: int,
) -> tuple[Profile, Facts]:
    """Return what `make` does for sizes that are given."""
    if lora_rank:
        _check_adapted(name, source)
    if name == "nasnet" or name.startswith("random:"):
        _check_source(name, source, (DESCRIBED,))
        profile = generate(name)
        return profile, {**_facts_of(profile), "source": "generated"}
    said: Facts = {"trainer": trainer} if trainer else {}
    known = _described(name, microbatch_sizes, sequence, precision or DEFAULT_PRECISION, source, lora_rank)
    if known is None:
        spec = f"zoo:{name}" if name.partition(":")[0] in NAMES else name
        kept = precision if _is_function(spec) else precision or DEFAULT_PRECISION
        return _captured(spec, device, microbatch_sizes, sequence, kept, said, calibration)
    kept = precision or DEFAULT_PRECISION
    provenance: Facts = {"described": known.graph.name, "model_type": known.model_type, "defaults": [*known.defaults]}
    if known.source:
        provenance["source"] = known.source
    profile = estimated_profile(
        known.graph, catalogue_device(device), kept, PRECISIONS[kept].dtype, microbatch_sizes, provenance,
        {"sequence": known.tokens, "active_parameters": known.active_parameters, **said}, calibration,
    )  # fmt: skip
    return profile, _facts(known)


def _described(
    name: str, microbatch_sizes: Sequence[int], sequence: int, precision: str, source: str, lora_rank: int
) -> Description | None:
    """Return a model's description; None where it is to be captured, or cannot be described and can be captured."""
    if name.partition(":")[0] in ("zoo", *NAMES) or _is_function(name):
        _check_source(name, source, (CAPTURED,))
        return None
    if not _is_config(name):
        _check_source(name, source, (DESCRIBED,))
    elif source == CAPTURED:
        return None
    try:
        return describe(name, microbatch_sizes, sequence, precision, lora_rank)
    except NotDescribed:
        if lora_rank or source == DESCRIBED or not (find_spec("torch") and find_spec("transformers")):
            raise
    return None


def _check_adapted(name: str, source: str) -> None:
    if source == CAPTURED or not (_is_config(name) or name in {row.id for row in rows()}):
        raise UsageError(
            f"--lora-rank adapts what is described, an id of the table or a config.json, and {name!r} is not: leave it "
            "out; in a module:function, frozen parameters have requires_grad_(False)"
        )


def _is_config(name: str) -> bool:
    return name.endswith(".json") or os.path.isfile(name)


def _is_function(name: str) -> bool:
    """Whether a name is ``module:function``, and nothing of ours that is written like it."""
    where, colon, function = name.partition(":")
    return bool(colon and where and function) and not _is_config(name) and where not in ("zoo", *NAMES)


def _check_source(name: str, source: str, there: Sequence[str]) -> None:
    if source and source not in there:
        raise UsageError(f"--source {source}: {name!r} is {there[0]} alone; leave --source out")


def describe(
    name: str, microbatch_sizes: Sequence[int] = (1,), sequence: int = 0, precision: str = "bf16", lora_rank: int = 0
) -> Description:
    """Return the description of an id of the table or of a config.json."""
    if name.endswith(".json") or os.path.isfile(name):
        return describe_config(
            _label(name), read_config(name), tokens=sequence, precision=precision, microbatch_sizes=microbatch_sizes,
            lora_rank=lora_rank,
        )  # fmt: skip
    if name not in {row.id for row in rows()}:
        _refuse(name)
    row = find(name)
    return describe_config(
        row.id, row.config(), tokens=sequence, precision=precision, microbatch_sizes=microbatch_sizes,
        not_counted=row.not_counted, source=row.source, note=row.note, lora_rank=lora_rank,
    )  # fmt: skip


def config_of(name: str) -> Config:
    """Return the configuration of an id of the table or of a config.json.

    Raises
    ------
    UsageError
        When no such model is known.
    """
    if name.endswith(".json"):
        return read_config(name)
    if name not in {row.id for row in rows()}:
        _refuse(name)
    return find(name).config()


def _label(path: str) -> str:
    """Name a model after its file, or after the folder of a config.json."""
    found = Path(path).resolve()
    return found.parent.name if found.name == "config.json" and found.parent.name else found.stem


def _refuse(name: str) -> None:
    raise UsageError(
        f"{name!r} is no known model; ids are {', '.join(row.id for row in rows())}; a config.json is described where "
        f"it is of {', '.join(DEFAULTS)}, and captured where torch and transformers build it; else module:function for "
        "a model of your own, zoo:NAME, nasnet or random:N:SEED"
    )


def _facts(known: Description) -> Facts:
    facts: Facts = {
        "parameters": known.parameters,
        "active_parameters": known.active_parameters,
        "all_parameters": known.all_parameters,
        "model_type": known.model_type,
        "sequence": known.tokens,
        "defaults": [*known.defaults],
        "source": DESCRIBED,
        "tensor_parallel": tensor_parallel(known.graph),
    }
    if known.note:
        facts["note"] = known.note
    return facts


def _facts_of(profile: Profile) -> Facts:
    return {"parameters": sum(map(count, profile.graph.parameters))}


def tensor_parallel(graph: OperatorGraph) -> bool | list[str]:
    """Return true where tensor parallelism divides all matrix products, else the modules of those that it leaves whole.

    Numbers of layers that are alike are left out of the names.
    """
    whole = (o for o in graph.operators if o.flop and (o.work is None or o.work.split not in DIVIDED))
    found = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", o.module or o.name) for o in whole)
    return [*found] or True


def _captured(
    spec: str,
    device: str,
    microbatch_sizes: Sequence[int],
    sequence: int,
    precision: str,
    said: Facts,
    calibration: Calibration | None,
) -> tuple[Profile, Facts]:
    if not find_spec("torch"):
        raise UsageError(
            f"{spec}: that is a torch module, so describing it needs torch: install penstock[torch], or take an id of "
            f"the table ({', '.join(row.id for row in rows())})"
        )
    from costmodel.architectures.captured import captured_profile

    profile = captured_profile(spec, catalogue_device(device), microbatch_sizes, precision, sequence, said, calibration)
    if _is_config(spec):
        profile = replace(profile, graph=replace(profile.graph, name=_label(spec)))
    facts: Facts = {
        "parameters": profile.provenance["parameters"],
        "source": CAPTURED,
        "tensor_parallel": tensor_parallel(profile.graph),
    }
    return profile, facts
