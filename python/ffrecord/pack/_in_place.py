"""Indexes over files of other kinds, by which their samples are read where they are."""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffrecord import _ffrecord
from ffrecord._read.locations import INDEX_SUFFIX
from ffrecord._tables.arrow_schema import nulls_in
from ffrecord._tables.schema import Column, columns_of, parse
from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.pack._beside import is_about_data
from ffrecord.pack._in_place_kinds import Indexable, indexables
from ffrecord.pack._mds import is_mds

# Entries that are looked at together.
_AT_ONCE = 1 << 16
# Records by which a file shows that it is the one of an index.
_LOOKS = 16
# The description of a file that no other file describes.
_NOTHING = (0, 0, 0, 0)
# Errors of a reader for an index that does not fit its file, or is none.
_STALE = (ConflictError, CorruptionError, ValueError, FileNotFoundError)


@dataclass(frozen=True)
class IndexSummary:
    """The result of `index`."""

    indexed: tuple[str, ...]
    """The files that have a new index."""
    unchanged: tuple[str, ...]
    """Those whose index was there, and fits."""
    left_out: tuple[str, ...]
    """Files of the folders that are no data, but about it."""
    record_count: int
    """The records of all files."""
    index_bytes: int
    """The size of all indexes."""


def index(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    index_dir: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> IndexSummary:
    """Make an index for each file of `source`, by which `ffrecord.open` reads it in place.

    The files stay as they are; the index of `FILE` is `FILE.ffindex`. Files whose index fits are
    left out, so after shards were added the same call indexes only those.

    Args:
        source: a plain tar, TFRecord file, JSON lines file or Megatron's `.bin`, with its `.idx`
            beside it; a folder or glob of these, or a list; or a folder of uncompressed MDS shards.
        index_dir: where to put the indexes, for sources that cannot be written beside. Open the
            indexes then, or this folder.
        progress: called now and then with the bytes that are done, and all.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file cannot be read in place; the error names the file and what helps.
        CorruptionError: a file is damaged or truncated.
        ConflictError: a file changed while it was indexed, or the index of another one of the same
            name is in `index_dir`.
    """
    left_out: list[str] = []
    files = list(_files_of(source, left_out))
    paths = [_index_of(file.path, index_dir) for file in files]
    if twice := [path for path, times in Counter(paths).items() if times > 1]:
        raise ValueError(
            f"{twice[0]} would be the index of several files: give each folder its own --index-dir"
        )
    if index_dir is not None:
        os.makedirs(index_dir, exist_ok=True)
    total, done = sum(os.stat(file.path).st_size for file in files), 0
    new, old = [], []
    first: _First | None = None
    count = size = 0
    for file, path in zip(files, paths, strict=True):
        reader = _fitting(path, file)
        if reader is not None and (first is None or _is_like(reader, file, first)):
            found = len(reader)
            old.append(file.path)
        else:
            reader = None
            found = _write(file, path, like=first.file if first else None)
            new.append(file.path)
        if first is None:
            schema = parse(file.shape(None).schema) if reader is None else reader.schema
            first = _First(file, columns_of(schema))
        count, size = count + found, size + os.stat(path).st_size
        done += os.stat(file.path).st_size
        if progress is not None:
            progress(done, total)
    return IndexSummary(tuple(new), tuple(old), tuple(left_out), count, size)


def _files_of(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], left_out: list[str]
) -> Iterator[Indexable]:
    given = [source] if isinstance(source, str | os.PathLike) else source
    names = [os.path.join(os.getcwd(), os.fspath(name)) for name in given]
    if not names:
        raise ValueError("nothing to index: the list of files is empty")
    for name in names:
        if os.path.isdir(name) and not is_mds(name):
            for each in _in_folder(name, left_out):
                yield from indexables(each)
        elif os.path.lexists(name) or not glob.has_magic(name):
            yield from indexables(name)
        else:
            for each in _matches(name):
                yield from indexables(each)


def _in_folder(folder: str, left_out: list[str]) -> list[str]:
    with os.scandir(folder) as entries:
        files = sorted(each.path for each in entries if each.is_file() and _may_be(each.path))
    found = [path for path in files if not is_about_data(path)]
    left_out += [path for path in files if is_about_data(path)]
    if not found:
        raise FileNotFoundError(f"{folder} has no files to index")
    return found


