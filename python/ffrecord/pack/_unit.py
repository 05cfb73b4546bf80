"""One unit of work: samples of its cuts, through a user's function, into files in one folder."""

import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.arrow_writing import Encoder
from ffrecord._write.writer import Writer, WriteSummary
from ffrecord.pack import _user_code
from ffrecord.pack._mapping import Function, MixedRowsError, Row, rows_of
from ffrecord.pack._seen import Seen
from ffrecord.pack._source import Chunk, InFiles, Keyed, Lacking, OneSample, Progressed

# Bytes of a value without a length, a number.
_SCALAR_BYTES = 8
_FAILURE_CHARS = 500
# Keys of samples get lost if they are no column and a function returns several rows for one.
LOST_KEYS = "keys of samples that did not become one record"

# Makes a writer of a new file at a path.
NewWriter = Callable[[Path], Writer]


class FailedSamplesError(ValueError):
    """More samples failed than are allowed."""


@dataclass
class Tally:
    """The fates of a unit's samples: `samples` = `used` + `skipped` + `failed`."""

    samples: int = 0
    used: int = 0
    """Samples that became one record or more."""
    skipped: int = 0
    """Samples for which the user's function returned nothing."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """The samples that the source leaves out, by reason."""
    files: list[dict[str, Any]] = field(default_factory=list)
    """Name and WriteSummary of each file."""

    @property
    def is_balanced(self) -> bool:
        """Whether every sample is accounted for."""
        return self.samples == self.used + self.skipped + len(self.failures)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**vars(self), "left_out": dict(self.left_out)}

    def add_file(self, name: str, file: WriteSummary) -> None:
        """Count a finished file."""
        self.files.append({"name": name, **asdict(file)})


@dataclass(frozen=True)
class Rules:
    """How samples become records."""

    function: Function | None = None
    failures_max: int = 0
    """How many samples may fail in this unit."""
    size_bytes: int = 1 << 30
    """A file ends with the record that reaches this raw size."""
    seen: Seen | None = None
    """Earlier results of the function, for some samples of the first input."""
    takes_keys: bool = False
    """Whether keys of samples are written; else the key of the file is a column, or nothing."""


class UnitWriter:
    """Writes records to files."""

    def __init__(self, path_of: Callable[[int], Path], new_writer: NewWriter, rules: Rules) -> None:
        """Write nothing yet; `path_of` gives the path of the file 0, 1, ..."""
        self.tally = Tally()
        self._path_of = path_of
        self._new_writer = new_writer
        self._rules = rules
        self._writer: Writer | None = None
        self._size_bytes = 0
        self._record_count = 0  # A record may have no bytes.
        self._encoder: Encoder | None = None
        self._gathers = bool(getattr(rules.function, "gathers", False))
        if self._gathers:
            rules.function.begin()  # type: ignore[union-attr]

    def write_all(
        self,
        samples: Iterator[Progressed],
        where: str,
        progress: Callable[[int], None],
        first: int = 0,
        input_: int = 0,
    ) -> None:
        """Write samples; `where` is their input, and `first` the number of the first in it.

        `input_` is the number of the input.

        Raises:
            FailedSamplesError: too many of them failed in the user's function.
        """
        try:
            for number, found in enumerate(samples, first):
                if not isinstance(found, tuple) or len(found) != 2:
                    raise TypeError(
                        f"samples() of {where} yields {type(found).__name__}, not pairs of a "
                        "sample and the bytes of the source behind it (0 if that is unknown)"
                    )
                sample, done_bytes = found
                if isinstance(sample, Chunk):
                    self._write_chunk(sample, input_)
                elif isinstance(sample, InFiles):
                    self._write_in_files(sample, input_)
                else:
                    self._take(sample, where, (input_, number))
                progress(done_bytes)
        except BaseException:
            if self._writer is not None:
                self._writer.discard()
            raise

    def close(self) -> Tally:
        """Write what the function has gathered, and finish the last file; return the counts."""
        try:
            if self._gathers:
                for row in self._rules.function.rest():  # type: ignore[union-attr]
                    self._write_rows([row])
        except BaseException:
            if self._writer is not None:
                self._writer.discard()
            raise
        self._end_file()
        assert self.tally.is_balanced
        return self.tally

    def note_origin(self, place: tuple[int, int], record_count: int, *, has_each: bool) -> None:
        """Called before so many records are written that were made of the sample at this place.

        With `has_each` each record was made of a sample of its own, the first of this one.
        """

    def _take(self, sample: OneSample, where: str, place: tuple[int, int]) -> None:
        self.tally.samples += 1
        number = place[1]
        function = self._rules.function
        if function is None:
            self.note_origin(place, 1, has_each=True)
            self._write(sample)
            self.tally.used += 1
            return
        try:
            rows = self._rows_of(function, sample, place)
        except MixedRowsError as error:
            raise ValueError(
                f"{where}: sample {number} failed in the function given as map: {error}; other "
                "samples are in the same rows, so it cannot be left out"
            ) from error
        except _user_code.ClosedFilesError as error:  # The file that is written is gone, too.
            raise ValueError(f"{where}: sample {number}: {error}") from error
        except Exception as error:
            self._fail(sample, where, number, error)
            return
        key = sample.key if self._rules.takes_keys and isinstance(sample, Keyed) else None
        is_one = not self._gathers and len(rows or ()) == 1
        self.note_origin(place, len(rows or ()), has_each=False)
        try:
            self._write_rows(rows or [], key if is_one else None)
        except (ValueError, TypeError) as error:  # The disk's errors are not the sample's.
            if self._gathers:
                raise  # Other samples are in these rows, too.
            self._fail(sample, where, number, error)
            return
        if rows is None:
            self.tally.skipped += 1
            return
        self.tally.used += 1
        if key is not None and not is_one:
            self.tally.left_out[LOST_KEYS] += 1

    def _rows_of(
        self, function: Function, sample: OneSample, place: tuple[int, int]
    ) -> list[Row] | None:
        seen, (input_, number) = self._rules.seen, place
        if seen is not None and input_ == 0 and (found := seen.take(number, sample)) is not None:
            return found[0]
        return rows_of(function, sample, place)

    def _write(self, sample: OneSample) -> None:
        writer = self._open()
        if isinstance(sample, Lacking):
            writer._note_nulls(set(sample.names))
            writer.write(sample.sample)
        elif isinstance(sample, Keyed):
            writer.write(sample.sample, key=sample.key if self._rules.takes_keys else None)
        else:
            writer.write(sample)
        self._count(1, _size_bytes(sample))

    def _write_chunk(self, chunk: Chunk, input_: int) -> None:
        """Write rows of a table, in as many files as their size asks for."""
        if self._encoder is None:
            self._encoder = self._open()._encoder
        assert self._encoder is not None
        done = chunk.first
        self.note_origin((input_, done), len(chunk.table), has_each=True)
        try:
            for rows in self._encoder.rows(chunk.table, done):
                bounds = reduce(np.add, (each.bounds for each in rows))
                ends = bounds[1:] - bounds[0]
                for begin, end in self._runs(ends):
                    self._open()._write_rows(rows, self._encoder.holding, done, begin, end)
                done += len(ends)
        except ValueError as error:
            raise ValueError(f"{chunk.where}: {error}") from None
        self.tally.samples += len(chunk.table)
        self.tally.used += len(chunk.table)

    def _write_in_files(self, found: InFiles, input_: int) -> None:
        """Write rows whose values are in files, in as many files as their size asks for."""
        self.note_origin((input_, found.first), found.rows.row_count, has_each=True)
        for begin, end in self._runs(np.cumsum(found.sizes_bytes)):
            writer = self._open()
            writer._note_nulls(set().union(*found.lacking[begin:end]))
            changed = writer._write_file_rows(found.rows, found.first, begin, end)
            if changed is not None and found.changed is not None:
                raise found.changed(changed)
        self.tally.samples += found.rows.row_count
        self.tally.used += found.rows.row_count

    def _runs(self, ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield runs of rows, each of which goes to one file; count it when the next is asked for.

        `ends` is what the rows have together, up to each.
        """
        begin = 0
        while begin < len(ends):
            behind = int(ends[begin - 1]) if begin else 0
            room = self._rules.size_bytes - self._size_bytes
            end = min(int(np.searchsorted(ends, behind + room)) + 1, len(ends))
            yield begin, end
            self._count(end - begin, int(ends[end - 1]) - behind)
            begin = end

    def _write_rows(self, rows: list[Row], key: bytes | None = None) -> None:
        """Write all rows of a sample, or none. A key apart from them is that of one row."""
        if not rows:
            return
        writer = self._open()
        with writer._all_or_nothing():
            for row in rows:
                if self._rules.takes_keys:
                    writer.write(row, key=key)
                else:
                    writer.write(row)
        self._count(len(rows), sum(map(_size_bytes, rows)))

    def _fail(self, sample: OneSample, where: str, number: int, error: Exception) -> None:
        named = {} if (name := _name_of(sample)) is None else {"name": name}
        said = f"{type(error).__name__}: {error}"[:_FAILURE_CHARS]
        self.tally.failures.append({"input": where, "sample": number, **named, "error": said})
        if len(self.tally.failures) > self._rules.failures_max:
            place = _place_of(error)
            raise FailedSamplesError(
                f"{where}: sample {number}{f' ({name})' if name else ''} failed in the function "
                f"given as map{place}: {said}; return None to leave a sample out, or allow "
                "failures (--max-failures)"
            ) from error

    def _open(self) -> Writer:
        if self._writer is None:
            self._writer = self._new_writer(self._path_of(len(self.tally.files)))
        return self._writer

    def _count(self, record_count: int, size_bytes: int) -> None:
        self._record_count += record_count
        self._size_bytes += size_bytes
        if self._size_bytes >= self._rules.size_bytes:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            if self._record_count:
                self.tally.add_file(os.path.basename(writer.path), writer.close())
            else:
                writer.discard()  # The rows of its only sample did not fit.
            self._size_bytes = self._record_count = 0


def _name_of(sample: OneSample) -> str | None:
    """The name of a sample for people."""
    if isinstance(sample, Keyed):
        return None if sample.key is None else sample.key.decode(errors="replace")
    name = sample.get("name") if isinstance(sample, Mapping) else None
    return name if isinstance(name, str) else None


def _place_of(error: Exception) -> str:
    """File and line where a user's function failed."""
    found = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in found if frame.filename != _user_code.__file__]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _size_bytes(value: object) -> int:
    if isinstance(value, Keyed | Lacking):
        value = value.sample
    if isinstance(value, Mapping):
        return sum(map(_size_bytes, value.values()))
    if isinstance(value, np.ndarray | memoryview):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str) else _SCALAR_BYTES
