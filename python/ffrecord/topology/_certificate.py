"""The load of every link in every step: the proof that a placement has no contention, or where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffrecord.topology._network import Network
from ffrecord.topology._patterns import Step
from ffrecord.topology._placement import Placement


@dataclass(frozen=True)
class StepLoad:
    """One step. `flows_max` is the number of messages on the fullest lane, of link `link`."""

    name: str
    repeat: int
    flows_max: int
    link: str
    bytes_max: float


@dataclass(frozen=True)
class Certificate:
    """Loads by step. A placement is free of contention if no lane carries two messages at once."""

    placement: str
    steps: tuple[StepLoad, ...]
    loads: dict[str, int]  # Messages on the fullest lane of each link, in its worst step.

    @property
    def flows_max(self) -> int:
        """Messages on the fullest lane of the worst step; 1 is free of contention."""
        return max((step.flows_max for step in self.steps), default=0)

    @property
    def free_of_contention(self) -> bool:
        """Whether no two messages ever share a lane."""
        return self.flows_max <= 1

    @property
    def cost(self) -> float:
        """Bytes through the fullest lane of each step, summed: time on links of equal rate."""
        return sum(step.bytes_max * step.repeat for step in self.steps)

    def offender(self) -> StepLoad | None:
        """Return the step with the most contention, if any has some."""
        worst = max(self.steps, key=lambda step: step.flows_max, default=None)
        return worst if worst is not None and worst.flows_max > 1 else None


def certify(
    network: Network,
    placement: Placement,
    steps: list[Step],
    *,
    storage: Sequence[tuple[int, int]] = (),
) -> Certificate:
    """Choose a route for every message and count.

    Each message takes, of its shortest routes, the one whose fullest link carries least so far.
    Those of `storage` (pairs of host numbers), which flow during every step, choose first. Lanes of
    a link share its messages evenly.
    """
    lanes = np.array([link.lanes for link in network.links])
    before = np.zeros(len(network.links), np.int64)
    for source, target in storage:
        before[list(_least_loaded(network, source, target, before, lanes))] += 1
    loads = []
    highest = np.zeros(len(network.links), np.int64)
    for step in steps:
        flows = before.copy()
        sizes = np.zeros(len(network.links))
        for source, target, size in zip(
            placement.hosts[step.sources].tolist(),
            placement.hosts[step.targets].tolist(),
            step.size.tolist(),
            strict=True,
        ):
            way = list(_least_loaded(network, source, target, flows, lanes))
            flows[way] += 1
            sizes[way] = np.maximum(sizes[way], size)
        on_lane = -(-flows // lanes)
        highest = np.maximum(highest, on_lane)
        worst = int(np.argmax(on_lane))
        bytes_max = float((on_lane * sizes).max(initial=0))
        name = network.links[worst].name
        loads.append(StepLoad(step.name, step.repeat, int(on_lane[worst]), name, bytes_max))
    by_link = {link.name: load for link, load in zip(network.links, highest.tolist(), strict=True)}
    return Certificate(placement.name, tuple(loads), by_link)


def _least_loaded(
    network: Network,
    source: int,
    target: int,
    flows: np.ndarray[tuple[int], np.dtype[np.int64]],
    lanes: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[int, ...]:
    if source == target:
        return ()
    ways = network.routes(source, target)
    if len(ways) == 1:
        return ways[0]
    return min(ways, key=lambda way: max(flows[link] / lanes[link] for link in way))