def _matches(pattern: str) -> list[str]:
    if found := sorted(filter(_may_be, glob.glob(pattern, recursive=True))):
        return found
    raise FileNotFoundError(f"no file matches {pattern}")


def _may_be(name: str) -> bool:
    """Whether a file of a folder is not hidden, an index, or an index of Megatron."""
    base = os.path.basename(name)
    if base.startswith(".") or base.endswith((INDEX_SUFFIX, ".ffr")):
        return False
    stem, suffix = os.path.splitext(name)
    return suffix != ".idx" or not os.path.exists(stem + ".bin")


def _index_of(path: str, index_dir: str | os.PathLike[str] | None) -> str:
    if index_dir is None:
        return path + INDEX_SUFFIX
    return os.path.join(os.fspath(index_dir), os.path.basename(path) + INDEX_SUFFIX)


class _First(NamedTuple):
    """The first of the files, and the columns of its index."""

    file: Indexable
    columns: tuple[Column, ...]


def _is_like(reader: _ffrecord.RecordReader, file: Indexable, first: _First) -> bool:
    """Whether an index that was made another time has the columns that a new one would have."""
    columns = columns_of(reader.schema)
    return columns in (first.columns, columns_of(parse(file.shape(first.file).schema)))


def _fitting(path: str, file: Indexable) -> _ffrecord.RecordReader | None:
    """An index that fits the source; None if there is none."""
    index = os.fsencode(path)
    try:
        found, known = _ffrecord.IndexWriter.read_source(index)
    except _STALE:
        return None
    source = os.fsdecode(found)
    if os.path.exists(source) and not os.path.samefile(source, file.path):
        raise ConflictError(
            f"{path} is the index of {source}: give {file.path} another --index-dir"
        )
    try:
        if not _is_described_alike(index, known, file):
            return None
        reader = _ffrecord.RecordReader.open([index], _ffrecord.OpenOptions())
    except _STALE:
        return None
    if not _is_whole(reader):
        return None
    if not _is_of_its_file(reader):
        raise CorruptionError(
            f"{file.path}: it has the size and the time that its index {path} knows, but other "
            f"records: it is damaged, or another file. If it is as it should be, remove {path} and "
            "index it again"
        )
    return reader


def _is_described_alike(index: bytes, known: tuple[int, int, int, int], file: Indexable) -> bool:
    """Whether the file that describes a source says of it what it said when the index was made.

    If it has changed only in what it says of others, the index learns of its new time.
    """
    if file.description is None:
        return known[0] == 0
    if file.description.is_as(known):
        return True
    now = file.description.known(file.described())
    is_same = (now[0], now[3]) == (known[0], known[3])
    if is_same:
        _ffrecord.IndexWriter.write_description(index, now)
    return is_same


def _is_whole(index: _ffrecord.RecordReader) -> bool:
    """Whether no part of an index is damaged, as far as it has no copy of it."""
    if index.warnings:
        return False
    for begin in range(0, len(index), _AT_ONCE):
        numbers = np.arange(begin, min(begin + _AT_ONCE, len(index)))
        # That of a damaged entry is 0.
        empty = numbers[index.sizes(numbers) == 0]
        if len(empty) and index.read_batch(empty).status.any():
            return False
    return True


def _is_of_its_file(index: _ffrecord.RecordReader) -> bool:
    """Whether the file has at least half of some records; else it is another one, as large and old.

    Damaged records fail when they are read. A new index would serve them as what was written.
    """
    count = min(len(index), _LOOKS)
    looks = np.linspace(0, len(index) - 1, count).astype(np.int64)
    return bool(2 * np.count_nonzero(index.read_batch(looks).status) <= count)


def _write(file: Indexable, path: str, like: Indexable | None) -> int:
    shape = file.shape(like)
    writer = _ffrecord.IndexWriter.create(
        os.fsencode(file.path),
        os.fsencode(path),
        parse(shape.schema),
        form=shape.form,
        key_column=shape.key,
        replace=True,
        description=file.description.known(file.described()) if file.description else _NOTHING,
    )
    try:
        for places in file.samples():
            writer.add(*np.ascontiguousarray(places.T))
        if shape.has_nulls:
            writer.set_metadata(nulls_in(writer.columns_with_nulls()))
        return int(writer.close()["record_count"])
    finally:
        writer.discard()
