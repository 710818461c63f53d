"""Names of a model's parts as torchtitan's split takes them (``module_fqns_per_model_part``).

Its rules (`torchtitan/distributed/pipeline_parallel.py`, 0.3.0): a name is an attribute of the model
(``norm``) or an entry of a list that is one (``layers.3``), and what no name keeps is dropped from a stage, so each
is in exactly one. A model inside another (Hugging Face's ``model.layers.3`` next to ``lm_head``) gets the names that
torchtitan's own definitions of such models have. Leaves out whether torchtitan has the model.
"""

from collections.abc import Sequence

from costmodel.model.blocks import block_of, list_of

OWN_NAMES = {"embed_tokens": "tok_embeddings"}
"""torchtitan's names of what Hugging Face's decoders call otherwise; the head was `output` before 0.3.0."""


def model_part_names(parts: Sequence[Sequence[str]]) -> tuple[list[list[str]], str]:
    """Return torchtitan's names of what each stage holds, and why it does not take them, if it does not."""
    lists = {list_of(name) for row in parts for name in row if block_of(name)}
    inside = {list_of(path) for path in lists}
    wrapper = f"{inside.pop()}." if len(inside) == 1 and inside != {""} else ""
    rows = [[_own(name, wrapper) for name in row] for row in parts]
    names = [name for row in rows for name in row]
    deep = next((name for name in names if name.count(".") > (block_of(name) == name)), "")
    if deep:
        return rows, f"the module {deep}, which is no attribute of the model nor an entry of a list that is one"
    twice = next((name for name in names if names.count(name) > 1), "")
    return rows, f"the module {twice} divided between two stages" if twice else ""


def _own(name: str, wrapper: str) -> str:
    short = name.removeprefix(wrapper) if wrapper else name
    return OWN_NAMES.get(short, short) if wrapper else short
