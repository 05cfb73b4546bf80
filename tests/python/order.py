"""The orders of format.md in plain Python: the reference for the binding, and for the models."""

import bisect
import functools
import itertools
from collections.abc import Sequence

G = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    """The finaliser of splitmix64."""
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31


def key_of(seed: int, epoch: int, lane: int) -> int:
    """The key of a lane of an epoch."""
    key = mix((seed + G) & MASK) ^ ((epoch + G) & MASK)
    return mix(mix(key) ^ ((lane + G) & MASK))


@functools.lru_cache(maxsize=1 << 16)
def permute(seed: int, epoch: int, lane: int, count: int, position: int) -> int:
    """The index at `position`."""
    key = key_of(seed, epoch, lane)
    keys = [mix((key + (r + 1) * G) & MASK) for r in range(12)]
    bits = max(8, (count - 1).bit_length())
    low = bits // 2
    high = bits - low
    while True:
        left, right = position >> low, position & ((1 << low) - 1)
        for r in range(0, 12, 2):
            left ^= mix(right ^ keys[r]) >> (64 - high)
            right ^= mix(left ^ keys[r + 1]) >> (64 - low)
        position = left << low | right
        if position < count:
            return position


def permute_blocked(
    seed: int, epoch: int, count: int, block: int, window: int, position: int
) -> int:
    """The index at `position` of the blocked order."""
    span = block * window
    blocks = -(-count // block)
    tail = count - (blocks - 1) * block
    number = position // span
    size = min(span, count - number * span)
    t = number * span + permute(seed, epoch, 2 + number, size, position - number * span)
    last = next(p for p in range(blocks) if permute(seed, epoch, 1, blocks, p) == blocks - 1)
    if t >= last * block + tail:
        t += block - tail
    return permute(seed, epoch, 1, blocks, t // block) * block + t % block


def draw(seed: int, epoch: int, weights: Sequence[float], position: int) -> int:
    """The index that is drawn by weight for `position`."""
    share = (mix((key_of(seed, epoch, 1 << 33) + (position + 1) * G) & MASK) >> 11) / 2**53
    sums = list(itertools.accumulate(map(float, weights)))
    return min(bisect.bisect_right(sums, share * sums[-1]), bisect.bisect_left(sums, sums[-1]))
