"""Say on which machines to train a model, by cost and days of the whole run, at prices that you give.

    penstock buy llama3-8b --tokens 300B --price prices.toml --deadline 30
    penstock buy config.json --tokens 300B --price h100-sxm-80=2.5 --price b200-sxm-180=4.2 --budget 100000

MODEL: what `penstock model` describes (an id of its table, a config.json, module:function, zoo:NAME). Each row is a
plan on typical hosts of a device; `penstock plan` with the row's devices and batch makes it again.
"""

import argparse
from typing import TYPE_CHECKING

from costmodel.architectures.builder import PRECISIONS
from costmodel.errors import UsageError
from planner.commands.answer import Answer, say
from planner.commands.flags import amount, limit, many, positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.report.machines_to_buy import Offer
    from planner.report.summary.text import Table

BATCH_TOKENS = 4 * 2**20
MOST_ROWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("model", metavar="MODEL", help="what penstock model describes")
    parser.add_argument("--tokens", type=many, required=True, metavar="T", help="of the run, as in 15T or 300B")
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        required=True,
        metavar="FILE|DEVICE=X",
        help="of a device and hour, by catalogue id, or a file of prices; every device with a price is tried",
    )
    parser.add_argument("--deadline", type=amount, default=0.0, metavar="DAYS", help="leave out what takes longer")
    parser.add_argument("--budget", type=amount, default=0.0, metavar="MONEY", help="leave out what costs more")
    parser.add_argument(
        "--batch-tokens", type=many, default=BATCH_TOKENS, metavar="N", help="tokens of a step, about (default 4Mi)"
    )
    parser.add_argument("--sequence", type=positive, default=0, metavar="N", help="tokens of a sample")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="", help="of training (default: bf16)")
    parser.add_argument("--time-limit", type=limit, default=2.0, metavar="S", help="of each search (default 2)")
    parser.add_argument("--all", action="store_true", help=f"more than {MOST_ROWS} rows")


def run(args: argparse.Namespace) -> Answer:
    """Plan on every priced device in growing numbers and show what no other undercuts."""
    from costmodel.architectures.command import make
    from costmodel.machines import catalogue
    from planner.front import make_plan
    from planner.question.prices import read_prices
    from planner.report.machines_to_buy import MachineChoice
    from planner.report.summary.run_cost import RunTarget

    prices = read_prices(args.price)
    for device in prices.by_device:
        catalogue.device(device)
    choice = MachineChoice(
        lambda device: make(args.model, device, (), args.sequence, args.precision)[0],
        prices,
        RunTarget(args.tokens, args.deadline, args.budget),
        args.batch_tokens,
        make_plan,
        args.time_limit,
    )
    if not prices.by_device:
        raise UsageError("the files of --price name no device; give a price, as in --price h100-sxm-80=2.5")
    offers = choice.offers(say)
    dated = f", {prices.date}" if prices.date else ""
    shown = offers if args.all else offers[:MOST_ROWS]
    more = [f"{len(offers) - len(shown)} more: --all"] if len(offers) > len(shown) else []
    body = {
        "rows": [each.to_json() for each in offers],
        "price_source": prices.source,
        "price_date": prices.date or None,
        "tokens": args.tokens,
    }
    return Answer(body, [_table(shown), *more, f"prices: {prices.source}{dated}; devices that stay idle are paid for"])


def _table(offers: "Sequence[Offer]") -> "Table":
    from planner.plan.fitting import fitting_of
    from planner.plan.rung import rung
    from planner.report.summary.run_cost import days_said
    from planner.report.summary.text import Table, duration, money

    rows = [
        (
            f"{each.num_devices} {each.device}",
            money(each.money),
            days_said(each.days),
            duration(each.answer.plan.prediction.step_time_ns),
            rung(each.answer.plan),
            fitting_of(each.answer.plan),
            each.standing,
        )
        for each in offers
    ]
    columns = ("machines", "cost", "run", "step", "strategy", "memory", "price of steps by")
    return Table(columns, rows, "machines that no other undercuts in cost and days, and the cheapest of each device")
