"""A placement for networks that no rule fits."""

import numpy as np

from ffrecord.topology._certificate import certify
from ffrecord.topology._network import Network
from ffrecord.topology._patterns import Step
from ffrecord.topology._placement import Placement, place


def search(
    network: Network, steps: list[Step], ranks: int, *, tries: int = 200, seed: int = 0
) -> Placement:
    """Improve the best simple placement by swapping ranks while that lowers the cost.

    The cost is that of the certificate: for each step the bytes on its fullest lane. For networks
    that no rule fits; deterministic for a seed.
    """

    def cost(placement: Placement) -> float:
        return certify(network, placement, steps).cost

    simple = [place(name, network, ranks, seed) for name in ("sequential", "round-robin")]
    best = min(simple, key=cost)
    best_cost = cost(best)
    generator = np.random.default_rng(seed)
    for _ in range(tries if ranks > 1 else 0):
        one, other = generator.choice(ranks, 2, replace=False)
        hosts = best.hosts.copy()
        hosts[[one, other]] = hosts[[other, one]]
        swapped = Placement("search", hosts)
        if (swapped_cost := cost(swapped)) < best_cost:
            best, best_cost = swapped, swapped_cost
    return Placement("search", best.hosts)
