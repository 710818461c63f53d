"""Blocks of a model by the paths of its modules: one of a list of layers that repeat. Leaves out what they hold."""


def block_of(module: str) -> str:
    """Return the path of a module's block, up to its first number; empty for none: ``layers.3`` of ``layers.3.mlp``."""
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])
