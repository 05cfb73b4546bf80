"""Hosts, switches and cables, and the shortest routes through them."""

import json
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GBIT = 1e9 / 8
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# Limit for hosts and cables together: a cluster has some ten thousand, and each takes memory and
# time.
_PARTS_MAX = 1 << 20


@dataclass(frozen=True)
class Cable:
    """`count` parallel full-duplex cables between two nodes, each of `rate` bytes/s one way."""

    a: str
    b: str
    count: int = 1
    rate: float = 100 * GBIT


@dataclass(frozen=True)
class Link:
    """One direction of a bundle of parallel cables; its lanes are shared evenly."""

    source: str
    target: str
    lanes: int
    rate: float

    @property
    def name(self) -> str:
        """The name of the link in certificates."""
        return f"{self.source}->{self.target}"

    @property
    def capacity(self) -> float:
        """Bytes/s of all lanes together."""
        return self.lanes * self.rate


@dataclass(frozen=True)
class BiGraphShape:
    """k upper and k lower switches, h hosts at each, m cables between each pair of them."""

    k: int
    h: int
    m: int


def _mixed(*values: int) -> int:
    """Hash numbers as a switch hashes a flow: the same for the same flow."""
    state = 0
    for value in values:
        state = (state ^ (value + _MIX)) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 31
    return state


@dataclass
class Network:
    """Directed links by number, and routes as tuples of those numbers.

    `hosts` are the places for ranks, in an order in which neighbours are near; every other node is
    a switch. `shape` is set if the network is a BiGraph. Not thread-safe: routes are cached.
    """

    hosts: tuple[str, ...]
    links: tuple[Link, ...]
    shape: BiGraphShape | None = None
    _ways: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)
    _host_names: frozenset[str] = field(default=frozenset(), repr=False)
    _hops: dict[frozenset[str], dict[str, int]] = field(default_factory=dict, repr=False)
    _routes: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, hosts: Sequence[str], cables: Iterable[Cable], shape: BiGraphShape | None = None
    ) -> "Network":
        """Build a network. Raises ValueError for a host without a cable or named twice."""
        links = []
        for cable in cables:
            if cable.count < 1 or not 0 < cable.rate < math.inf:
                raise ValueError(
                    f"cable {cable.a} - {cable.b}: count and rate must be above 0, and finite"
                )
            links.append(Link(cable.a, cable.b, cable.count, cable.rate))
            links.append(Link(cable.b, cable.a, cable.count, cable.rate))
        if twice := [host for host, count in Counter(hosts).items() if count > 1]:
            raise ValueError(f"host {twice[0]} is listed twice")
        ends = {link.source for link in links}
        if lost := [host for host in hosts if host not in ends]:
            raise ValueError(f"host {lost[0]} has no cable; add one, or remove the host")
        pairs = Counter((link.source, link.target) for link in links)
        if parallel := [pair for pair, count in pairs.items() if count > 1]:
            one, other = parallel[0]
            raise ValueError(f"two cables join {one} and {other}: write one cable with a count")
        return cls(tuple(hosts), tuple(links), shape)

    def __post_init__(self) -> None:
        """Index the links by their first node."""
        for number, link in enumerate(self.links):
            self._ways.setdefault(link.source, {})[link.target] = number
        self._host_names = frozenset(self.hosts)

    def without(self, names: Iterable[str]) -> "Network":
        """Return the network in which the cables of these links are broken, in both directions."""
        broken = set(names)
        known = {link.name for link in self.links}
        if unknown := broken - known:
            raise ValueError(f"there is no link {min(unknown)}; write names such as {min(known)}")
        left = tuple(
            link
            for link in self.links
            if link.name not in broken and f"{link.target}->{link.source}" not in broken
        )
        return Network(self.hosts, left, self.shape)

    def switch_of(self, host: int) -> str:
        """Return the first switch of a host."""
        return next(iter(self._ways[self.hosts[host]]))

    def route(self, source: int, target: int, seed: int = 0) -> tuple[int, ...]:
        """Return one shortest route between two hosts: of equal ones the one that the hash picks.

        Raises ValueError if there is none.
        """
        key = (source, target, seed)
        if (known := self._routes.get(key)) is not None:
            return known
        here, end = self.hosts[source], self.hosts[target]
        way: list[int] = []
        while here != end:
            nearer = self._nearer(here, end)
            if not nearer:
                raise _no_route(self.hosts[source], end)
            way.append(nearer[_mixed(seed, source, target, len(way)) % len(nearer)])
            here = self.links[way[-1]].target
        self._routes[key] = tuple(way)
        return self._routes[key]

    def routes(self, source: int, target: int, count_max: int = 64) -> list[tuple[int, ...]]:
        """Return all shortest routes between two hosts, at most `count_max`, in a fixed order.

        Raises ValueError if there is none.
        """
        end = self.hosts[target]
        ways: list[tuple[int, ...]] = []
        begun: list[tuple[str, tuple[int, ...]]] = [(self.hosts[source], ())]
        while begun and len(ways) < count_max:
            here, way = begun.pop()
            if here == end:
                ways.append(way)
                continue
            begun += [(self.links[link].target, (*way, link)) for link in self._nearer(here, end)]
        if not ways:
            raise _no_route(self.hosts[source], end)
        return ways

    def _nearer(self, here: str, end: str) -> list[int]:
        """Links from `here` that are on a shortest route to the host `end`."""
        ways = self._ways.get(here, {})
        if end in ways:
            return [ways[end]]
        hops = self._hops_to(end)
        known = [(hops[node], link) for node, link in ways.items() if node in hops]
        least = min((count for count, _ in known), default=0)
        if here in hops and least >= hops[here]:
            return []
        return [link for count, link in known if count == least]

    def _hops_to(self, end: str) -> dict[str, int]:
        """Hops from each switch to the switches of the host `end`; hosts forward nothing."""
        doors = frozenset(self._ways.get(end, {})) - self._host_names
        if (known := self._hops.get(doors)) is not None:
            return known
        hops = dict.fromkeys(doors, 0)
        reached = deque(doors)
        while reached:
            node = reached.popleft()
            for neighbour in self._ways[node]:
                if neighbour not in hops and neighbour not in self._host_names:
                    hops[neighbour] = hops[node] + 1
                    reached.append(neighbour)
        self._hops[doors] = hops
        return hops


