"""Values of Python, NumPy and torch as arrays of a type of Arrow: exact, or an error; `values`.

pyarrow's own conversion cuts fractions and times, overflows to infinity, and drops masks and
unknown fields of structs. It is used here for decimals, which it refuses itself.
"""

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ffrecord._tables.arrow_types import BF16_STORAGE, FIXED, is_bf16, is_list, plain_type
from ffrecord._tables.formats import pyarrow
from ffrecord._tables.schema import DTYPES
from ffrecord._tables.values import (
    array_of,
    as_buffer,
    as_bytes,
    bf16_numbers,
    exact,
    text,
    unmasked,
)

# Values, and the name of what they are of; makes an array of storage, without extensions.
Maker = Callable[[Any, str], Any]

_DAY_NS = 86_400 * 10**9
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
# NumPy's units of fixed length, the shorter ones as parts of a nanosecond.
_NUMPY_NS = {"W": 7 * _DAY_NS, "D": _DAY_NS, "h": 3600 * 10**9, "m": 60 * 10**9, **_UNIT_NS}
_PARTS_OF_NS = {"ps": 10**3, "fs": 10**6, "as": 10**9}
_EPOCH = datetime.datetime(1970, 1, 1)
# The types of pandas where there is no value; it need not be imported to see that.
_NULLS_OF_PANDAS = ("NAType", "NaTType")
_NO_LISTS = (str, bytes, bytearray, memoryview)


def maker(wanted: Any, marked: bool = False) -> Maker:  # noqa: ANN401 - pyarrow has no types
    """The function that makes an array of a list of values, of the type that stores `wanted`.

    If the field is marked as bf16, floats have values of bf16, and u16 has their bits.
    None, Arrow's null, and NA and NaT of pandas are null. It raises ValueError and TypeError, which
    name the column, or what is in it.
    """
    pa = pyarrow()
    types = pa.types
    if isinstance(wanted, pa.FixedShapeTensorType):
        return _tensors(wanted, marked)
    if getattr(wanted, "extension_name", None) == "arrow.uuid":
        return _bytes(wanted.storage_type)
    plain = plain_type(wanted)
    if types.is_struct(plain):
        return _structs(plain)
    if types.is_map(plain):
        return _maps(plain)
    if types.is_fixed_size_list(plain):
        return _fixed_lists(plain, marked)
    if is_list(plain):
        return _lists(plain, marked)
    if (name := FIXED.get(str(plain))) is not None:
        return _numbers(plain, name, marked and name in BF16_STORAGE)
    if types.is_string(plain) or types.is_large_string(plain):
        return _texts()
    if types.is_binary(plain) or types.is_large_binary(plain):
        return _bytes(pa.large_binary())
    if types.is_fixed_size_binary(plain):
        return _bytes(plain)
    if types.is_temporal(plain) and not types.is_interval(plain):
        return _times(plain)
    if types.is_interval(plain):
        return _intervals
    return _decimals(plain)


def _known(value: Any, where: str) -> Any:  # noqa: ANN401 - whatever a user gives
    """The value; None for what is null."""
    if value is np.ma.masked:
        raise ValueError(f"{where} has a masked value: fill it, or leave it out")
    if type(value).__name__ in _NULLS_OF_PANDAS:
        return None
    return value.as_py() if isinstance(value, pyarrow().Scalar) else value


def _by_pyarrow(values: list[Any], wanted: Any, where: str) -> Any:  # noqa: ANN401
    pa = pyarrow()
    values = [int(each) if isinstance(each, np.integer) else each for each in values]
    try:
        return pa.array(values, wanted)
    except TypeError as error:  # Arrow's errors, too.
        raise TypeError(f"{where} is {wanted}: {error}") from None
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ValueError(f"{where} is {wanted}: {error}") from None


def _is_stored(value: Any, size: int) -> bool:  # noqa: ANN401
    """Whether it is what readers give for such a value: its bytes."""
    return isinstance(value, np.ndarray) and (value.dtype, value.shape) == (np.uint8, (size,))


def _decimals(wanted: Any) -> Maker:  # noqa: ANN401
    size = wanted.bit_width // 8

    def one(value: Any, where: str) -> Any:  # noqa: ANN401
        value = _known(value, where)
        if not _is_stored(value, size):
            return value
        number = int.from_bytes(value.tobytes(), "little", signed=True)
        return decimal.Decimal(f"{number}E{-wanted.scale}")

    return lambda values, where: _by_pyarrow([one(each, where) for each in values], wanted, where)


