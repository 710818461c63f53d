"""The model zoo's register: names and where their functions are. Imports no torch by itself."""

from costmodel.errors import UsageError

_BUILDERS = {
    "mmt": "mmt:build",
    "uno": "uno:build",
    "gpt": "gpt:build",
    "uno21": "uno:build_21",
    "case-study": "mmt:build_case_study",
    "dlrm": "dlrm:build",
    "dlrm26": "dlrm:build_26",
    "llama": "llama:build",
    "llama3": "llama:build_llama3",
    "moe": "moe:build",
    "clip": "clip:build",
    "vlm": "vlm:build",
    "vit": "vit:build",
    "t5": "t5:build",
    "unet3d": "unet3d:build",
    "yolo": "yolo:build",
    "resnet50": "resnet50:build",
    "inception": "inception:build",
}
"""Name -> module and function of the full size; the small one's ends in ``_small``."""

NAMES = tuple(_BUILDERS)


def locate(spec: str) -> str:
    """Return ``module:function`` of ``zoo:NAME`` or ``zoo:NAME:small``.

    Raises
    ------
    UsageError
        When the zoo has no such model or size.
    """
    name, _, size = spec.removeprefix("zoo:").partition(":")
    if name not in NAMES or size not in ("", "small"):
        raise UsageError(f"the zoo has no model {spec!r}; it has {', '.join(NAMES)}, each also as zoo:NAME:small")
    return f"costmodel.zoo.{_BUILDERS[name]}{'_small' if size else ''}"
