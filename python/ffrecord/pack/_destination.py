"""Writing samples to one file, or to a folder of parts, all or nothing."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ffrecord._arrow_schema import types_in
from ffrecord._writer import Writer, WriteSummary
from ffrecord.pack._new_folder import check_vacant, destination_path, new_folder
from ffrecord.pack._source import CLASSES, Facts, Keyed, Progressed, Sample, Source

# Of what has no length, a number.
_SCALAR_BYTES = 8

# Of a dictionary, the least and the most (format.md).
DICTIONARY_BYTES = (1024, 16 << 20)

# Of the number in a part's name; more if there are more parts.
_DIGITS = 5

Progress = Callable[[int], None]
# Of a path, and whether to replace what is there.
NewWriter = Callable[[Path, bool], Writer]


@dataclass
class PackSummary:
    """Summary of a packing; sizes in bytes, `raw` means before compression."""

    record_count: int = 0
    raw_size_bytes: int = 0
    file_size_bytes: int = 0
    file_count: int = 0
    classes: tuple[str, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)

    def add(self, file: WriteSummary) -> None:
        """Count a finished file."""
        self.record_count += file.record_count
        self.raw_size_bytes += file.raw_size_bytes
        self.file_size_bytes += file.file_size_bytes
        self.file_count += 1


def pack(
    source: Source,
    destination: str | os.PathLike[str],
    *,
    compress: bool = False,
    dictionary_bytes: int = 0,
    part_size_bytes: int = 1 << 30,
    replace: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Write all samples of `source`; the result appears only when it is complete.

    Args:
        source: of `open_source`, or any object with the attributes of `Source`.
        destination: `*.ffr` is one file; another name is a folder of `PART_00000.ffr` and so on.
        compress: compress each record with zstd.
        dictionary_bytes: size of a dictionary to train for each file, for small, similar records;
            0 for none. Implies compression.
        part_size_bytes: in a folder, a part ends with the record that reaches this raw size.
        replace: replace an existing file, or a folder with nothing but `*.ffr` in it.
        key: the column, utf8 or bytes, by which samples are found (`Reader.find`); without it the
            source decides: names of files, and the keys that records of record files had.
        progress: called with the number of source bytes that were processed.

    Raises:
        ConflictError: the destination exists and may not be replaced.
        ValueError: there is nothing to pack, or the source is invalid.
        TypeError: `source` has no schema, no samples, or yields something else than pairs.
        CorruptionError: the source is damaged.
        OSError: the source cannot be read, or the destination cannot be written.
    """
    least, most = DICTIONARY_BYTES
    if dictionary_bytes and not least <= dictionary_bytes <= most:
        raise ValueError(f"a dictionary has {least} to {most} bytes, not {dictionary_bytes}")
    if part_size_bytes < 1:
        raise ValueError(f"a part has at least one byte, not {part_size_bytes}")
    path = destination_path(destination)
    check_vacant(path, replace)
    facts = Facts(source)
    summary = PackSummary(classes=facts.classes)
    samples = _observed(source, progress, None if key is None else _without_key)
    compress = compress or dictionary_bytes > 0
    metadata = {**types_in(facts.types), **facts.metadata}
    if facts.classes and CLASSES not in metadata:
        metadata[CLASSES] = json.dumps(facts.classes).encode()

    def new_writer(path: Path, replace: bool) -> Writer:
        writer = Writer(
            path,
            facts.schema,
            compress="zstd" if compress else None,
            replace=replace,
            dictionary=dictionary_bytes or None,
            key=key or facts.key,
            metadata=metadata,
        )
        if facts.takes_empty_keys and key is None:
            writer._allow_empty_keys()
        return writer

    if path.suffix == ".ffr":
        _write_file(samples, new_writer, path, replace, summary)
    else:
        with new_folder(path, replace) as folder:
            _write_parts(samples, new_writer, folder, part_size_bytes, summary)
    summary.skipped = {what: count for what, count in (facts.skipped or {}).items() if count}
    return summary


def _observed(
    source: Source, progress: Progress | None, changed: Callable[[Sample], Sample] | None
) -> Iterator[Progressed]:
    empty = True
    for found in source.samples():
        empty = False
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"samples() of {source!r} yields {type(found).__name__}, not pairs of a sample and "
                "the bytes of the source that are behind it (0 if that is unknown)"
            )
        sample, done_bytes = found
        yield sample if changed is None else changed(sample), done_bytes
        if progress is not None:
            progress(done_bytes)
    if empty:
        raise ValueError("the source has no samples: there is nothing to pack")


def _without_key(sample: Sample) -> Sample:
    """Keys for a file whose key is a column."""
    return sample.sample if isinstance(sample, Keyed) else sample


def _write(writer: Writer, sample: Sample) -> None:
    if isinstance(sample, Keyed):
        writer.write(sample.sample, key=sample.key)
    else:
        writer.write(sample)


def _write_file(
    samples: Iterator[Progressed],
    new_writer: NewWriter,
    path: Path,
    replace: bool,
    summary: PackSummary,
) -> None:
    with new_writer(path, replace) as writer:
        for sample, _ in samples:
            _write(writer, sample)
        summary.add(writer.close())


def _write_parts(
    samples: Iterator[Progressed],
    new_writer: NewWriter,
    folder: Path,
    part_size_bytes: int,
    summary: PackSummary,
) -> None:
    item = next(samples, None)
    while item is not None:
        path = folder / _part(summary.file_count, _DIGITS)
        size_bytes = 0
        with new_writer(path, False) as writer:
            while item is not None and size_bytes < part_size_bytes:
                _write(writer, item[0])
                size_bytes += _size_bytes(item[0])
                item = next(samples, None)
            summary.add(writer.close())
    _keep_order(folder, summary.file_count)


def _keep_order(folder: Path, file_count: int) -> None:
    """Readers sort names as text, so all numbers must have the same number of digits."""
    digits = len(str(file_count - 1))
    for number in range(10**_DIGITS if digits > _DIGITS else 0):
        os.rename(folder / _part(number, _DIGITS), folder / _part(number, digits))


def _part(number: int, digits: int) -> str:
    return f"PART_{number:0{digits}}.ffr"


def _size_bytes(value: object) -> int:
    if isinstance(value, Keyed):
        value = value.sample
    if isinstance(value, Mapping):
        return sum(map(_size_bytes, value.values()))
    if isinstance(value, np.ndarray | memoryview):
        return value.nbytes
    return len(value) if isinstance(value, bytes | str) else _SCALAR_BYTES
