"""TFRecord files, plain or gzip: frames of a length and a payload, a CRC-32C of each.

The frame is described at tensorflow.org/tutorials/load_data/tfrecord.
"""

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ffrecord import _ffrecord
from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._ahead import ahead, mapped
from ffrecord.pack._cutting import Mark, is_plain, parts_between
from ffrecord.pack._decompressed import Stream
from ffrecord.pack._example import Values, parse_example
from ffrecord.pack._source import WHOLE, Part, Progressed, Source, SourceOptions, needed, picked
from ffrecord.pack._table import ROWS_MAX, Tabular

T = TypeVar("T")

_HEAD, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_LENGTH_BYTES = 8
_MASK_DELTA = 0xA282EAD8
_PIECE_BYTES = 1 << 20
# The first part, which shows the columns: so many records, or bytes if that is less.
_LOOK_RECORDS, _LOOK_BYTES = 1000, 64 << 20
# Bytes of payloads that become rows at a time.
_ROWS_BYTES = 4 << 20
# The fields of `Feature`, and the value type of a column of each.
_FIELDS = {"bytes": 1, "f32": 2, "i64": 3}
_ANY_COUNT = -1
_ALL = Part(0, WHOLE, 0)
_REMEDY = (
    "--ragged keeps numbers of any count, --column names the features that all records have, "
    "--raw keeps whole records"
)


def is_tfrecord(path: str) -> bool:
    """Recognised by its first length, which has a checksum, since names of TFRecords vary."""
    try:
        with _places.open_input(path) as raw:
            head = Stream(raw, path).read(_HEAD.size)
        return _is_sound(head[:_LENGTH_BYTES], head[_LENGTH_BYTES:])
    except ImportError:
        return ".tfrecord" in os.path.basename(path)  # The error then says what is missing.
    except CorruptionError:
        return ".tfrecord" in os.path.basename(path)  # The error then says what is damaged.
    except OSError:
        if _places.is_address(path):
            raise
        return False


def payloads_of(path: str, part: Part) -> Iterator[tuple[bytes, int]]:
    """Each payload of a part of a file, and the position in the file after it.

    Raises:
        CorruptionError: a checksum is wrong, or the file is truncated.
    """
    value = needed("google_crc32c", "a TFRecord file").value
    with _places.open_input(path) as raw:
        file = Stream(raw, path, part.begin, part.end)
        data, at = file.read(_PIECE_BYTES), 0
        while True:
            if len(data) - at < _HEAD.size:
                data, at = data[at:] + file.read(_PIECE_BYTES), 0
            if not data:
                return
            if len(data) < _HEAD.size:
                raise _truncated(path, raw.tell())
            size_bytes, stored = _HEAD.unpack_from(data, at)
            if _masked(value(data[at : at + _LENGTH_BYTES])) != stored:
                raise _unsound(path, raw.tell())
            begin = at + _HEAD.size
            end = begin + size_bytes
            if len(data) < end + _CRC.size:
                lacking = end + _CRC.size - len(data)
                data = data[begin:] + file.read(max(lacking, _PIECE_BYTES))
                begin, end = 0, size_bytes
                if len(data) < end + _CRC.size:
                    raise _truncated(path, raw.tell())
            payload = data[begin:end]
            if _masked(value(payload)) != _CRC.unpack_from(data, end)[0]:
                raise _unsound(path, raw.tell())
            at = end + _CRC.size
            yield payload, raw.tell()


def parts_of(path: str, total_bytes: int, size_bytes: int) -> list[Part]:
    """Cut a file between records, by their lengths alone, unless it is compressed."""
    if total_bytes <= size_bytes or not is_plain(path):
        return [Part(0, WHOLE, total_bytes)]
    return parts_between(_marks(path, total_bytes), size_bytes)


def _marks(path: str, total_bytes: int) -> Iterator[Mark]:
    """Beginnings of records, until a length that is wrong, which a reader tells."""
    value = needed("google_crc32c", "a TFRecord file").value
    at = number = 0
    with _places.open_input(path) as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            yield Mark(at, at, number)
            size_bytes, stored = _HEAD.unpack(head)
            after = at + _HEAD.size + size_bytes + _CRC.size
            if _masked(value(head[:_LENGTH_BYTES])) != stored or after > total_bytes:
                break
            file.seek(after)
            at, number = after, number + 1
    yield Mark(total_bytes, total_bytes, number)


class RawTFRecords(Source):
    """The payload of each record."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Store the file; see `open_source` for arguments and errors."""
        options.allow(path, "a TFRecord file kept as it is", "columns", "drop", "ragged", "raw")
        needed("google_crc32c", "a TFRecord file")
        self.skipped = Counter()
        self.size_bytes = _places.size_of(path)
        self.schema = picked({"payload": "bytes"}, options.columns, path, options.drop)
        self._path = path

    def samples(self) -> Iterator[Progressed]:
        """Yield the records; CorruptionError if one is damaged."""
        yield from self.samples_of(Part(0, WHOLE, self.size_bytes), self.skipped)

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of records of about this size."""
        return parts_of(self._path, self.size_bytes, size_bytes)

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the records of a part."""
        for payload, position_bytes in ahead(payloads_of(self._path, part)):
            yield {"payload": payload}, position_bytes - part.begin


