"""Records of files written anew: together, apart, or in another order."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import ffrecord
from ffrecord import Reader, Writer
from ffrecord._cli.console import Progress
from ffrecord._cli.data.records import Keys, batches, in_order
from ffrecord._order.epoch_order import Indices
from ffrecord._read.key_origin import key_origin
from ffrecord._tables.arrow_schema import KEY, joined_facts, without_facts
from ffrecord._write.new_folder import check_vacant, new_folder, part_name, widen_part_names
from ffrecord.errors import CorruptionError

# Digits of the number in a part's name; more if there are more parts.

MetadataOf = Literal["all", "first", "none"]


@dataclass(frozen=True)
class Form:
    """The options that the new files share."""

    compress: bool
    dictionary_bytes: int
    metadata: dict[str, bytes]


@dataclass
class Written:
    """Summary of the new files; sizes in bytes, `raw` means before compression."""

    record_count: int = 0
    raw_size_bytes: int = 0
    file_size_bytes: int = 0
    files: list[dict[str, object]] = field(default_factory=list)

    def add(self, name: str, summary: ffrecord.WriteSummary) -> None:
        """Count a file that is complete."""
        self.record_count += summary.record_count
        self.raw_size_bytes += summary.raw_size_bytes
        self.file_size_bytes += summary.file_size_bytes
        self.files.append({"name": name, "record_count": summary.record_count})


@contextmanager
def opened_whole(where: Sequence[str], timeout_s: float) -> Iterator[Reader]:
    """The records of `where`, of which none may be left out without notice.

    Raises:
        ValueError: the files have different columns, or no records.
        CorruptionError: a file goes on behind its last whole commit.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the last")  # It is an error here.
        with ffrecord.open(list(where), timeout_s=timeout_s) as reader:
            if len(reader) == 0:
                raise ValueError(f"{reader.where[0]} has no records: there is nothing to write")
            for file in reader.files:
                if file.format_version > 1 and file.warnings:
                    raise CorruptionError(
                        f"{file.name}: {file.warnings[0]}: wait until the append is done, or make "
                        "a whole file of it with 'ffrecord repair', and use that"
                    )
            yield reader


def form_of(
    reader: Reader, compress: bool | None, dictionary_bytes: int, metadata_of: MetadataOf
) -> Form:
    """The form of new files with these records.

    Args:
        reader: the records.
        compress: None to do as the old files: whether they are smaller than their records.
        dictionary_bytes: of a dictionary to train; 0 for none. Implies compression.
        metadata_of: "all" files, which must have the same; of the "first"; or "none".

    Raises:
        ValueError: the files have different metadata.
    """
    if compress is False and dictionary_bytes:
        raise ValueError("--dictionary compresses: leave out --no-compress")
    if dictionary_bytes:
        compress = True
    elif compress is None:
        compress = _is_compressed(reader)
    return Form(compress, dictionary_bytes, _metadata(reader, metadata_of))


def _is_compressed(reader: Reader) -> bool:
    """Whether the records have more bytes than the files.

    The files also have indexes and keys: of tiny records, compression may go unnoticed.
    """
    raw = 0
    for indices in in_order(0, len(reader)):
        raw += int(reader._sizes(indices).sum())
        if raw > reader.size_bytes:
            return True
    return False


def _metadata(reader: Reader, metadata_of: MetadataOf) -> dict[str, bytes]:
    each = [reader.metadata(number) for number in range(len(reader.files))]
    # The metadata of tables go with their records; nulls and types are those of all files.
    told = {name: value for name, value in each[0].items() if name == KEY}
    told |= joined_facts(each)
    if metadata_of == "none":
        return told
    first = without_facts(each[0])
    if metadata_of == "first":
        return first | told
    for file, metadata in zip(reader.files[1:], each[1:], strict=True):
        other = without_facts(metadata)
        if other != first:
            names = {*first, *other}
            differing = sorted(name for name in names if first.get(name) != other.get(name))
            raise ValueError(
                f"{file.name} has other metadata than {reader.files[0].name}: "
                f"{', '.join(differing)}; choose with --metadata first or none"
            )
    return first | told


