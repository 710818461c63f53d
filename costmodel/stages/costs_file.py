"""Costs of stages as a file that people may change (``penstock-costs``); its reader is `costmodel.stages.costs`."""

from dataclasses import asdict
from pathlib import Path

from costmodel.files import write_json
from costmodel.stages.costs import COSTS_FORMAT, COSTS_VERSION, PER_ACTION, Costs, stage_to_json


def write_costs(path: str | Path, costs: Costs) -> None:
    """Write a costs file atomically."""
    stages = []
    for stage, ranks, multiple in zip(costs.stages, costs.ranks, costs.multiples, strict=True):
        body = {key: value for key, value in stage_to_json(stage).items() if key in (*PER_ACTION, "backward")}
        rank: object = ranks[0] if len(ranks) == 1 else list(ranks)
        stages.append({"rank": rank, **body, "microbatch_multiple": multiple})
    edges = [
        {"from": e.source, "to": e.target, "p2p_ns": e.p2p_ns, "size_bytes": e.size_bytes, "gradient": e.gradient}
        for e in costs.edges
    ]
    pairs = {"pairs": list(map(asdict, costs.pairs))} if costs.pairs else {}
    write_json(path, COSTS_FORMAT, COSTS_VERSION, {"stages": stages, "edges": edges, **pairs})
