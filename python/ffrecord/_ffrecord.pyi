"""The face of the extension, by hand; stubtest compares the two."""

from typing import final

import numpy as np
import numpy.typing as npt

@final
class Permutation:
    """Order 1 as a function; lane 0 is the order of an epoch."""

    def __init__(self, *, seed: int, epoch: int, lane: int = 0, count: int) -> None: ...
    def __len__(self) -> int: ...
    def range(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The indices at positions [begin, end)."""
    def position_of(self, index: int) -> int:
        """The inverse."""

@final
class BlockedPermutation:
    """The blocked order of an epoch."""

    def __init__(self, *, seed: int, epoch: int, count: int, block: int, window: int) -> None: ...
    def __len__(self) -> int: ...
    def range(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """The indices at positions [begin, end)."""