def key_of_all(reader: Reader) -> str | Literal[True] | None:
    """The key of new files with these records, as for `Writer`.

    Raises:
        ValueError: some files were written with keys and some were not.
    """
    origin = key_origin(reader)
    if origin.files_without:
        raise ValueError(
            f"{origin.files_without[0]} was written without keys, other files with them: together, "
            "some records would have none; pack it anew with ffrecord-pack --key"
        )
    return origin.key


# Whether a part is complete, given its number, all records so far, and its own raw bytes.
IsFull = Callable[[int, int, int], bool]


def by_size(part_size_bytes: int) -> IsFull:
    """Parts that end with the record that reaches this raw size."""
    return lambda part, records, size: size >= part_size_bytes


def by_records(count: int) -> IsFull:
    """Parts of so many records; the last may have fewer."""
    return lambda part, records, size: records >= (part + 1) * count


def by_parts(parts: int, count: int) -> IsFull:
    """So many parts, which differ by one record at most."""
    return lambda part, records, size: records >= (part + 1) * count // parts


class Rewriting:
    """Writes the records of `reader` to a new file, or to the parts of a new folder."""

    def __init__(self, reader: Reader, form: Form, progress: Progress | None) -> None:
        """Write nothing yet; `progress` is given bytes of old files."""
        self._reader = reader
        self._form = form
        self._progress = progress
        self._key: str | Literal[True] | None = None

    def write(
        self, pieces: Iterable[Indices], destination: Path, is_full: IsFull, replace: bool
    ) -> Written:
        """Write the records in this order; the destination appears only when it is complete.

        Raises:
            ConflictError: the destination exists, and may not be replaced.
            CorruptionError: a record is damaged.
            OSError: a file cannot be read or written.
        """
        check_vacant(destination, replace)
        written = Written()
        with ExitStack() as stack:
            self._key = key_of_all(self._reader)
            keys = None
            if self._key is True:
                keys = Keys(self._reader)
                stack.callback(keys.close)
            records = self._records(pieces, keys)
            if destination.suffix == ".ffr":
                self._write_part(records, destination, replace, written, None)
            else:
                folder = stack.enter_context(new_folder(destination, replace))
                self._write_parts(records, folder, written, is_full)
        return written

    def _records(
        self, pieces: Iterable[Indices], keys: Keys | None
    ) -> Iterator[tuple[object, bytes | None, int]]:
        """Each record, its key unless that is a column, and its size."""
        total, done = self._reader.size_bytes, 0
        for batch in batches(self._reader, pieces):
            rows = zip(batch.indices.tolist(), batch.stored(), batch.sizes.tolist(), strict=True)
            for index, value, size in rows:
                yield value, None if keys is None else keys.of(index), size
            done += len(batch)
            if self._progress is not None:
                self._progress(total * done // len(self._reader), total)

    def _write_parts(
        self,
        records: Iterator[tuple[object, bytes | None, int]],
        folder: Path,
        written: Written,
        is_full: IsFull,
    ) -> None:
        total = len(self._reader)
        while written.record_count < total:
            path = folder / part_name(len(written.files))
            self._write_part(records, path, False, written, is_full)
        keep_order(folder, written)

    def _write_part(
        self,
        records: Iterator[tuple[object, bytes | None, int]],
        path: Path,
        replace: bool,
        written: Written,
        is_full: IsFull | None,
    ) -> None:
        form = self._form
        with Writer(
            path,
            self._reader.logical.raw.schema or None,
            compress="zstd" if form.compress else None,
            dictionary=form.dictionary_bytes or None,
            replace=replace,
            metadata=form.metadata,
            key=self._key,
        ) as writer:
            writer._allow_empty_keys()
            size_bytes = 0
            for behind, (value, key, size) in enumerate(records, written.record_count + 1):
                writer.write(value, key=key)  # type: ignore[arg-type]
                size_bytes += size
                if is_full is not None and is_full(len(written.files), behind, size_bytes):
                    break
            written.add(path.name, writer.close())


def keep_order(folder: Path, written: Written) -> None:
    """Give the files of the parts names whose order as text is theirs."""
    count = len(written.files)
    widen_part_names(folder, count)
    for number, file in enumerate(written.files):
        file["name"] = part_name(number, count)
