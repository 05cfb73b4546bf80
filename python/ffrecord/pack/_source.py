"""The interface of every source of samples, and what all of them use."""

import hashlib
import importlib
import os
import pickletools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Literal, NamedTuple, Protocol

from ffrecord._write.file_rows import FileRows, Integers
from ffrecord.pack import _places


class Keyed(NamedTuple):
    """A sample of a source whose keys are not a column, and its key if it has one."""

    sample: Mapping[str, Any] | bytes
    key: bytes | None


class Lacking(NamedTuple):
    """A sample as it is stored, and the columns that are null in it."""

    sample: Mapping[str, Any]
    names: frozenset[str]


class Chunk(NamedTuple):
    """Some rows of a source, which has this name, as a table; the first has that number."""

    table: Any
    first: int
    where: str


class InFiles(NamedTuple):
    """Some rows of a source whose values the writer reads from files; the first has that number."""

    rows: FileRows
    sizes_bytes: Integers
    """The size of each row, as `part_size_bytes` counts it."""
    first: int
    lacking: Sequence[frozenset[str]] = ()
    """The columns that are null in each row; empty if no row has a null."""
    changed: Callable[[int], Exception] | None = None
    """The error of a row with a file that is not as it was listed, if any may be."""


# A value for each column, or the bytes of a record without columns.
OneSample = Mapping[str, Any] | bytes | Keyed | Lacking
# One, or many of them.
Sample = OneSample | Chunk | InFiles
# The column that is the key, if there is one; True if samples are Keyed.
Key = str | Literal[True] | None
# A sample, and how many bytes of the source are behind it.
Progressed = tuple[Sample, int]

# The end of a part that reaches to the end of its input.
WHOLE = -1


class Part(NamedTuple):
    """A part of an input: a range in the source's own terms, such as bytes or records."""

    begin: int
    end: int
    """WHOLE for all that there is from `begin`."""
    size_bytes: int
    first: int = 0
    """The number of its first sample in the input, for errors."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the input."""
        return self.begin == 0 and self.end == WHOLE


# The metadata in which a file has the names of its labels 0, 1, ...: a list in JSON.
CLASSES = "classes"
# The reason in `Source.skipped` for files whose names, or those of their folders, begin with a dot.
HIDDEN = "hidden files and folders"


class Source(Protocol):
    """Samples to pack. Single use: `samples` reads the source once.

    A source of your own needs `schema` and `samples`; the other attributes have defaults.
    """

    schema: Any
    """Types by column, as of a `Writer`; empty if samples are bytes. If samples are tables, a
    `TableSchema`."""
    key: Key = None
    """The column by which samples are found, if there is one; True if samples are `Keyed`."""
    takes_empty_keys: bool = False
    """Whether an empty value of `key` means that the sample has no key."""
    size_bytes: int = 0
    """The bytes of all data that will be read; for progress."""
    types: Mapping[str, str] = MappingProxyType({})
    """The types of columns whose type in the schema does not say it, such as the numbers in lists
    that are stored as bytes; the same in all of several sources."""
    classes: tuple[str, ...] = ()
    """Names of the labels 0, 1, ...; empty if the source does not name them."""
    metadata: Mapping[str, bytes] = MappingProxyType({})
    """Metadata to store in each file, beside the names of classes."""
    skipped: Counter[str]
    """Files that were left out, by reason; complete after the last sample."""
    _states_facts: bool = False
    """Whether the metadata say which nulls and types are in the samples, as those of files do."""
    _is_sealed: bool = False
    """Whether nothing changes the samples once it is open, as of record files."""
    _names_are_stored: bool = False
    """Whether the schema has the columns that are stored, not a user's."""
    _arrow_fields: Any = None
    """A schema of pyarrow of a user's columns, if it is known."""
    _inputs: Any = None
    """The paths that it was opened from, which can be opened again; None if there are none."""

    def samples(self) -> Iterator[Progressed]:
        """Yield pairs: a sample, and how many bytes of the source are behind it (0: unknown)."""