def bigraph(k: int, h: int, m: int = 1, *, rate: float = 100 * GBIT) -> Network:
    """Two layers of k switches with h hosts at each; every upper one has m cables to every lower.

    Hosts are named `u<switch>.<port>` and `l<switch>.<port>`, upper ones first.
    """
    if min(k, h, m) < 1:
        raise ValueError(f"bigraph {k},{h},{m}: all three must be at least 1")
    _check_size(f"bigraph {k},{h},{m}", 4 * k * h + k * k)
    hosts = [
        f"{layer}{switch}.{port}" for layer in "ul" for switch in range(k) for port in range(h)
    ]
    cables = [Cable(host, host.partition(".")[0].upper(), 1, rate) for host in hosts]
    cables += [Cable(f"U{i}", f"L{j}", m, rate) for i in range(k) for j in range(k)]
    return Network.of(hosts, cables, BiGraphShape(k, h, m))


def bigraph_for(ranks: int, *, rate: float = 100 * GBIT) -> Network:
    """Make the BiGraph of single cables with room for exactly `ranks`, a power of two above 1."""
    if ranks < 2 or ranks & (ranks - 1):
        raise ValueError(f"{ranks} ranks: must be a power of two, 2 or more")
    bits = ranks.bit_length() - 2
    port_bits = bits // 2
    return bigraph(1 << (bits - port_bits), 1 << port_bits, rate=rate)


def fat_tree(leaves: int, h: int, spines: int, *, rate: float = 100 * GBIT) -> Network:
    """Leaves with h hosts each; every leaf has one cable to every spine."""
    if min(leaves, h, spines) < 1:
        raise ValueError(f"fat tree {leaves},{h},{spines}: all three must be at least 1")
    _check_size(f"fat tree {leaves},{h},{spines}", 2 * leaves * h + leaves * spines)
    hosts = [f"h{leaf}.{port}" for leaf in range(leaves) for port in range(h)]
    cables = [Cable(host, "L" + host[1:].partition(".")[0], 1, rate) for host in hosts]
    cables += [Cable(f"L{i}", f"S{j}", 1, rate) for i in range(leaves) for j in range(spines)]
    return Network.of(hosts, cables)


def rails(nodes: int, cards: int, spines: int, *, rate: float = 100 * GBIT) -> Network:
    """Nodes with one network card for each accelerator; card i of every node is on switch i.

    A "host" is one card, named `n<node>.<card>`; each rail has `spines` cables to one spine.
    """
    if min(nodes, cards, spines) < 1:
        raise ValueError(f"rails {nodes},{cards},{spines}: all three must be at least 1")
    _check_size(f"rails {nodes},{cards},{spines}", 2 * nodes * cards + cards)
    hosts = [f"n{node}.{card}" for node in range(nodes) for card in range(cards)]
    cables = [Cable(host, "R" + host.partition(".")[2], 1, rate) for host in hosts]
    cables += [Cable(f"R{card}", "S0", spines, rate) for card in range(cards)]
    return Network.of(hosts, cables)


def _no_route(source: str, target: str) -> ValueError:
    return ValueError(f"no route from {source} to {target}: a cable is missing or left out")


def _check_size(what: str, parts: int) -> None:
    if parts > _PARTS_MAX:
        raise ValueError(f"{what} is too large: it has more than {_PARTS_MAX:,} hosts and cables")


def read_cabling(path: Path) -> Network:
    """Read a network from JSON.

    `{"hosts": [names], "cables": [{"a": node, "b": node, "count": 1, "gbit_s": 100}]}`. Raises
    ValueError that names the file and the place.
    """
    try:
        content = json.loads(path.read_text())
        hosts = content["hosts"]
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ValueError('"hosts" must be a list of names')
        cables = [
            Cable(
                str(cable["a"]),
                str(cable["b"]),
                int(cable.get("count", 1)),
                float(cable.get("gbit_s", 100)) * GBIT,
            )
            for cable in content["cables"]
        ]
        return Network.of(hosts, cables)
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]!r} is missing") from None
    except (TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None