class Feature:
    """The facts of a feature: kinds of values, and how many a record has."""

    def __init__(self, *, is_late: bool) -> None:
        """Before the first record that has it, which is late if others came before."""
        self.kinds: set[str] = set()
        self.counts: set[int] = {0} if is_late else set()  # Records before had none.

    def note(self, values: Values) -> None:
        """Add what one record has."""
        self.counts.add(len(values))
        if len(values):
            self.kinds.add(_kind(values))


class TFRecordTable(Tabular):
    """A column for each feature of `tf.train.Example`.

    The first records say what the columns are. A feature with one byte string (or sometimes none)
    is bytes. One with one number each time is f32 or i64, one with always as many a vector of
    them; numbers of any count are a list.
    """

    what = "TFRecord file"
    meant = ("columns", "drop", "cast", "ragged")
    finds_types = True

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The types of the first records."""
        if (found := self.read_before()) is not None:
            return found
        records = self._records()
        first = list(some(records, _size_bytes))
        features: dict[str, Feature] = {}
        for number, found in enumerate(first):
            for name in found.keys() - features.keys():
                features[name] = Feature(is_late=number > 0)
            for name, feature in features.items():
                feature.note(found.get(name, []))
        names = dict.fromkeys(features, "")
        for asked in (self.options.ragged, self.options.columns, self.options.drop):
            picked(names, asked, self.path)
        unknown = {n for n in features if self.is_wanted(n) and not features[n].kinds}
        while unknown and (found := next(records, None)) is not None:
            for name in tuple(unknown & found.keys()):
                features[name].note(found[name])
                unknown -= {name} if features[name].kinds else set()
        return pyarrow().schema([self.field(name, features[name]) for name in sorted(features)])

    def payloads(self, part: Part) -> Iterator[tuple[bytes, int]]:
        """Each record of a part, and the position in the file after it."""
        return payloads_of(self.path, part)

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of records of about this size."""
        return parts_of(self.path, self.size_bytes, size_bytes)

    def tables(
        self, names: list[str], part: Part, skipped: Counter[str]
    ) -> Iterator[tuple[Any, int]]:
        """Yield some records at a time."""
        wanted = pyarrow().schema([self.found.field(name) for name in names])
        asked = [(field.name, *_form_of(field.type)) for field in wanted]
        columns = [(name, _FIELDS[kind], count) for name, kind, count in asked]
        picks = bool(self.options.columns or self.options.drop)

        def arrays_of(batch: Batch) -> list[Any] | None:
            read = _ffrecord.read_examples(batch.payloads, columns, picks)
            if read is None:
                return None
            count = len(batch.payloads)
            pairs = zip(wanted, read, strict=True)
            return [_array(field.type, count, *buffers) for field, buffers in pairs]

        for batch, read in mapped(arrays_of, batches_of(self.payloads(part), part)):
            arrays = self._by_python(batch, wanted, picks) if read is None else read
            yield pyarrow().Table.from_arrays(arrays, schema=wanted), batch.done_bytes

    def field(self, name: str, feature: Feature) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The column of a feature."""
        pa = pyarrow()
        if not self.is_wanted(name):
            return pa.field(name, pa.binary(), nullable=False)  # For messages: it is not read.
        kinds, counts = feature.kinds, feature.counts
        if len(kinds) > 1 or (kinds == {"bytes"} and max(counts) > 1):
            several = len(kinds) > 1
            what = "values of several kinds" if several else f"up to {max(counts)} byte strings"
            raise ValueError(
                f"{self.path}: the feature '{name}' has {what} in a record: name the wanted "
                "features with --column, or keep whole records with --raw"
            )
        kind = next(iter(kinds), "bytes")
        if kind == "bytes":
            return pa.field(name, pa.binary(), nullable=False)
        number = pa.int64() if kind == "i64" else pa.float32()
        count = counts.pop() if len(counts) == 1 and name not in self.options.ragged else _ANY_COUNT
        item = pa.field("item", number, nullable=False)
        made = number if count == 1 else pa.list_(item, count)
        return pa.field(name, made, nullable=False)

    def _by_python(self, batch: "Batch", wanted: Any, picks: bool) -> list[Any]:  # noqa: ANN401
        """The columns of messages of any form; names the record and the feature that is wrong."""
        rows = []
        for number, payload in enumerate(batch.payloads, batch.first):
            features = self._parsed(number, payload)
            if not picks and (new := features.keys() - set(wanted.names)):
                raise self.differs(number, min(new), "is new")
            rows.append(
                [self.value(number, field, features.get(field.name, [])) for field in wanted]
            )
        pa = pyarrow()
        return [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(wanted)]

    def value(self, number: int, field: Any, values: Values) -> Any:  # noqa: ANN401
        """The value of a column in the record of that number."""
        kind, count = _form_of(field.type)
        if len(values) and (found := _kind(values)) != kind:
            how = f"has values of kind {found}, not {kind}"
            raise self.differs(number, field.name, how)
        if kind == "bytes":
            if len(values) <= 1:
                return values[0] if len(values) else b""
        elif count == _ANY_COUNT:
            return values
        elif len(values) == count:
            return values[0] if count == 1 else values
        shape = "" if kind == "bytes" or count == 1 else f"[{count}]"
        raise self.differs(number, field.name, f"has {len(values)} values, not {kind}{shape}")

    def differs(self, number: int, name: str, how: str) -> ValueError:
        """The error of a record that is not as the first ones."""
        return ValueError(
            f"{self.path}: record {number}: the feature '{name}' {how}, unlike in the first "
            f"records: {_REMEDY}"
        )

    def _records(self) -> Iterator[dict[str, Values]]:
        for number, (payload, _) in enumerate(self.payloads(_ALL)):
            yield self._parsed(number, payload)

    def _parsed(self, number: int, payload: bytes) -> dict[str, Values]:
        try:
            return parse_example(payload)
        except ValueError as error:
            raise ValueError(
                f"{self.path}: record {number} is {error}; --raw keeps records as they are"
            ) from None


class Batch(NamedTuple):
    """Some records; the first has that number."""

    payloads: list[bytes]
    first: int
    done_bytes: int


def batches_of(payloads: Iterator[tuple[bytes, int]], part: Part) -> Iterator[Batch]:
    """Some MiB of records at a time."""
    first, size_bytes, position_bytes = part.first, 0, part.begin
    some: list[bytes] = []
    for payload, after in payloads:
        if some and (size_bytes + len(payload) > _ROWS_BYTES or len(some) == ROWS_MAX):
            yield Batch(some, first, position_bytes - part.begin)
            first, some, size_bytes = first + len(some), [], 0
        some.append(payload)
        size_bytes += len(payload)
        position_bytes = after
    if some:
        yield Batch(some, first, position_bytes - part.begin)


def _form_of(kind: Any) -> tuple[str, int]:  # noqa: ANN401 - pyarrow has no types
    """The kind of values of a column, and how many a record has."""
    pa = pyarrow()
    if pa.types.is_binary(kind):
        return "bytes", 1
    if pa.types.is_list(kind):
        return _form_of(kind.value_type)[0], _ANY_COUNT
    if pa.types.is_fixed_size_list(kind):
        return _form_of(kind.value_type)[0], kind.list_size
    return ("i64" if pa.types.is_int64(kind) else "f32"), 1


def _array(kind: Any, count: int, data: bytes, ends: bytes) -> Any:  # noqa: ANN401
    """A column of values that lie one after the other."""
    pa = pyarrow()
    if kind.num_fields == 0:
        buffers = [None, ends, data] if pa.types.is_binary(kind) else [None, data]
        return pa.Array.from_buffers(
            kind, count, [b if b is None else pa.py_buffer(b) for b in buffers]
        )
    number = kind.value_type
    values = _array(number, 8 * len(data) // number.bit_width, data, b"")
    buffers = [None, pa.py_buffer(ends)] if pa.types.is_list(kind) else [None]
    return pa.Array.from_buffers(kind, count, buffers, children=[values])


def some(records: Iterator[T], size_of: Callable[[T], int]) -> Iterator[T]:
    """The first of some records: as many as are looked at."""
    size_bytes = 0
    for number, record in enumerate(records, start=1):
        yield record
        size_bytes += size_of(record)
        if number == _LOOK_RECORDS or size_bytes > _LOOK_BYTES:
            return


def _size_bytes(features: dict[str, Values]) -> int:
    return sum(
        values.nbytes if isinstance(values, np.ndarray) else sum(map(len, values))
        for values in features.values()
    )


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def _is_sound(data: bytes, stored: bytes) -> bool:
    """Whether the masked CRC-32C of `data` is the stored one."""
    crc = needed("google_crc32c", "a TFRecord file").value(data)
    return bool(stored == _CRC.pack(_masked(crc)))


def _truncated(path: str, position_bytes: int) -> CorruptionError:
    return CorruptionError(f"{path} is truncated before byte {position_bytes}")


def _unsound(path: str, position_bytes: int) -> CorruptionError:
    return CorruptionError(f"{path} fails a checksum before byte {position_bytes}")


def _kind(values: Values) -> str:
    if isinstance(values, list):
        return "bytes"
    return "f32" if values.dtype == np.float32 else "i64"