def _intervals(values: Any, where: str) -> Any:  # noqa: ANN401
    """Months, days and nanoseconds."""

    def one(value: Any) -> tuple[int, ...] | None:  # noqa: ANN401
        value = _known(value, where)
        if value is None:
            return None
        if _is_stored(value, 16):
            return struct.unpack("<iiq", value.tobytes())
        if not isinstance(value, tuple) or len(value) != 3:
            raise TypeError(
                f"{where} is of intervals (months, days, nanoseconds), not {value!r:.40}"
            )
        pairs = zip(("i32", "i32", "i64"), value, strict=True)
        return tuple(int(exact(array_of(part, where), kind, where)) for kind, part in pairs)

    wanted = pyarrow().month_day_nano_interval()
    return _by_pyarrow([one(each) for each in values], wanted, where)


def _array(values: Any, missing: list[bool], wanted: Any) -> Any:  # noqa: ANN401
    """An array of Arrow of numbers that have its type."""
    mask = np.array(missing) if any(missing) else None
    made = pyarrow().array(values, mask=mask)
    return made if made.type.equals(wanted) else made.view(wanted)


def _numbers(wanted: Any, name: str, marked: bool) -> Maker:  # noqa: ANN401
    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        missing: list[bool] = []
        if not isinstance(values, np.ndarray) or values.dtype.hasobject:
            values = [_known(each, where) for each in values]
            missing = [each is None for each in values]
            if any(missing):
                none = _nothing(name, marked, values)
                values = [none if each is None else each for each in values]
        array = array_of(values, where)
        if array.ndim != 1:
            raise ValueError(f"{where} is {wanted}, the value has shape {array.shape[1:]}")
        made = exact(array, "bf16" if marked else name, where)
        if marked and name != "u16":
            made = bf16_numbers(made).astype(DTYPES[name])
        return _array(made, missing, wanted)

    return make


def _nothing(name: str, marked: bool, values: list[Any]) -> Any:  # noqa: ANN401
    """The value under a null, of the values' type: another would turn bits to numbers."""
    if name == "bool":
        return False
    are_bits = marked and any(isinstance(each, np.uint16) for each in values)
    return np.uint16(0) if are_bits else 0


def _texts() -> Maker:
    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        known = [_known(each, where) for each in values]
        encoded = [None if each is None else text(each, where) for each in known]
        return pyarrow().array(encoded, pyarrow().large_binary()).view(pyarrow().large_string())

    return make


def _bytes(wanted: Any) -> Maker:  # noqa: ANN401
    def one(value: Any, where: str) -> bytes | None:  # noqa: ANN401
        value = _known(value, where)
        if isinstance(value, uuid.UUID):
            return value.bytes
        return None if value is None else as_bytes(as_buffer(value, where))

    return lambda values, where: _by_pyarrow([one(each, where) for each in values], wanted, where)


def _structs(wanted: Any) -> Maker:  # noqa: ANN401
    makers = {field.name: maker(field.type, is_bf16(field)) for field in wanted}

    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        rows = [_known(each, where) for each in values]
        for row in rows:
            if row is not None and not isinstance(row, Mapping):
                raise TypeError(f"{where} is a struct, of a dict, not {type(row).__name__}")
            if row is not None and (unknown := [name for name in row if name not in makers]):
                names = ", ".join(makers)
                raise ValueError(f"{where} has no field '{unknown[0]}'; its fields are {names}")
        children = []
        for name, each in makers.items():
            parts = [None if row is None else row.get(name) for row in rows]
            children.append(each(parts, f"{where[:-1]}{{{name}}}'"))
        pa = pyarrow()
        fields = zip(wanted, children, strict=True)
        kind = pa.struct([pa.field(each.name, child.type, each.nullable) for each, child in fields])
        return _built(kind, [row is None for row in rows], [], children)

    return make


def _lists(wanted: Any, marked: bool) -> Maker:  # noqa: ANN401
    make_items = maker(wanted.value_type, marked or is_bf16(wanted.value_field))

    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        parts = [_items(each, where) for each in values]
        items = make_items(_joined(parts), f"{where[:-1]}[]'")
        return _large_lists(items, parts)

    return make


