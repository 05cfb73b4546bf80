"""Record files as a map-style dataset."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from torch.utils import data

from ffrecord.batch import Batch, Sample
from ffrecord.locations import Where
from ffrecord.reader import Reader

OnCorrupt = Literal["raise", "skip", "replace"]


class Dataset(data.Dataset[Any]):
    """Samples by index, for torch's own DataLoader and for ours.

    A loader that knows `__getitems__` (torch does) reads each batch in one submission. Nothing is
    opened before the first use; a pickle holds the arguments only, so that workers start at once
    under any start method.
    """

    def __init__(
        self,
        where: Where | Reader,
        transform: Callable[[Sample], Any] | None = None,
        columns: Iterable[str] | None = None,
        on_corrupt: OnCorrupt = "raise",
    ) -> None:
        """Remember what to read.

        Args:
            where: as for `ffrecord.open`; or a `Reader`, for its options.
            transform: what becomes of each sample, in the worker.
            columns: those that are needed; all by default.
            on_corrupt: what becomes of a record that cannot be read: "raise"; "skip" shortens the
                batch; "replace" takes the next good one by index. `stats` counts both.
        """
        if on_corrupt not in ("raise", "skip", "replace"):
            raise ValueError(f"on_corrupt is {on_corrupt!r}; it can be raise, skip, replace")
        self.reader = where if isinstance(where, Reader) else Reader(where)
        self.transform = transform
        self.columns = None if columns is None else tuple(columns)
        self.on_corrupt: OnCorrupt = on_corrupt

    @property
    def fingerprint(self) -> str:
        """Changes if any record, or the order of records, changes."""
        return self.reader.fingerprint

    def stats(self) -> dict[str, Any]:
        """What the reader did in this process; see `Reader.stats`."""
        return self.reader.stats()

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - as transform makes it
        # There is nothing to shorten here: a record that would be skipped is an error.
        policy = "raise" if self.on_corrupt == "skip" else self.on_corrupt
        sample = self._in_sight(self.reader.read([index], on_corrupt=policy))[0]
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> Batch | list[Any]:
        """The samples of one batch: a `Batch`, or a list of what `transform` made of each."""
        batch = self._in_sight(self.reader.read(indices, on_corrupt=self.on_corrupt))
        return batch if self.transform is None else [self.transform(sample) for sample in batch]

    def __repr__(self) -> str:
        return f"<ffrecord.torch.Dataset over {self.reader!r}>"

    def _in_sight(self, batch: Batch) -> Batch:
        return batch if self.columns is None else batch.only(self.columns)
