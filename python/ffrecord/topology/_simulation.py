"""How long a collective and a training step take when flows share links.

Flows share every link max-min fairly, which congestion control approximates; a message travels
as a fluid after a start-up time. Delays inside switches, and losses, are not modelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ffrecord.topology._network import Network
from ffrecord.topology._patterns import Step
from ffrecord.topology._placement import Placement

Floats = npt.NDArray[np.float64]
# Rates and ends that differ by less are the same: one round instead of many.
_SAME = 1e-9


@dataclass(frozen=True)
class Flow:
    """Traffic beside the collective: desired bytes/s, 0 or more, between two hosts by number."""

    source: int
    target: int
    rate: float

    def __post_init__(self) -> None:
        """Raise a ValueError for an invalid rate, with which the simulation would not end."""
        if not self.rate >= 0:
            raise ValueError(f"a flow's rate is {self.rate}; it must be 0 bytes/s or more")


@dataclass(frozen=True)
class StepTime:
    """Times of one training step, in seconds. `exposed_s`: what communication adds to compute."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        """From the start of forward to the end of the last bucket."""
        return self.compute_s + self.exposed_s

    @property
    def efficiency(self) -> float:
        """The share of the step in which the accelerator computes."""
        return self.compute_s / self.step_s if self.step_s else 1.0


@dataclass(frozen=True)
class Training:
    """One training step: compute of `compute_s`, whose last part is backward, and its gradients.

    Buckets become ready one after the other during backward, in proportion to their bytes.
    """

    compute_s: float
    bucket_sizes: Sequence[float]
    backward_part: float = 2 / 3


@dataclass
class _Shares:
    """Max-min fair rates of flows over links."""

    network: Network
    capacities: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.capacities = np.array([link.capacity for link in self.network.links])

    def rates(self, members: Floats, flows: npt.NDArray[np.int64], wanted: Floats) -> Floats:
        """Rate of each flow. `members`, `flows`: link and flow of each hop; `wanted`: most each."""
        links = members.astype(np.int64)
        rates = np.zeros(len(wanted))
        frozen = np.zeros(len(wanted), bool)
        left = self.capacities.copy()
        while not frozen.all():
            moving = ~frozen[flows]
            count = np.bincount(links[moving], minlength=len(left))
            share = np.full(len(left), np.inf)
            np.divide(left, count, out=share, where=count > 0)
            fair = np.full(len(wanted), np.inf)
            np.minimum.at(fair, flows[moving], share[links[moving]])
            fair = np.minimum(fair, wanted)
            level = fair[~frozen].min()
            now = ~frozen & (fair <= level * (1 + _SAME))
            rates[now] = level
            frozen |= now
            hops = now[flows]
            left -= np.bincount(links[hops], weights=rates[flows[hops]], minlength=len(left))
            np.maximum(left, 0, out=left)
        return rates


def _seconds_of(
    shares: _Shares,
    ways: list[tuple[int, ...]],
    sizes: Floats,
    beside: list[tuple[tuple[int, ...], float]],
) -> float:
    """Time until all of `sizes` have arrived, while the flows `beside` never end."""
    all_ways = ways + [way for way, _ in beside]
    links = np.array([link for way in all_ways for link in way], np.float64)
    flows = np.repeat(np.arange(len(all_ways)), [len(way) for way in all_ways])
    wanted = np.concatenate([np.full(len(ways), np.inf), [rate for _, rate in beside]])
    left = np.concatenate([sizes, np.full(len(beside), np.inf)])
    here = np.array([not way for way in all_ways])  # Within one host.
    left[here & np.isfinite(left)] = 0
    time = 0.0
    active = (left > 0) & ~here
    while (active & np.isfinite(left)).any():
        hops = active[flows]
        numbers = np.cumsum(active) - 1
        rates = np.zeros(len(left))
        rates[active] = shares.rates(links[hops], numbers[flows[hops]], wanted[active])
        finite = active & np.isfinite(left)
        ends = left[finite] / rates[finite]
        step = ends.min()
        time += step
        left[finite] -= rates[finite] * step
        left[finite & (left <= sizes.max() * _SAME)] = 0
        active = (left > 0) & ~here
    return time


def collective_seconds(
    network: Network,
    placement: Placement,
    steps: list[Step],
    *,
    start_up_s: float = 30e-6,
    storage: Sequence[Flow] = (),
    seed: int = 0,
) -> float:
    """Return the time of a collective whose steps wait for each other.

    Every message takes the route that the hash picks (ECMP); `storage` flows take part throughout.
    """
    shares = _Shares(network)
    beside = [(network.route(f.source, f.target, seed), f.rate) for f in storage]
    total = 0.0
    for step in steps:
        ends = zip(
            placement.hosts[step.sources].tolist(),
            placement.hosts[step.targets].tolist(),
            strict=True,
        )
        ways = [network.route(a, b, seed) if a != b else () for a, b in ends]
        total += step.repeat * (start_up_s + _seconds_of(shares, ways, step.size, beside))
    return total


def training_step(training: Training, seconds: Sequence[float]) -> StepTime:
    """Schedule the collectives of the buckets, which take `seconds`, beside the compute of a step.

    One collective runs at a time, in the order in which the buckets become ready.
    """
    if len(seconds) != len(training.bucket_sizes):
        raise ValueError(
            f"{len(seconds)} times for {len(training.bucket_sizes)} buckets: give one for each"
        )
    total = sum(training.bucket_sizes)
    start = training.compute_s * (1 - training.backward_part)
    done, ready_bytes = 0.0, 0.0
    for size, time in zip(training.bucket_sizes, seconds, strict=True):
        ready_bytes += size
        ready = start + (training.compute_s - start) * (ready_bytes / total if total else 1)
        done = max(done, ready) + time
    exposed = max(0.0, done - training.compute_s)
    return StepTime(training.compute_s, sum(seconds), exposed)
