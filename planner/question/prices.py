"""What devices cost an hour: a list of prices with its source and date, or prices said device by device.

A file of prices (TOML) has a table ``price_per_hour`` of catalogue ids, or of names of a cluster's devices, and may say
``source`` and ``date``. The money is whatever its user counts. Leaves out hosts, networks and energy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.errors import UsageError
from costmodel.files import read_toml
from costmodel.machines.cluster import Cluster

MOST_PRICE = 10**6
"""Of a device and hour."""
SAID = "--price"
"""The source of a price that a flag says."""


@dataclass(frozen=True)
class Prices:
    """Prices of devices an hour, by catalogue id or name, with where they are from.

    Attributes
    ----------
    by_device : mapping of str to float
    source, date : str
        Empty where they are not said.
    named : frozenset of str
        Devices that were said one by one, so that they must be there.
    """

    by_device: Mapping[str, float]
    source: str = ""
    date: str = ""
    named: frozenset[str] = frozenset()

    def applied_to(self, cluster: Cluster) -> Cluster:
        """Return a cluster whose devices have these prices; those of which no price is known keep their own.

        Raises
        ------
        UsageError
            For a price of a device that the cluster has not.
        """
        there = {name for each in cluster.devices for name in (each.name, each.catalogue) if name}
        if gone := sorted(self.named - there):
            raise UsageError(f"--price of {', '.join(gone)}: the cluster's devices are {', '.join(sorted(there))}")
        devices = (
            replace(each, price_per_hour=found) if (found := self.of(each.name, each.catalogue)) else each
            for each in cluster.devices
        )
        return replace(cluster, devices=tuple(devices))

    def of(self, *names: str) -> float:
        """Return the price of a device of one of these names; 0 where there is none."""
        return next((self.by_device[name] for name in names if name in self.by_device), 0.0)


def read_prices(texts: Sequence[str]) -> Prices:
    """Read prices as flags give them: files, and ``DEVICE=X``, the later ones before the earlier.

    Raises
    ------
    InvalidInput
        For a file that cannot be read.
    UsageError
        For a price that is not a number above 0.
    """
    known, sources, named, date = dict[str, float](), dict[str, None](), set[str](), ""
    for text in texts:
        device, said, price = text.partition("=")
        if said and not Path(text).exists():
            known[device] = _price(device, price)
            named.add(device)
            sources[SAID] = None
        else:
            listed = _listed(text)
            known |= listed.by_device
            sources[listed.source or text] = None
            date = listed.date
    return Prices(known, ", ".join(sources), date, frozenset(named))


def _price(device: str, text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not device or not 0 < price <= MOST_PRICE:
        raise UsageError(
            f"--price {device}={text}: a price of a device and hour is needed, above 0 and up to {MOST_PRICE}, as in "
            "--price h100-sxm-80=2.5, or a file of prices"
        )
    return price


def _listed(path: str) -> Prices:
    top = read_toml(path).members(("price_per_hour",), ("source", "date"))
    prices = {name: node.number(0, MOST_PRICE) for name, node in top["price_per_hour"].entries().items()}
    for name, price in prices.items():
        if not price:
            top["price_per_hour"].fail(f"{name} costs 0; leave out a device whose price is not known")
    source, date = (top[name].text() if name in top else "" for name in ("source", "date"))
    return Prices(prices, source, date)
