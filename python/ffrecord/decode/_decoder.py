"""The interface of decoders."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord._base.stage_times import Stages
from ffrecord._order.epoch_order import Indices
from ffrecord._tables.schema import Bytes, Values


class Field(NamedTuple):
    """The bytes of one column: value i is `slab[starts[i] : starts[i] + sizes[i]]`."""

    slab: Bytes
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]
    """Not 0 where there is nothing to decode."""
    seed: int
    epoch: int
    positions: Indices
    """With seed and epoch, what chance depends on: places of the stream if a `Sampler` gave the
    indices, else the indices."""


class Native(NamedTuple):
    """A decoder that threads of the library run."""

    inner: _ffrecord.NativeDecoder
    values: Callable[[Bytes, npt.NDArray[np.int64]], Values]
    """Makes the values of a batch from one block, and from the places of values in it."""


class Decoder(ABC):
    """Makes values from the bytes of a column, a batch at a time. Immutable, hence thread-safe."""

    @abstractmethod
    def decode(self, field: Field) -> tuple[Values, Mapping[int, str]]:
        """Return the value of each row; any value where the status is not 0.

        Also returns, by row, why a value cannot be decoded: the words after "column 'a'".
        """

    def native(self) -> Native | None:
        """The same decoder for threads that run no Python, if there is one."""
        return None


Decode = Decoder | Mapping[str, Decoder]


@dataclass(frozen=True)
class Timed:
    """The decoders of the selected columns; their time is counted to the stage `decode`."""

    inner: Decode
    stages: Stages
    columns: tuple[str, ...] | None
