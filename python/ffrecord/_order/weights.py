"""Drawing records with replacement, by weight; format.md, "Weighted draws"."""

import hashlib
import weakref
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ffrecord._base.shared_memory import SharedArray

Indices = npt.NDArray[np.int64]

_G = 0x9E3779B97F4A7C15
_U64 = (1 << 64) - 1
# Below, a product of the sum and a share would not have the digits to tell records apart.
_SUM_MIN = 2.0**-900
# Orders of format.md have lanes below; sources of a mixture have 2**32 and some.
_LANE = 1 << 33
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Weights:
    """The weight of each record, and draws by them: a function of seed, epoch and position.

    Holds the running sums of the weights: 8 bytes for each record, which processes of a loader
    share. A draw is a binary search in them. Immutable and thread-safe.
    """

    def __init__(self, weights: npt.ArrayLike, count: int) -> None:
        """Check the weights of `count` records; any array, or a tensor on the host.

        Raises:
            ValueError: there are more or fewer than records; one is missing, negative or no number;
                or their sum is 0, too small or too large.
            TypeError: they are no real numbers.
        """
        given = np.asarray(weights)
        if given.dtype.kind not in "buif":
            raise TypeError(f"weights are {given.dtype}; they must be real numbers")
        if given.shape != (count,):
            raise ValueError(
                f"weights have the shape {given.shape}; there must be one for each of the {count} "
                "records"
            )
        if isinstance(weights, np.ma.MaskedArray) and np.ma.is_masked(weights):
            # A number under the mask is no weight.
            index = int(np.ma.getmaskarray(weights).argmax())
            raise ValueError(f"the weight of record {index} is missing: fill it with .filled(0)")
        values = given.astype(np.float64)
        wrong = ~(values >= 0)
        if wrong.any():
            index = int(wrong.argmax())
            raise ValueError(
                f"the weight of record {index} is {given[index]}; it must be 0 or more, and a "
                f"number ({int(wrong.sum())} of {count} are not)"
            )
        with np.errstate(over="ignore"):
            sums = np.cumsum(values)
        if not np.isfinite(sums[-1]):
            raise ValueError("the weights add up to infinity: divide them by their largest")
        if not sums[-1]:
            raise ValueError("all weights are 0: there is no record to draw")
        if sums[-1] < _SUM_MIN:
            raise ValueError(
                f"the weights add up to {sums[-1]}, too little to draw by: divide them by their "
                "largest"
            )
        self._shared = SharedArray(sums.view(np.int64))
        self._last = _last(sums)
        self.token = hashlib.blake2b(sums.tobytes(), digest_size=8).hexdigest()
        """16 hex digits that differ if the weights do."""

    @staticmethod
    def of(weights: npt.ArrayLike, count: int) -> "Weights":
        """The weights, in the memory of those that are the same; raises as the class does."""
        made = Weights(weights, count)
        return _known.setdefault(made.token, made)

    @property
    def count(self) -> int:
        """How many records there are."""
        return self._sums.size

    def draw(self, seed: int, epoch: int, positions: Indices) -> Indices:
        """The records at these positions of an epoch."""
        sums = self._sums
        shares = _uniform(seed, epoch, positions)
        found = np.searchsorted(sums, shares * sums[-1], "right")
        # A product may be rounded up to the whole sum.
        drawn: Indices = np.minimum(found, self._last)
        return drawn

    @staticmethod
    def known(token: str) -> "Weights":
        """Those that this process knows by that token; else some that only say so."""
        found: Weights | None = _known.get(token)
        return _Unknown(token) if found is None else found

    @property
    def _sums(self) -> npt.NDArray[np.float64]:
        # Not kept: the memory changes when it is shared first.
        return self._shared.values.view(np.float64)

    def __repr__(self) -> str:
        return f"<ffrecord.Weights of {self.count} records>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._shared, self.token)


class _Unknown(Weights):
    """Weights that another process has."""

    def __init__(self, token: str) -> None:
        self.token = token

    @property
    def count(self) -> int:
        self._refuse()

    def draw(self, seed: int, epoch: int, positions: Indices) -> Indices:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(
            "this process does not have the weights of the sampler, by which the next record is "
            "drawn: load with ffrecord.torch.DataLoader, which gives them to its workers"
        )

    def __repr__(self) -> str:
        return f"<ffrecord.Weights {self.token} of another process>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Weights.known, (self.token,)


# By token, so that batches on their way to a worker need not carry them.
_known: "weakref.WeakValueDictionary[str, Weights]" = weakref.WeakValueDictionary()


def _attached(shared: SharedArray, token: str) -> Weights:
    if (found := _known.get(token)) is not None:
        return found
    made = Weights.__new__(Weights)
    made._shared, made.token = shared, token
    made._last = _last(made._sums)
    return _known.setdefault(token, made)


def _last(sums: npt.NDArray[np.float64]) -> int:
    """The last record that can be drawn: the first whose running sum is the whole."""
    return int(np.searchsorted(sums, sums[-1], "left"))


def _uniform(seed: int, epoch: int, positions: Indices) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each position, a multiple of 2**-53."""
    key = _mix(_mix(_mix(seed + _G) ^ (epoch + _G & _U64)) ^ (_LANE + _G & _U64))
    places = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_G) + np.uint64(key)
    places ^= places >> np.uint64(30)
    places *= np.uint64(_FIRST)
    places ^= places >> np.uint64(27)
    places *= np.uint64(_SECOND)
    places ^= places >> np.uint64(31)
    return (places >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: int) -> int:
    z &= _U64
    z = (z ^ z >> 30) * _FIRST & _U64
    z = (z ^ z >> 27) * _SECOND & _U64
    return z ^ z >> 31