class Facts:
    """The attributes of a source, with the defaults of those that a user's own class lacks."""

    def __init__(self, source: Source) -> None:
        """Look at `source`.

        Raises:
            TypeError: it lacks what has no default.
        """
        for name, what in (("schema", "types by column"), ("samples", "a method")):
            if not hasattr(source, name):
                raise TypeError(f"{source!r} is no source: it has no {name!r}, {what}")
        self._source = source
        paths = getattr(getattr(source, "_inputs", None), "paths", ())
        self.name = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "") or repr(source)
        """The name in errors."""

    @property
    def arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The schema of pyarrow that the columns have; None if it is not known."""
        return self._arrow_fields

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any attribute
        return getattr(self._source, name, getattr(Source, name, None))


class SourceOptions(NamedTuple):
    """Options of a source; a source rejects options that do not apply to it.

    Attributes:
        follow_links: pack the targets of symbolic links in a folder of classes; else skip them.
        include: in a folder of classes, only files whose names match one of these patterns.
        nested: in a folder of classes, folders whose files all lie in subfolders are classes, too.
        label_field: in JSON lines that are kept as they are, the field that holds an integer label.
        columns: of a source with columns, only these.
        drop: of a source with columns, all but these.
        cast: of a table, pairs of a column and the type to store it as.
        ragged: in TFRecords, features whose number of values varies.
        raw: of TFRecords, the records as they are, not as `tf.train.Example`; of tars, each file as
            a record, not samples of WebDataset; of JSON lines, each line as it is; of LMDB, values
            that are pickles, as their bytes.
        split: of a folder with several splits, the one to pack, such as "train".
        tokens: of a file of nothing but tokens, their type ("u16" or "u32"), and behind a colon the
            token that ends each document, if there is one ("u16:50256").
        shuffle: of record files, the seed of the order of their records, if that is not theirs.
        like: of several files, the first one, for files whose own content could mislead.
        known: the columns of tables, where all files were looked at before.
        together: the paths of all files that are packed together.
    """

    follow_links: bool = False
    include: tuple[str, ...] = ()
    nested: bool = False
    label_field: str | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    cast: tuple[tuple[str, str], ...] = ()
    ragged: tuple[str, ...] = ()
    raw: bool = False
    split: str | None = None
    tokens: str | None = None
    shuffle: tuple[int, ...] = ()
    like: Source | None = None
    known: Any = None
    together: tuple[str, ...] = ()

    def allow(self, path: str, what: str, *meant: str) -> None:
        """Raise a ValueError if an option is set that does not apply to `path`, which is `what`."""
        for name, value in self._asdict().items():
            if value and name not in (*meant, "like", "known", "together"):
                option = {"columns": "column"}.get(name, name).replace("_", "-")
                raise ValueError(f"{path} is {what}, to which --{option} does not apply")


def picked(
    schema: Mapping[str, str], columns: tuple[str, ...], where: str, drop: tuple[str, ...] = ()
) -> dict[str, str]:
    """The selected part of `schema`: all of it unless `columns` names some, without `drop`.

    Raises:
        ValueError: there is no such column, or none is left.
    """
    for column in (*columns, *drop):
        if column not in schema:
            raise ValueError(f"{where} has no column '{column}'; columns: {', '.join(schema)}")
    kept = {name: schema[name] for name in columns or schema if name not in drop}
    if schema and not kept:
        raise ValueError(f"{where} has no columns left: there is nothing to pack")
    return kept


def is_label(number: int) -> bool:
    """Whether a column of labels can hold it."""
    return -(1 << 63) <= number < 1 << 63


def check_text(name: str, where: str) -> str:
    """The name, if it can be stored as text.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: the name {name!r} is not UTF-8; rename it") from None
    return name


def check_key(name: str) -> str:
    """The name of a file in a source's own list, if it stays inside the source.

    Raises:
        ValueError: it leads outside.
    """
    if os.path.isabs(name) or ".." in name.split("/"):
        raise ValueError(f"the name {name!r} leads outside its folder")
    return name


def split_of(known: Sequence[str], asked: str | None, where: str) -> str:
    """The split to pack; one without a name is the whole.

    Raises:
        ValueError: there are several, and none was asked for, or there is no such split.
    """
    if asked is None and len(known) == 1:
        return known[0]
    if asked is not None and asked in known:
        return asked
    names = ", ".join(name for name in known if name)
    if not names:
        raise ValueError(f"{where} has no splits" + (f", such as {asked}" if asked else ""))
    wanted = "" if asked is None else f", not {asked}"
    remedy = f": pack each on its own, such as with --split {known[0]}" if known[0] else ""
    raise ValueError(f"{where} has the splits {names}{wanted}{remedy}")


def stamp_of_files(paths: Iterable[str]) -> str:
    """A hash of names, sizes and times of files."""
    found = hashlib.sha256()
    for path in paths:
        size_bytes, version = _places.look(path)
        found.update(os.fsencode(os.path.basename(path)))  # Any bytes but a slash.
        found.update(f"\0{size_bytes}\0{version}\n".encode())
    return found.hexdigest()[:32]


def check_not_pickled(data: bytes, where: str) -> bytes:
    """The value, if it is no pickle, nor a file of torch's, which has one in it.

    Raises:
        ValueError: it is; nothing in it was executed.
    """
    is_torch = data[:4] == b"PK\x03\x04" and b"data.pkl" in data[:256]
    is_pickle = data[:1] == b"\x80" and data[1:2] in b"\2\3\4\5" and data[-1:] == b"."
    if is_torch or (is_pickle and _is_pickle(data)):
        raise ValueError(
            f"{where} is a pickle, which is not unpickled: it could run any program. Write it as "
            "numbers, text or an image file, or keep its bytes with --raw"
        )
    return data


def _is_pickle(data: bytes) -> bool:
    """Whether it is nothing but a pickle, by its structure alone."""
    try:
        *_, (_, _, at) = pickletools.genops(data)
    except Exception:  # Errors of many kinds; bytes that are no pickle are a value.
        return False
    return at == len(data) - 1


def needed(module: str, what: str, package: str = "'ffrecord[convert]'") -> ModuleType:
    """Import a package that only some sources need; `package` is what pip calls it.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module}, which is not installed: pip install {package}"
        ) from error
