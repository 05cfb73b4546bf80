"""The order of samples, computed from the format's description alone, record by record."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from order import MASK, draw, permute, permute_blocked

_MIXTURE_LANE = 1 << 32


class MixTruth:
    """A mixed stream: dealt slot by slot, from the start on, and remembered."""

    def __init__(self, parts: Sequence[Sequence[int]], weights: Sequence[int], seed: int) -> None:
        """Mix the labels of `parts`."""
        self.parts = [list(part) for part in parts]
        self.seed = seed
        self.dealt: list[tuple[int, int]] = []  # Source, and how many it had given.
        self.since = 0
        self._use(weights)

    def copy(self) -> "MixTruth":
        """Return the same stream, which changes on its own."""
        made = MixTruth(self.parts, self.weights, self.seed)
        made.dealt, made.since = list(self.dealt), self.since
        made.credit, made.taken = list(self.credit), list(self.taken)
        return made

    def change(self, weights: Sequence[int], at: int) -> None:
        """Go on from position `at` with other weights."""
        self._deal_to(at)
        del self.dealt[at:]
        self.since = at
        self._use(weights)

    def label(self, seed: int, place: int) -> int:
        """Return the label at `place` of the stream."""
        self._deal_to(place + 1)
        source, ordinal = self.dealt[place]
        part = self.parts[source]
        turn, at = divmod(ordinal, len(part))
        lane = _MIXTURE_LANE + source
        return part[permute((seed + self.seed) & MASK, turn, lane, len(part), at)]

    def _use(self, weights: Sequence[int]) -> None:
        divisor = math.gcd(*weights)
        self.weights = [weight // divisor for weight in weights]
        self.credit = [0] * len(self.weights)
        self.taken = [sum(s == i for s, _ in self.dealt) for i in range(len(self.parts))]

    def _deal_to(self, end: int) -> None:
        while len(self.dealt) < end:
            self.credit = [a + b for a, b in zip(self.credit, self.weights, strict=True)]
            source = self.credit.index(max(self.credit))
            self.credit[source] -= sum(self.weights)
            self.dealt.append((source, self.taken[source]))
            self.taken[source] += 1


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an order is: everything before it was delivered."""

    epoch: int
    position: int


@dataclasses.dataclass
class Plan:
    """What a `Sampler` promises: the order of each epoch, cut into steps, shared among ranks."""

    labels: list[int]
    how: str
    seed: int
    size: int
    is_per_rank: bool  # Whether `size` is that of each rank.
    last: str
    world: int
    mix: MixTruth | None = None

    @property
    def count(self) -> int:
        """Records of an epoch."""
        return len(self.labels)

    @property
    def global_batch(self) -> int:
        """Records of a step over all ranks."""
        return self.size * self.world if self.is_per_rank else self.size

    @property
    def weights(self) -> list[float]:
        """By record, if the order is drawn."""
        return [float((i * 7) % 4) + 0.5 * (i == 0) for i in range(self.count)]

    def index(self, epoch: int, place: int) -> int:
        """Return which of the records comes there; not of a mixture."""
        place %= self.count
        if self.how == "blocks":
            return permute_blocked(self.seed, epoch, self.count, 3, 2, place)
        if self.how == "weights":
            return draw(self.seed, epoch, self.weights, place)
        if self.how == "in order":
            return place
        return permute(self.seed, epoch, 0, self.count, place)

    def label(self, mix: MixTruth | None, epoch: int, place: int) -> int:
        """Return the label at a place of an epoch; after its end it begins again."""
        if mix is not None and self.how != "in order":
            return mix.label(self.seed, epoch * self.count + place % self.count)
        return self.labels[self.index(epoch, place)]

    def steps(self, position: int) -> int:
        """Return how many steps are left of an epoch."""
        whole, rest = divmod(self.count - position, self.global_batch)
        if self.last == "drop":
            return whole
        return whole + (rest >= (self.world if self.last == "exact" else 1))

    def refuses(self, position: int) -> bool:
        """Whether the rest of the epoch has no step for every rank."""
        return self.last == "exact" and 0 < self.count - position < self.world

    def step(self, place: Place) -> tuple[list[range], Place]:
        """Return the places of each rank's share, and where the next step begins."""
        left, size = self.count - place.position, self.global_batch
        if self.last == "exact" and left < size + self.world:
            size = left
        elif self.last == "short":
            size = max(min(left, size), self.world)
        ends = [place.position + rank * size // self.world for rank in range(self.world + 1)]
        shares = [range(a, b) for a, b in itertools.pairwise(ends)]
        after = place.position + self.global_batch
        if after < self.count and self.steps(after):
            return shares, Place(place.epoch, after)
        return shares, Place(place.epoch + 1, 0)

    def share(
        self,
        mix: MixTruth | None,
        epoch: int,
        places: range,
        is_bad: Callable[[int], bool],
        policy: str,
    ) -> list[int] | None:
        """Return the labels of one rank's share of a step; None: reading it fails."""
        at = {place: self.label(mix, epoch, place) for place in places}
        if not any(map(is_bad, at.values())):
            return list(at.values())
        if policy == "raise":
            return None

        def good(place: int) -> int:
            found = (self.label(mix, epoch, place + d) for d in range(1, self.count + 1))
            return next(label for label in found if not is_bad(label))

        if policy == "skip":
            left = [label for label in at.values() if not is_bad(label)]
            return left or [good(places[0])]
        return [good(place) if is_bad(label) else label for place, label in at.items()]
