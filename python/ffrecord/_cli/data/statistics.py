"""Sizes, compression, distributions and damage of records, in one pass and bounded memory."""

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord import Batch, Reader
from ffrecord._cli.data.values import numbers_of
from ffrecord._cli.data.words import named_types
from ffrecord._tables.schema import Column

# A column with more different values than that has no table of them.
_VALUES_MAX = 1000
_DAMAGED_LISTED_MAX = 100
_SIZE_CLASSES = 64


class Spread:
    """Count, least, most, mean and deviation of numbers that come in pieces."""

    def __init__(self) -> None:
        """No numbers yet."""
        self.count = 0
        self.nan_count = 0
        self.infinite_count = 0
        self.least: float | int | None = None
        self.most: float | int | None = None
        self._mean = 0.0
        self._squares = 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Count more of them; those that are not finite are counted apart."""
        if numbers.dtype.kind == "f":
            self.nan_count += int(np.isnan(numbers).sum())
            self.infinite_count += int(np.isinf(numbers).sum())
            numbers = numbers[np.isfinite(numbers)]
        if not numbers.size:
            return
        low, high = numbers.min().item(), numbers.max().item()
        self.least = low if self.least is None else min(self.least, low)
        self.most = high if self.most is None else max(self.most, high)
        # Joins two parts, by Chan, Golub and LeVeque: no sum of squares that cancels.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(numbers.mean(dtype=np.float64))
            squares = float(((numbers.astype(np.float64) - mean) ** 2).sum())
        both, apart = self.count + numbers.size, mean - self._mean
        self._squares += squares + apart * apart * self.count * numbers.size / both
        self._mean += apart * numbers.size / both
        self.count = both

    def facts(self) -> dict[str, Any]:
        """The known facts; null where no number is known."""
        deviation = math.sqrt(self._squares / self.count) if self.count else None
        facts = {
            "count": self.count,
            "min": self.least,
            "mean": self._mean if self.count else None,
            "max": self.most,
            "std": deviation,
        }
        if self.nan_count or self.infinite_count:
            facts |= {"nan_count": self.nan_count, "infinite_count": self.infinite_count}
        return {
            name: None if isinstance(v, float) and not math.isfinite(v) else v
            for name, v in facts.items()
        }


class _Values:
    """How often each value occurs, until there are too many different ones."""

    def __init__(self) -> None:
        self.counts: Counter[Any] | None = Counter()

    def add(self, values: npt.NDArray[Any]) -> None:
        if self.counts is None:
            return
        found, times = np.unique(values, return_counts=True)
        if found.size <= _VALUES_MAX:
            self.counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
        if found.size > _VALUES_MAX or len(self.counts) > _VALUES_MAX:
            self.counts = None

    def facts(self) -> list[list[Any]] | None:
        if self.counts is None:
            return None
        return [[value, count] for value, count in sorted(self.counts.items())]


class ColumnStatistics:
    """The statistics of one column: of its numbers, or of the sizes of its bytes or text."""

    def __init__(self, column: Column, named: str | None) -> None:
        """Nothing seen yet; `named` is its type of Arrow, if its values are no numbers by that."""
        self.column = column
        self.named = named
        self.null_count = 0
        self.spread = Spread()
        self.values = _Values()

    def add(self, batch: Batch) -> None:
        """Count the records of a batch; all of them are good."""
        name, kind = self.column.name, self.column.kind
        missing = batch.missing(name)
        there = slice(None) if missing is None else ~missing
        self.null_count += 0 if missing is None else int(missing.sum())
        if kind.type == "list":
            self.spread.add(np.array([len(one) for one in batch[name] if one is not None]))
        if kind.fields:
            return
        if kind.is_text:
            self.spread.add(batch.field(name)[2][there])
            return
        if self.named is not None:
            return
        numbers = numbers_of(np.ma.getdata(batch[name])[there], kind.column(name))
        self.spread.add(numbers)
        if self._has_values:
            self.values.add(numbers)

    @property
    def _has_values(self) -> bool:
        """Whether it is one integer, or boolean, of which there may be a table."""
        column = self.column.kind.column("")
        if column.dtype is None or column.shape or column.type == "bf16":
            return False
        return column.dtype.kind != "f"

    def facts(self) -> dict[str, Any]:
        """For JSON: `values` is null if there are more than a thousand.

        Bytes and text have sizes, lists lengths; a column with nulls has their count.
        """
        kind = self.column.kind
        facts: dict[str, Any] = {
            "name": self.column.name,
            "type": self.named or self.column.spelling,
        }
        if kind.nullable:
            facts["null_count"] = self.null_count
        if kind.is_text:
            return facts | {"size_bytes": self.spread.facts()}
        if kind.type == "list":
            return facts | {"length": self.spread.facts()}
        if kind.fields or self.named is not None:
            return facts
        facts |= self.spread.facts()
        if self._has_values:
            facts["values"] = self.values.facts()
        return facts


class Statistics:
    """The statistics of all records that were seen."""

    def __init__(self, reader: Reader) -> None:
        """Nothing seen yet."""
        self._reader = reader
        self.sizes = Spread()
        self.size_classes = np.zeros(_SIZE_CLASSES, np.int64)
        """By the power of two that a size is below."""
        self.raw_bytes = 0
        """The bytes of all good records that were seen, before compression."""
        names = {name: str(kind) for name, kind in named_types(reader.read([])).items()}
        self.columns = [ColumnStatistics(each, names.get(each.name)) for each in reader.columns]
        self.damaged: dict[int, str] = {}
        self.damaged_count = 0
        self.seen = 0

    def add(self, batch: Batch) -> None:
        """Count a batch that was read with damaged records kept."""
        self.seen += len(batch)
        bad = np.flatnonzero(batch.status)
        self.damaged_count += bad.size
        for row in bad[: max(0, _DAMAGED_LISTED_MAX - len(self.damaged))].tolist():
            index = int(batch.indices[row])
            self.damaged[index] = self._reader._describe(index, int(batch.status[row]))
        good = batch.select(np.flatnonzero(batch.status == 0)) if bad.size else batch
        self.sizes.add(good.sizes)
        self.raw_bytes += int(good.sizes.sum())
        classes = np.frexp(good.sizes.astype(np.float64))[1]
        self.size_classes += np.bincount(classes, minlength=_SIZE_CLASSES)[:_SIZE_CLASSES]
        for column in self.columns:
            column.add(good)

    def size_histogram(self) -> list[tuple[int, int, int]]:
        """Least size, most size, and how many records; from the smallest class to the largest."""
        present = np.flatnonzero(self.size_classes)
        if not present.size:
            return []
        return [
            (1 << power >> 1, (1 << power) - 1, int(self.size_classes[power]))
            for power in range(int(present[0]), int(present[-1]) + 1)
        ]

    def facts(self) -> dict[str, Any]:
        """Everything, for JSON."""
        reader = self._reader
        stored = reader.size_bytes
        whole = self.seen == len(reader) and self.damaged_count == 0
        return {
            "record_count": len(reader),
            "file_count": len(reader.files),
            "file_size_bytes": stored,
            "seen_count": self.seen,
            "damaged_count": self.damaged_count,
            "damaged": [{"index": i, "problem": what} for i, what in self.damaged.items()],
            "size_bytes": self.sizes.facts(),
            "size_histogram": [list(bar) for bar in self.size_histogram()],
            "raw_size_bytes": self.raw_bytes if whole else None,
            "compression": round(self.raw_bytes / stored, 4) if whole and stored else None,
            "columns": [column.facts() for column in self.columns],
        }
