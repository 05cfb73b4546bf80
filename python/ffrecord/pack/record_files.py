"""Record files, of the first version or the second: to compress them, or to bring them to it."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping

import ffrecord
from ffrecord.pack.ahead import ahead
from ffrecord.pack.source import Progressed, SourceOptions, picked

# Read at a time: so many records, or fewer if those before were large.
_RECORDS_MAX, _BATCH_BYTES = 1024, 16 << 20


def is_record_files(path: str) -> bool:
    """A file by its name, or a folder that has such files and no subfolders: those are classes."""
    if not os.path.isdir(path):
        return path.endswith(".ffr")
    with os.scandir(path) as entries:
        seen = [(entry.name, entry.is_dir()) for entry in entries if entry.name[0] != "."]
    return any(name.endswith(".ffr") for name, _ in seen) and not any(folder for _, folder in seen)


class RecordFiles:
    """The records of one file, or of a folder's files in the order of their names.

    Columns stay as they are, and so do records without any.
    """

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Open the files; see `open_source` for arguments and errors."""
        options.allow(path, "record files", "columns")
        self.classes: tuple[str, ...] = ()
        self.skipped: Counter[str] = Counter()
        self._reader = ffrecord.open(path)
        self.size_bytes = self._reader.size_bytes
        own = {column.name: column.spelling for column in self._reader.columns}
        self.schema: Mapping[str, str] = picked(own, options.columns, path)
        self.key: str | None = self._key()

    def samples(self) -> Iterator[Progressed]:
        """Yield the records; CorruptionError if one is damaged."""
        yield from ahead(self._samples())

    def _samples(self) -> Iterator[Progressed]:
        total, done, step = len(self._reader), 0, 1
        while done < total:
            batch = self._reader.read(range(done, min(done + step, total)))
            done += len(batch)
            done_bytes = self.size_bytes * done // total
            for sample in batch:
                if self.schema:
                    yield {name: sample[name] for name in self.schema}, done_bytes
                else:
                    yield bytes(sample), done_bytes
            step = _next_step(len(batch), len(batch.slab))

    def _key(self) -> str | None:
        """The column whose value finds the first record: files do not say which one it is."""
        if not len(self._reader):
            return None
        first = self._reader[0]
        for name, kind in self.schema.items():
            if kind not in ("utf8", "bytes"):
                continue
            value = first[name] if kind == "utf8" else bytes(first[name])
            if value and self._reader.find(value) == 0:
                return name
        return None


def _next_step(record_count: int, size_bytes: int) -> int:
    """As many records as fill a batch, if they are like the last ones."""
    wanted = _BATCH_BYTES * record_count // max(size_bytes, 1)
    return max(1, min(wanted, 2 * record_count, _RECORDS_MAX))
