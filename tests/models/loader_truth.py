"""The order of samples, computed from the format's description alone, record by record."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

_U64 = (1 << 64) - 1
_G = 0x9E3779B97F4A7C15
_MIXTURE_LANE, _DRAWING_LANE = 1 << 32, 1 << 33


def _mixed(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _U64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _U64
    return z ^ z >> 31


def _key(seed: int, epoch: int, lane: int) -> int:
    epoch_key = _mixed(_mixed((seed + _G) & _U64) ^ ((epoch + _G) & _U64))
    return _mixed(epoch_key ^ ((lane + _G) & _U64))


@functools.lru_cache(maxsize=1 << 16)
def permuted(seed: int, epoch: int, lane: int, count: int, place: int) -> int:
    """Return the record at `place` of Order 1."""
    key = _key(seed, epoch, lane)
    keys = [_mixed((key + (r + 1) * _G) & _U64) for r in range(12)]
    bits = max(8, (count - 1).bit_length())
    low = bits // 2
    high = bits - low
    while True:
        left, right = place >> low, place & ((1 << low) - 1)
        for r in range(0, 12, 2):
            left ^= _mixed(right ^ keys[r]) >> (64 - high)
            right ^= _mixed(left ^ keys[r + 1]) >> (64 - low)
        place = left << low | right
        if place < count:
            return place


def in_blocks(seed: int, epoch: int, block: int, window: int, count: int, place: int) -> int:
    """Return the record at `place` of the blocked order."""
    blocks = -(-count // block)
    tail = count - (blocks - 1) * block
    span = block * window
    number = place // span
    size = min(span, count - number * span)
    at = number * span + permuted(seed, epoch, 2 + number, size, place - number * span)
    last = next(q for q in range(blocks) if permuted(seed, epoch, 1, blocks, q) == blocks - 1)
    if at >= last * block + tail:
        at += block - tail
    return permuted(seed, epoch, 1, blocks, at // block) * block + at % block


def drawn(seed: int, epoch: int, weights: Sequence[float], place: int) -> int:
    """Return the record that is drawn for `place`."""
    sums, total = [], 0.0
    for weight in weights:
        total += weight
        sums.append(total)
    key = _key(seed, epoch, _DRAWING_LANE)
    u = (_mixed((key + (place + 1) * _G) & _U64) >> 11) / 2.0**53
    above = [i for i, each in enumerate(sums) if each > u * total]
    return above[0] if above else sums.index(total)


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
        return part[permuted((seed + self.seed) & _U64, turn, lane, len(part), at)]

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
            return in_blocks(self.seed, epoch, 3, 2, self.count, place)
        if self.how == "weights":
            return drawn(self.seed, epoch, self.weights, place)
        if self.how == "in order":
            return place
        return permuted(self.seed, epoch, 0, self.count, place)

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
