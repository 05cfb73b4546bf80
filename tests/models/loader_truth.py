"""The order of samples, computed from the format's description alone, record by record."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from order import MASK, draw, permute, permute_blocked

_MIXTURE_LANE = 1 << 32


@dataclasses.dataclass(frozen=True)
class Change:
    """Weights that apply from a position on."""

    weights: list[int]
    since: int
    slot: int
    behind: list[int]  # How far each source was behind its share, in 65536ths of a record.


class MixTruth:
    """A mixed stream: dealt slot by slot, from the start on, and remembered."""

    def __init__(self, parts: Sequence[Sequence[int]], weights: Sequence[int], seed: int) -> None:
        """Mix the labels of `parts`."""
        self.parts = [list(part) for part in parts]
        self.seed = seed
        self.dealt: list[tuple[int, int]] = []  # Source, and how many it had given.
        self.changes = [Change(_reduced(weights), 0, 0, [0] * len(self.parts))]
        self._use(0)

    def copy(self) -> "MixTruth":
        """Return the same stream, which changes on its own."""
        made = MixTruth(self.parts, self.weights, self.seed)
        made.dealt, made.changes = list(self.dealt), list(self.changes)
        made.credit, made.taken = list(self.credit), list(self.taken)
        return made

    @property
    def weights(self) -> list[int]:
        """Return those that apply last."""
        return self.changes[-1].weights

    @property
    def since(self) -> int:
        """Return the position from which these apply."""
        return self.changes[-1].since

    def change(self, weights: Sequence[int], at: int) -> None:
        """Go on from position `at` with other weights, at the slot that fits the shares so far."""
        self._deal_to(at)
        del self.dealt[at:]
        while self.since > at:
            self.changes.pop()
        last, reduced = self.changes[-1], _reduced(weights)
        if reduced != last.weights:
            behind = self._behind(last, at)
            if last.since == at:
                self.changes.pop()
            self.changes.append(Change(reduced, at, _slot_like(reduced, behind), behind))
        self._use(self.changes[-1].slot + at - self.since)

    def _behind(self, last: Change, at: int) -> list[int]:
        given = [source for source, _ in self.dealt[last.since : at]]
        shares = (Fraction((at - last.since) * w, sum(last.weights)) for w in last.weights)
        grown = (math.floor(share * 65536 + Fraction(1, 2)) for share in shares)
        both = enumerate(zip(last.behind, grown, strict=True))
        return [late + more - 65536 * given.count(source) for source, (late, more) in both]

    def label(self, seed: int, place: int) -> int:
        """Return the label at `place` of the stream."""
        self._deal_to(place + 1)
        source, ordinal = self.dealt[place]
        part = self.parts[source]
        turn, at = divmod(ordinal, len(part))
        lane = _MIXTURE_LANE + source
        return part[permute((seed + self.seed) & MASK, turn, lane, len(part), at)]

    def _use(self, slot: int) -> None:
        self.credit = [0] * len(self.weights)
        for _ in range(slot % sum(self.weights)):
            _deal(self.weights, self.credit)
        self.taken = [sum(s == i for s, _ in self.dealt) for i in range(len(self.parts))]

    def _deal_to(self, end: int) -> None:
        while len(self.dealt) < end:
            source = _deal(self.weights, self.credit)
            self.dealt.append((source, self.taken[source]))
            self.taken[source] += 1


def _reduced(weights: Sequence[int]) -> list[int]:
    divisor = math.gcd(*weights)
    return [weight // divisor for weight in weights]


def _deal(weights: list[int], credit: list[int]) -> int:
    credit[:] = [a + b for a, b in zip(credit, weights, strict=True)]
    source = credit.index(max(credit))
    credit[source] -= sum(weights)
    return source


def _slot_like(weights: list[int], behind: list[int]) -> int:
    credit, apart = [0] * len(weights), []
    for _ in range(sum(weights)):
        pairs = zip(behind, credit, strict=True)
        apart.append(sum((late - 65536 * at // sum(weights)) ** 2 for late, at in pairs))
        _deal(weights, credit)
    return apart.index(min(apart))


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