def _large_lists(items: Any, parts: list[Any]) -> Any:  # noqa: ANN401
    pa = pyarrow()
    lengths = [0 if part is None else len(part) for part in parts]
    offsets = pa.py_buffer(np.cumsum([0, *lengths], dtype=np.int64))
    kind = pa.large_list(items.type)
    return _built(kind, [part is None for part in parts], [offsets], [items])


def _fixed_lists(wanted: Any, marked: bool) -> Maker:  # noqa: ANN401
    make_items = maker(wanted.value_type, marked or is_bf16(wanted.value_field))
    size = wanted.list_size

    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        parts = [_items(each, where) for each in values]
        for part in parts:
            if part is not None and len(part) != size:
                raise ValueError(f"{where} is {wanted}, the value has {len(part)} items")
        slots = [[None] * size if part is None else part for part in parts]
        items = make_items(_joined(slots), f"{where[:-1]}[]'")
        kind = pyarrow().list_(items.type, size)
        return _built(kind, [part is None for part in parts], [], [items])

    return make


def _is_entry(pair: Any) -> bool:  # noqa: ANN401
    return isinstance(pair, dict) and tuple(pair) == ("key", "value")


def _maps(wanted: Any) -> Maker:  # noqa: ANN401
    make_keys, make_items = (
        maker(wanted.key_type),
        maker(wanted.item_type, is_bf16(wanted.item_field)),
    )

    def pairs(value: Any, where: str) -> Any:  # noqa: ANN401
        value = _known(value, where)
        found = list(value.items()) if isinstance(value, Mapping) else _items(value, where)
        if isinstance(found, list):  # As readers give it.
            found = [tuple(p.values()) if _is_entry(p) else p for p in found]
        for pair in found or ():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"{where} is a map, of a dict or pairs, not of {pair!r:.40}")
            if _known(pair[0], where) is None:
                raise ValueError(f"{where} has a key that is null")
        return found

    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        parts = [pairs(each, where) for each in values]
        known = [pair for part in parts if part is not None for pair in part]
        children = [
            make_keys([key for key, _ in known], f"{where[:-1]}[]{{key}}'"),
            make_items([item for _, item in known], f"{where[:-1]}[]{{value}}'"),
        ]
        names = ("key", "value")
        kind = pyarrow().struct(list(zip(names, (each.type for each in children), strict=True)))
        return _large_lists(_built(kind, [False] * len(known), [], children), parts)

    return make


def _tensors(wanted: Any, marked: bool) -> Maker:  # noqa: ANN401
    make_storage, shape = maker(wanted.storage_type, marked), tuple(wanted.shape)

    def flat(value: Any, where: str) -> Any:  # noqa: ANN401
        value = _known(value, where)
        if value is None:
            return None
        array = array_of(value, where)
        if array.shape not in (shape, (int(np.prod(shape)),)):
            raise ValueError(f"{where} has shape {shape}, the value has {array.shape}")
        return array.reshape(-1)

    return lambda values, where: make_storage([flat(each, where) for each in values], where)


def _items(value: Any, where: str) -> Any:  # noqa: ANN401
    """The items of one list; None for null."""
    value = _known(value, where)
    if isinstance(value, np.ma.MaskedArray) and value.ndim:
        value = unmasked(value)
    if value is None or isinstance(value, list | tuple):
        return value
    if isinstance(value, pyarrow().Array | pyarrow().ChunkedArray):
        return value.to_pylist()
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        array = array_of(value, where)
        if array.ndim:
            return array
    elif isinstance(value, Sequence) and not isinstance(value, _NO_LISTS):
        return list(value)
    raise TypeError(f"{where} is a list, not {type(value).__name__}")


def _joined(parts: list[Any]) -> Any:  # noqa: ANN401
    """The items of all lists."""
    known = [part for part in parts if part is not None]
    if len(known) == 1:
        return known[0]
    return [item for part in known for item in part]


def _built(kind: Any, missing: list[bool], buffers: list[Any], children: list[Any]) -> Any:  # noqa: ANN401
    pa = pyarrow()
    bitmap = None
    if any(missing):
        bitmap = pa.py_buffer(np.packbits(~np.array(missing), bitorder="little"))
    return pa.Array.from_buffers(kind, len(missing), [bitmap, *buffers], children=children)


