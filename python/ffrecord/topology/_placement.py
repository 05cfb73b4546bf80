"""Which host each rank runs on."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffrecord.topology._network import Network


@dataclass(frozen=True)
class Placement:
    """`hosts[r]` is the number of rank r's host in its network; no two ranks share one."""

    name: str
    hosts: npt.NDArray[np.int64]

    def rank_map(self, network: Network) -> dict[int, str]:
        """Host by rank, for a launcher's rank file."""
        return {rank: network.hosts[host] for rank, host in enumerate(self.hosts.tolist())}


def sequential(network: Network, ranks: int, seed: int) -> npt.NDArray[np.int64]:
    """Fill switch after switch."""
    del network, seed
    return np.arange(ranks)


def random(network: Network, ranks: int, seed: int) -> npt.NDArray[np.int64]:
    """Any hosts in any order, as from a scheduler that does not know the network."""
    return np.random.default_rng(seed).permutation(len(network.hosts))[:ranks]


def round_robin(network: Network, ranks: int, seed: int) -> npt.NDArray[np.int64]:
    """One host of each switch in turn."""
    del seed
    by_switch: dict[str, list[int]] = {}
    for host in range(len(network.hosts)):
        by_switch.setdefault(network.switch_of(host), []).append(host)
    groups = list(by_switch.values())
    order = [
        group[port]
        for port in range(max(len(group) for group in groups))
        for group in groups
        if port < len(group)
    ]
    return np.array(order[:ranks])


def hdrm(network: Network, ranks: int, seed: int) -> npt.NDArray[np.int64]:
    """Halving-doubling rank mapping: in each step every pair has a direct link of its own.

    The layer of rank r is the parity of its bits; with x = r >> 1 its switch is the top bits of x
    in the upper layer and the low bits in the lower one. Needs a BiGraph whose k and h are powers
    of two and that is full (Dong et al., "EFLOPS", HPCA 2020).
    """
    del seed
    shape = network.shape
    if shape is None or shape.k & (shape.k - 1) or shape.h & (shape.h - 1):
        raise ValueError("placement hdrm needs a BiGraph whose k and h are powers of two")
    if ranks != 2 * shape.k * shape.h:
        raise ValueError(
            f"hdrm needs exactly {2 * shape.k * shape.h} ranks in this network, not {ranks}: "
            "choose k and h so that 2 * k * h is the number of ranks"
        )
    port_bits = shape.h.bit_length() - 1
    used = np.zeros(2 * shape.k, np.int64)
    hosts = np.empty(ranks, np.int64)
    for rank in range(ranks):
        x = rank >> 1
        lower = rank.bit_count() % 2
        switch = shape.k + (x & (shape.k - 1)) if lower else x >> port_bits
        hosts[rank] = switch * shape.h + used[switch]
        used[switch] += 1
    return hosts


PLACEMENTS: dict[str, Callable[[Network, int, int], npt.NDArray[np.int64]]] = {
    "sequential": sequential,
    "random": random,
    "round-robin": round_robin,
    "hdrm": hdrm,
}


def place(name: str, network: Network, ranks: int, seed: int = 0) -> Placement:
    """Place ranks by a rule. Raises ValueError if the rule or the network does not allow it."""
    if name not in PLACEMENTS:
        raise ValueError(f"no placement {name}; choose one of {', '.join(PLACEMENTS)}")
    if not 1 <= ranks <= len(network.hosts):
        raise ValueError(f"{ranks} ranks need as many hosts; there are {len(network.hosts)}")
    return Placement(name, PLACEMENTS[name](network, ranks, seed))


def given(hosts: Sequence[str], network: Network) -> Placement:
    """Use a given rank map: host names in rank order. Raises ValueError."""
    numbers = {name: number for number, name in enumerate(network.hosts)}
    if unknown := [host for host in hosts if host not in numbers]:
        raise ValueError(
            f"the network has no host {unknown[0]}; write names such as {network.hosts[0]}"
        )
    if twice := [host for host, count in Counter(hosts).items() if count > 1]:
        raise ValueError(f"two ranks are on host {twice[0]}; a host takes one rank")
    return Placement("given", np.array([numbers[host] for host in hosts], np.int64))
