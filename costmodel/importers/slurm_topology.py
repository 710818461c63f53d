"""Slurm's ``topology.conf`` and ``topology.yaml``: which hosts hang on which switches or blocks, level by level.

Keys are in any case, a backslash continues a line, and lists of names are those of `costmodel.importers.host_lists`.
Of a ``topology.yaml`` with several topologies the cluster's default counts. Leaves out speeds of links, and the sizes
into which blocks are joined.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodel.errors import InvalidInput
from costmodel.importers.block_yaml import read_block_yaml
from costmodel.importers.host_lists import expand

CONF = re.compile(r"^\s*(switchname|blockname)\s*=", re.MULTILINE | re.IGNORECASE)
YAML = re.compile(r"^\s*(-\s+)?topology\s*:", re.MULTILINE)
_FIELD = re.compile(r"\s*([A-Za-z_]+)\s*=\s*(?:\"([^\"]*)\"|(\S+))")
_KEYS = ("switchname", "blockname", "nodes", "switches", "linkspeed", "blocksizes")


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch or block: the lists of hosts, or of switches, below it, as they are written."""

    name: str
    nodes: str
    switches: str
    place: str


def read_levels(text: str, path: str) -> list[list[list[str]]]:
    """Return the hosts of each group of each level, the leaves first.

    Raises
    ------
    InvalidInput
        For what is no such file, a host in two leaves, or switches that the file does not define; names the line.
    """
    switches: dict[str, Switch] = {}
    for switch in _yaml_switches(text, path) if YAML.search(text) and not CONF.search(text) else _switches(text, path):
        if switch.name in switches:
            raise InvalidInput(f"{switch.place}: a second {switch.name!r}, as in {switches[switch.name].place}")
        if bool(switch.nodes) == bool(switch.switches):
            raise InvalidInput(f"{switch.place}: {switch.name!r} needs nodes or switches below it, and one of the two")
        switches[switch.name] = switch
    hosts = {switch.name: _expanded(switch) for switch in switches.values() if switch.nodes}
    _check_hosts(hosts, switches)
    levels = [list(hosts.values())]
    upper = {switch.name: _expanded(switch) for switch in switches.values() if switch.switches}
    while upper:
        ready = {
            name: [host for each in below for host in hosts[each]]
            for name, below in upper.items()
            if all(each in hosts for each in below)
        }
        if not ready:
            first = next(iter(upper))
            raise InvalidInput(
                f"{switches[first].place}: the switch {first!r} names switches that the file does not define"
            )
        hosts |= ready
        levels.append(list(ready.values()))
        upper = {name: below for name, below in upper.items() if name not in ready}
    return levels


def _expanded(switch: Switch) -> list[str]:
    try:
        return expand(switch.nodes or switch.switches)
    except InvalidInput as error:
        raise InvalidInput(f"{switch.place}: {error}") from None


def _check_hosts(hosts: Mapping[str, list[str]], switches: Mapping[str, Switch]) -> None:
    leaf_of: dict[str, str] = {}
    for leaf, row in hosts.items():
        for host in row:
            other = leaf_of.setdefault(host, leaf)
            if other != leaf:
                raise InvalidInput(f"{switches[leaf].place}: the host {host!r} hangs on {other!r} already; keep one")


def _switches(text: str, path: str) -> Iterator[Switch]:
    for number, line in _joined(text):
        place, fields = f"{path}: line {number}", _fields(line, f"{path}: line {number}")
        name = fields.get("switchname") or fields.get("blockname")
        if name:
            yield Switch(name, fields.get("nodes", ""), fields.get("switches", ""), place)
        elif fields.keys() - {"blocksizes"}:
            raise InvalidInput(f"{place}: {line.strip()[:60]!r} names no switch; SwitchName= or BlockName= is needed")


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first part; a backslash at the end continues one."""
    so_far, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|(?<=\s))#.*", "", raw).rstrip()
        so_far += line.lstrip() if so_far.endswith(",") else line
        first = first or number
        if so_far.endswith("\\"):
            so_far = so_far[:-1]
            continue
        yield first, so_far
        so_far, first = "", 0
    if so_far:
        yield first, so_far


def _fields(line: str, place: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    while line[position:].strip():
        found = _FIELD.match(line, position)
        key = found[1].lower() if found else ""
        if not found or key not in _KEYS or key in fields:
            raise InvalidInput(
                f"{place}: {line[position:].strip()[:60]!r}; each of SwitchName, BlockName, Nodes, Switches, LinkSpeed "
                "and BlockSizes may stand there once, as KEY=VALUE"
            )
        fields[key] = found[2] if found[2] is not None else found[3]
        position = found.end()
    return fields


def _yaml_switches(text: str, path: str) -> Iterator[Switch]:
    """Yield the switches or blocks of the default topology of a ``topology.yaml``."""
    topologies = _maps(read_block_yaml(text, path), path, "a list of topologies")
    default = [each for each in topologies if str(each.get("cluster_default", "")).lower() in ("true", "yes")]
    chosen = default or topologies[:1]
    if len(chosen) > 1:
        raise InvalidInput(f"{path}: {len(chosen)} topologies are the cluster's default; leave one")
    place = f"{path}: the topology {chosen[0].get('topology', '')!r}"
    for kind, rows, name in (("tree", "switches", "switch"), ("block", "blocks", "block")):
        inner = chosen[0].get(kind)
        if inner is None:
            continue
        if not isinstance(inner, dict) or rows not in inner:
            raise InvalidInput(f"{place}: {kind} needs {rows}")
        for each in _maps(inner[rows], place, f"a list of {rows}"):
            unknown = each.keys() - {name, "nodes", "children", "link_speed"}
            if unknown or not isinstance(each.get(name), str):
                raise InvalidInput(
                    f"{place}: one of the {rows} has {', '.join(sorted(each))}; {name}, nodes, children and "
                    "link_speed are known"
                )
            yield Switch(str(each[name]), _names(each, "nodes"), _names(each, "children"), f"{place}: {each[name]}")
        return
    raise InvalidInput(f"{place}: neither a tree nor blocks; a flat one says nothing of how hosts are joined")


def _names(members: Mapping[str, object], key: str) -> str:
    found = members.get(key, "")
    return ",".join(map(str, found)) if isinstance(found, list) else str(found)


def _maps(value: object, place: str, what: str) -> list[dict[str, object]]:
    rows = value if isinstance(value, list) else []
    found = [row for row in rows if isinstance(row, dict)]
    if not found or len(found) < len(rows):
        raise InvalidInput(f"{place}: {what} is needed")
    return found