def _times(wanted: Any) -> Maker:  # noqa: ANN401
    """Dates, times, timestamps and durations: counts of the type's unit."""
    name = f"i{wanted.bit_width}"
    stored = pyarrow().int32() if wanted.bit_width == 32 else pyarrow().int64()
    types = pyarrow().types
    is_date = types.is_date(wanted)
    unit_ns = _DAY_NS if types.is_date32(wanted) else _UNIT_NS[getattr(wanted, "unit", "ms")]
    whole_ns = _DAY_NS if is_date else unit_ns

    def count(value: Any, where: str) -> int | None:  # noqa: ANN401
        value = _known(value, where)
        if value is None or (isinstance(value, np.datetime64 | np.timedelta64) and np.isnat(value)):
            return None
        if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
            return int(value)
        passed_ns = _passed_ns(value, wanted, where)
        if passed_ns is None or passed_ns % whole_ns:
            unit = "days" if is_date else wanted.unit
            raise ValueError(f"{where} is {wanted}, and {value!r} is not a whole number of {unit}")
        return passed_ns // unit_ns

    def make(values: Any, where: str) -> Any:  # noqa: ANN401
        counts = [count(each, where) for each in values]
        missing = [each is None for each in counts]
        known = array_of([each or 0 for each in counts], where)
        return _array(exact(known, name, where), missing, stored).view(wanted)

    return make


def _passed_ns(value: Any, wanted: Any, where: str) -> int | None:  # noqa: ANN401
    """Nanoseconds since 1970, midnight, or in all; None if they are not whole."""
    types = pyarrow().types
    if types.is_duration(wanted):
        if isinstance(value, np.timedelta64):
            return _numpy_ns(value)
        if isinstance(value, datetime.timedelta):
            return _delta_ns(value) + getattr(value, "nanoseconds", 0)
    elif types.is_time(wanted):
        if isinstance(value, datetime.time):
            if value.tzinfo is not None:
                raise ValueError(f"{where} is {wanted}, and {value!r} has a time zone")
            since = datetime.datetime.combine(_EPOCH.date(), value) - _EPOCH
            return _delta_ns(since)
    elif isinstance(value, datetime.datetime):
        return _since_epoch_ns(value, wanted, where)
    elif isinstance(value, np.datetime64):
        _check_zone(False, value, wanted, where)
        return _numpy_ns(value)
    elif isinstance(value, datetime.date) and types.is_date(wanted):
        return (value - _EPOCH.date()).days * _DAY_NS
    _refuse(value, wanted, where)


def _since_epoch_ns(value: datetime.datetime, wanted: Any, where: str) -> int:  # noqa: ANN401
    _check_zone(value.tzinfo is not None, value, wanted, where)
    epoch = _EPOCH if value.tzinfo is None else _EPOCH.replace(tzinfo=datetime.UTC)
    nanosecond = getattr(value, "nanosecond", 0)  # Of pandas.
    if nanosecond:
        value = value.replace(nanosecond=0)  # type: ignore[call-arg]
    return _delta_ns(value - epoch) + int(nanosecond)


def _check_zone(has_zone: bool, value: Any, wanted: Any, where: str) -> None:  # noqa: ANN401
    wants_zone = getattr(wanted, "tz", None) is not None
    if has_zone != wants_zone:
        what = "has a time zone" if has_zone else "has no time zone"
        raise ValueError(f"{where} is {wanted}, and {value!r} {what}")


def _delta_ns(delta: datetime.timedelta) -> int:
    return (delta.days * 86_400 + delta.seconds) * 10**9 + delta.microseconds * 1000


def _numpy_ns(value: np.datetime64 | np.timedelta64) -> int | None:
    unit, step = np.datetime_data(value.dtype)
    if unit in ("Y", "M") and isinstance(value, np.datetime64):
        value, unit, step = value.astype("M8[D]"), "D", 1
    number = int(value.astype(np.int64)) * step
    if unit in _PARTS_OF_NS:
        number, rest = divmod(number, _PARTS_OF_NS[unit])
        return None if rest else number
    factor = _NUMPY_NS.get(unit)
    return None if factor is None else number * factor


def _refuse(value: Any, wanted: Any, where: str) -> NoReturn:  # noqa: ANN401
    raise TypeError(f"{where} is {wanted}, not {type(value).__name__}")
