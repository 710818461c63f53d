"""Lower bounds against optima that a solver proved: never above them, and how far below."""

from costmodel.stages.costs import Costs, StageCost
from costmodel.stages.costs_file import read_costs
from simulator.bounds import lower_bound_ns
from simulator.schedule import chain_edges, stage_graph
from tests.support.published_data import folder, rows


def test_no_bound_is_above_the_best_known_order_under_its_limit() -> None:
    """23 cases of split backward on stage graphs: 15 bounds are met, 6 more are within 2.2 %, two are named here."""
    instances = folder("instances", "schedules")
    gaps = {}
    for row in rows(instances / "best_known.csv"):
        costs = read_costs(instances / f"{row['case']}.json")
        graph = stage_graph(costs)
        alone = all(len(graph.stages_of(rank)) == 1 for rank in range(graph.num_ranks))
        limit = int(row["memory_limit_bytes_per_rank"])
        bound = lower_bound_ns(costs, int(row["microbatches"]), "split" if alone else "any", limit)
        gaps[row["case"], row["limit_over_1f1b"]] = int(row["best_known_ns"]) / bound.ns - 1
    assert len(gaps) == 23
    assert min(gaps.values()) == 0
    assert sum(gap == 0 for gap in gaps.values()) == 15
    wide = {case: round(gap, 3) for case, gap in gaps.items() if gap > 0.0225}
    assert wide == {("two_branches_of_four", "0.6"): 0.03, ("two_towers_share", "0.6"): 0.204}


def test_the_bound_of_split_chains_under_a_limit_is_the_optimum_that_a_solver_proved() -> None:
    """Chains with split backward of the published comparison, 4 ranks: the bound proves every one of them."""
    num_proved = 0
    for row in rows(folder("published", "schedules_cpsat_vs_peers.csv")):
        if (row["objective"], row["placement"], row["bwd"]) != ("makespan", "linear", "split"):
            continue
        ranks = int(row["p"])
        f, i, w, p2p_ns = (round(1000 * float(row[key])) for key in ("tF", "tB", "tW", "c"))
        costs = Costs((StageCost(f, i, w),) * ranks, tuple(chain_edges(ranks, p2p_ns)))
        limit_bytes = round(2 * float(row["mem_cap(M_W=.5)"]))
        assert lower_bound_ns(costs, int(row["m"]), "split", limit_bytes).ns == round(1000 * float(row["cpsat_value"]))
        num_proved += 1
    assert num_proved == 10


def test_the_bounds_of_two_uniform_branches_are_met_fused_and_split() -> None:
    """F = I = W = 1, 16 micro-batches: fused graph-1F1B takes 60, split orders 52; neither can be less."""
    instances = folder("instances", "schedules")
    costs = read_costs(instances / "two_branches_of_four.json")
    assert lower_bound_ns(costs, 16, "split").ns == 52_000
    assert lower_bound_ns(costs, 16, "fused").ns == 60_000
