"""The model zoo's register: names and where their functions are. Imports no torch by itself."""

from costmodel.errors import UsageError

NAMES = ("mmt", "uno", "gpt")


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
    return f"costmodel.zoo.{name}:build_small" if size else f"costmodel.zoo.{name}:build"
