"""What ``penstock model`` does: from a name to a profile and its facts.

Leaves out flags and printing (`planner.commands.model`).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from costmodel.architectures.builder import PRECISIONS
from costmodel.architectures.configs import Config, read_config
from costmodel.architectures.describe import Description, count, describe_config
from costmodel.architectures.estimate import estimated_profile
from costmodel.architectures.table import find, rows
from costmodel.architectures.whitelist import DEFAULTS
from costmodel.calibration import Calibration
from costmodel.errors import UsageError
from costmodel.machines.catalogue import device as catalogue_device
from costmodel.model.profile import Profile
from costmodel.zoo import NAMES
from costmodel.zoo.generated import generate

DEFAULT_DEVICE = "h100-sxm-80"

Facts = dict[str, object]


def make(
    name: str,
    device: str,
    microbatch_sizes: Sequence[int],
    sequence: int = 0,
    precision: str = "bf16",
    trainer: str = "",
    calibration: Calibration | None = None,
) -> tuple[Profile, Facts]:
    """Return the profile of a model by name, and what there is to say about it.

    Parameters
    ----------
    name : str
        An id of the table, a config.json, ``nasnet``, ``random:N:SEED`` or ``zoo:NAME[:small]``.
    device : str
        Catalogue id.
    microbatch_sizes : sequence of int
        Rising.
    sequence : int
        Tokens of a sample; 0 for the default.
    precision : str
        One of `PRECISIONS`.
    trainer : str
        Trainer whose habits price plans of a described model, where the command names no other.
    calibration : Calibration, optional
        Rates in place of the published ones, of a model that is described.

    Raises
    ------
    UsageError
        When no such model is known; says what is.
    InvalidInput
        When a config.json cannot be read.
    """
    if name == "nasnet" or name.startswith("random:"):
        profile = generate(name)
        return profile, _facts_of(profile)
    if name.partition(":")[0] in ("zoo", *NAMES):
        return _from_zoo(name, device, microbatch_sizes, precision)
    known = describe(name, microbatch_sizes, sequence, precision)
    provenance: Facts = {"described": known.graph.name, "model_type": known.model_type, "defaults": [*known.defaults]}
    said = {"trainer": trainer} if trainer else {}
    if known.source:
        provenance["source"] = known.source
    profile = estimated_profile(
        known.graph, catalogue_device(device), precision, PRECISIONS[precision].dtype, microbatch_sizes, provenance,
        {"sequence": known.tokens, "active_parameters": known.active_parameters, **said}, calibration,
    )  # fmt: skip
    return profile, _facts(known)


def describe(
    name: str, microbatch_sizes: Sequence[int] = (1,), sequence: int = 0, precision: str = "bf16"
) -> Description:
    """Return the description of an id of the table or of a config.json."""
    if name.endswith(".json") or os.path.isfile(name):
        return describe_config(
            _label(name), read_config(name), tokens=sequence, precision=precision, microbatch_sizes=microbatch_sizes
        )
    if name not in {row.id for row in rows()}:
        _refuse(name)
    row = find(name)
    return describe_config(
        row.id, row.config(), tokens=sequence, precision=precision, microbatch_sizes=microbatch_sizes,
        not_counted=row.not_counted, source=row.source, note=row.note,
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
        f"{name!r} is no known model; ids are {', '.join(row.id for row in rows())}; a config.json may be of "
        f"{', '.join(DEFAULTS)}; else nasnet, random:N:SEED, zoo:NAME, or penstock profile for a model of your own"
    )


def _facts(known: Description) -> Facts:
    facts: Facts = {
        "parameters": known.parameters,
        "active_parameters": known.active_parameters,
        "all_parameters": known.all_parameters,
        "model_type": known.model_type,
        "sequence": known.tokens,
        "defaults": [*known.defaults],
    }
    if known.note:
        facts["note"] = known.note
    return facts


def _facts_of(profile: Profile) -> Facts:
    return {"parameters": sum(map(count, profile.graph.parameters))}


def _from_zoo(name: str, device: str, microbatch_sizes: Sequence[int], precision: str) -> tuple[Profile, Facts]:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{name}: the zoo's models are torch modules, so describing one needs torch: install penstock[torch], or "
            f"take an id of the table ({', '.join(row.id for row in rows())})"
        ) from None
    from costmodel.architectures.captured import captured_profile

    spec = name if name.startswith("zoo:") else f"zoo:{name}"
    profile = captured_profile(spec, catalogue_device(device), microbatch_sizes, precision)
    return profile, _facts_of(profile)
