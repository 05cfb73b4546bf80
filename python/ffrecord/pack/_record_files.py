"""Record files of version 1 or 2: to compress them, or to convert them to version 2."""

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._ffrecord import Permutation
from ffrecord._read.key_origin import key_origin
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._tables.arrow_schema import joined_facts, with_fields, without_facts
from ffrecord._write.new_folder import MANIFEST
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead
from ffrecord.pack._cutting import Mark, parts_between
from ffrecord.pack._source import (
    CLASSES,
    WHOLE,
    Keyed,
    Part,
    Progressed,
    Source,
    SourceOptions,
    picked,
)

# Read at a time: so many records, or fewer if those before were large.
_RECORDS_MAX, _BATCH_BYTES = 1024, 16 << 20
_NO_KEY = (-1, b"")


def is_record_files(path: str) -> bool:
    """A file by its name, or a folder that has such files and no subfolders: those are classes."""
    if not _places.is_dir(path):
        return path.endswith(".ffr")
    with _places.scan(path) as entries:
        seen = [(entry.name, entry.is_dir()) for entry in entries if entry.name[0] != "."]
    return any(name.endswith(".ffr") for name, _ in seen) and not any(folder for _, folder in seen)


def _others_in(path: str) -> int:
    """Files of a folder that do not have the names of record files, and so are not opened."""
    if not _places.is_dir(path):
        return 0
    return sum(not name.endswith(".ffr") and name != MANIFEST for name in _places.names_in(path))


class RecordFiles(Source):
    """The records of one file, or of a folder's files in the order of their names.

    Columns are kept, and so are records without columns, keys and metadata.
    """

    takes_empty_keys = True
    _states_facts = True
    _is_sealed = True
    _names_are_stored = True

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Open the files; see `open_source` for arguments and errors."""
        options.allow(path, "record files", "columns", "drop", "shuffle")
        self.skipped = Counter()
        self._reader = _opened(path)
        self.skipped["files that are not *.ffr"] = _others_in(path)
        self.size_bytes = self._reader.size_bytes
        self.metadata = self._metadata()
        self.classes = _classes(self.metadata)
        logical = self._reader.logical
        own = {column.name: column.spelling for column in logical.columns}
        self._names = tuple(picked(own, options.columns, path, options.drop))
        self._gives_values = False
        self._key_hash = ""
        self.schema = logical.only(self._names or logical.names).raw.schema
        if options.columns or options.drop:
            self.metadata = with_fields(self.metadata, self._names)
        self._order: Permutation | None = None
        if options.shuffle:
            self._order = Permutation(seed=options.shuffle[0], epoch=0, count=len(self._reader))
        self.key = key_origin(self._reader).key
        if isinstance(self.key, str) and self.key not in self.schema:
            self.key = True  # The column goes, its values stay the keys.

    def give_values(self) -> None:
        """Let samples have the user's columns and values, not those that are stored."""
        self._gives_values = True

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        try:
            return self._reader.read([]).to_arrow().schema
        except ImportError:  # There is no pyarrow.
            return None

    def samples(self) -> Iterator[Progressed]:
        """Yield the records; CorruptionError if one is damaged."""
        yield from self.samples_of(Part(0, WHOLE, 0), Counter())

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return ranges of records, on average of this size."""
        count = len(self._reader)
        step = max(1, count * min(size_bytes, self.size_bytes) // max(self.size_bytes, 1))
        numbers = [*range(0, count, step), count]
        return parts_between((Mark(n, self._until(n), n) for n in numbers), 1)

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield a range of the records."""
        if part.begin == 0:
            skipped.update(self.skipped)
        end = len(self._reader) if part.end == WHOLE else part.end
        found = self._samples if self._order is None else self._shuffled
        yield from ahead(found(part.begin, end))

    def stamp(self) -> str:
        """Return the fingerprint of the records, and of their keys if these are no column."""
        if self.key is True and not self._key_hash:
            found = hashlib.sha256()
            for number in range(len(self._reader.files)):
                for index, key in self._keys_of(number):
                    found.update(b"%d %d %d " % (number, index, len(key)))
                    found.update(key)
            self._key_hash = found.hexdigest()[:32]
        return self._reader.fingerprint + self._key_hash

    def _until(self, record: int) -> int:
        """About how many bytes are before a record."""
        return self.size_bytes * record // max(len(self._reader), 1)

    def _samples(self, begin: int, end: int) -> Iterator[Progressed]:
        behind = 0
        for number, file in enumerate(self._reader.files):
            first, last = max(begin - behind, 0), min(end - behind, file.record_count)
            keys = iter(self._keys_of(number) if first < last else ())
            index, key = next(keys, _NO_KEY)
            while 0 <= index < first:
                index, key = next(keys, _NO_KEY)
            for position, sample in enumerate(
                self._records(behind + first, max(last - first, 0)), first
            ):
                done_bytes = self._until(behind + position + 1) - self._until(begin)
                if self.key is not True:
                    yield sample, done_bytes
                elif position == index:
                    yield Keyed(sample, key), done_bytes
                    index, key = next(keys, _NO_KEY)
                else:
                    yield Keyed(sample, None), done_bytes
            behind += file.record_count

    def _shuffled(self, begin: int, end: int) -> Iterator[Progressed]:
        """Records of places in the order of the seed. Keys that are no column are in memory."""
        assert self._order is not None
        keys: dict[int, bytes] = {}
        behind = 0
        for number, file in enumerate(self._reader.files):
            keys.update((behind + index, key) for index, key in self._keys_of(number))
            behind += file.record_count
        wanted = self._order.range(begin, end)
        for place, sample in enumerate(self._records(0, end - begin, wanted)):
            done_bytes = self._until(begin + place + 1) - self._until(begin)
            is_keyed = self.key is True
            yield Keyed(sample, keys.get(int(wanted[place]))) if is_keyed else sample, done_bytes

    def _records(
        self, first: int, count: int, order: npt.NDArray[np.int64] | None = None
    ) -> Iterator[dict[str, Any] | bytes]:
        """Read as many records as fill a batch, if they have the size of the last ones."""
        done, step = 0, 1
        while done < count:
            places = range(first + done, first + min(done + step, count))
            batch = self._reader.read(
                places if order is None else order[places.start : places.stop]
            )
            done += len(batch)
            names = self._names if self._gives_values else tuple(self.schema)
            for sample in batch if self._gives_values else batch.stored():
                if names:
                    yield {name: sample[name] for name in names}
                else:
                    yield bytes(sample)
            step = _next_step(len(batch), len(batch.slab))

    def _keys_of(self, file_index: int) -> list[tuple[int, bytes]]:
        """The keys of one file; kept only while it is read."""
        return self._reader._open().keys(file_index) if self.key is True else []

    def _metadata(self) -> dict[str, bytes]:
        """The metadata of the files: the result can have only one."""
        each = [self._reader.metadata(i) for i in range(len(self._reader.files))]
        first = without_facts(each[0])
        for number, other in enumerate(each):
            if without_facts(other) != first:
                raise ValueError(
                    f"{self._reader.files[number].name} has other metadata than "
                    f"{self._reader.files[0].name}: pack them separately"
                )
        return first | joined_facts(each)


def _opened(path: str) -> Reader:
    """A reader of `path` that sees everything in it.

    Raises:
        CorruptionError: a file has bytes after its last whole commit. A reader ignores them, since
            an append may be in progress; here records could be lost without notice.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the last")  # It is an error here.
        reader = open_records(_places.address_of(path))
        for file in reader.files:
            if file.format_version > 1 and file.warnings:
                raise CorruptionError(
                    f"{file.name}: {file.warnings[0]}: wait until the append is done, or make a "
                    "whole file of it with 'ffrecord repair', and pack that"
                )
    return reader


def _classes(metadata: Mapping[str, bytes]) -> tuple[str, ...]:
    """Names of labels, if that is what the metadata of that name are."""
    try:
        names = json.loads(metadata.get(CLASSES, b"[]"))
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _next_step(record_count: int, size_bytes: int) -> int:
    """As many records as fill a batch, if they have the size of the last ones."""
    wanted = _BATCH_BYTES * record_count // max(size_bytes, 1)
    return max(1, min(wanted, 2 * record_count, _RECORDS_MAX))
