"""The one conversion of users' values to stored ones: exact, or an error that names the column.

Every way to write a record converts its values here: rows, rows of Arrow's types, tables, packing.

| type | takes |
|---|---|
| bool | booleans |
| integers | integers and booleans in the range of the type |
| floats | floats that are not too large, rounded to the nearest; integers that are exact in it |
| bf16 | as floats; uint16 of NumPy, as which bf16 is read, is its bits |
| utf8 | `str` |
| bytes | what shows its bytes, except `str` and single numbers; also a tensor of any type |

Numbers are Python's, NumPy's, those of ml_dtypes, a tensor's, or in lists and tuples of these. A
value that is masked or null is refused: a masked array, an array of Arrow with nulls, None.
"""

import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ffrecord._tables.schema import DTYPES, Column

# Objects that show their bytes as they are; arrays of any type, contiguous or not.
BytesLike = bytes | bytearray | memoryview | npt.NDArray[Any]
Array = npt.NDArray[Any]
Converter = Callable[[Any], BytesLike]

_U16 = np.dtype(np.uint16)
_DTYPES = {name: np.dtype(code) for name, code in DTYPES.items()}
# The bits of a mantissa: each integer up to 1 << bits is exact.
_MANTISSA_BITS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}
_EXACT_IN_F64 = 1 << 53
# The kinds of NumPy's types that a type takes; integers, and booleans, if it is none of these.
_TAKEN = {"bool": "b", **dict.fromkeys(_MANTISSA_BITS, "biuf")}
_SEQUENCES = (list, tuple)
# In lists of these only, nothing is masked or null, and NumPy loses no more than large integers.
_PLAIN = {int, float, bool}
# Python's own numbers are packed without an array, integers not as floats, for `struct` would round
# them. A number that it refuses goes the long way, to an error that names the column.
_CODES = {
    int: dict(u8="B", i8="b", u16="H", i16="h", u32="I", i32="i", u64="Q", i64="q"),
    float: dict(f16="e", f32="f", f64="d"),
}
_PACKED_ITEMS_MAX = 256


class UnfitError(ValueError):
    """A number does not fit its column; `at` is its place among the numbers."""

    def __init__(self, text: str, at: int) -> None:
        """The error of the number at a place."""
        super().__init__(text)
        self.at = at


def in_row(row: int, error: Exception) -> Exception:
    """The same error with the row in its text."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"row {row}: {error}")


def converter(column: Column) -> Converter:
    """The function that makes the bytes of a column of a value.

    It raises ValueError and TypeError, which name the column.
    """
    where = f"column '{column.name}'"
    if column.type in ("utf8", "bytes"):
        return _text_converter(where) if column.type == "utf8" else _bytes_converter(where)
    if not column.shape:
        return _scalar_converter(column)
    dtype, shape = column.dtype, column.shape
    packs = _packs(column.type, shape[0]) if len(shape) == 1 else {}

    def convert(value: Any) -> BytesLike:  # noqa: ANN401 - whatever a user gives
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return np.ascontiguousarray(value)
        pack = packs.get(_type_in(value)) if type(value) is list else None
        if pack is not None:
            try:
                return pack(*value)
            except (struct.error, OverflowError):
                pass
        return numbers(column, value)

    return convert


def _type_in(values: list[Any]) -> type | None:
    """The type that all values have; None if there are several."""
    kinds = set(map(type, values))
    return kinds.pop() if len(kinds) == 1 else None


def _packs(kind: str, count: int) -> dict[type | None, Callable[..., bytes]]:
    """The packers for so many numbers of one type of Python's."""
    if count > _PACKED_ITEMS_MAX:
        return {}
    return {
        known: struct.Struct(f"<{count}{names[kind]}").pack
        for known, names in _CODES.items()
        if kind in names
    }


def _text_converter(where: str) -> Converter:
    def convert(value: Any) -> BytesLike:  # noqa: ANN401 - whatever a user gives
        if type(value) is str and value.isascii():
            return value.encode()
        return text(value, where)

    return convert


def _bytes_converter(where: str) -> Converter:
    def convert(value: Any) -> BytesLike:  # noqa: ANN401 - whatever a user gives
        return value if type(value) is bytes else as_buffer(value, where)

    return convert


def _scalar_converter(column: Column) -> Converter:
    packs = _packs(column.type, 1)
    dtype = column.dtype

    def convert(value: Any) -> BytesLike:  # noqa: ANN401 - whatever a user gives
        if (pack := packs.get(type(value))) is not None:
            try:
                return pack(value)
            except (struct.error, OverflowError):
                pass
        if isinstance(value, np.generic) and value.dtype == dtype:
            return value.data
        return numbers(column, value)

    return convert


def numbers(column: Column, value: Any) -> Array:  # noqa: ANN401 - whatever a user gives
    """The value of a column of numbers, as the file has it.

    Raises:
        ValueError: the shape differs, a number does not fit the type, or is masked or null.
        TypeError: the value is no number of that kind, such as a fraction for an integer.
    """
    where = f"column '{column.name}'"
    array = array_of(value, where)
    if array.shape != column.shape:
        raise ValueError(f"{where} has shape {column.shape}, the value has {array.shape}")
    return np.ascontiguousarray(exact(array, column.type, where))


def text(value: Any, where: str) -> bytes:  # noqa: ANN401 - whatever a user gives
    """Text as UTF-8.

    Raises:
        TypeError: it is no text.
        ValueError: it has halves of surrogate pairs, which UTF-8 has not.
    """
    if not isinstance(value, str):
        raise TypeError(f"{where} is utf8, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {value[:40]!r} is no text of UTF-8: {error}") from None


def as_buffer(value: Any, where: str = "the record") -> BytesLike:  # noqa: ANN401 - anything
    """The bytes of `value`, contiguous; no copy if they are contiguous already.

    Raises:
        TypeError: it has no bytes: text, a number of Python or NumPy, a list, an array of objects
            or texts.
        ValueError: some of it is masked or null.
    """
    if type(value) is bytes or isinstance(value, bytes | bytearray):
        return value
    if not isinstance(value, np.ndarray):
        if isinstance(value, str):
            raise TypeError(f"{where} is bytes, not {type(value).__name__}: encode the text")
        if isinstance(value, np.generic) and not isinstance(value, np.void):
            kind = type(value).__name__
            raise TypeError(f"{where} is bytes, not {kind}: for its bytes, give its tobytes()")
        try:
            view = memoryview(value)
        except (TypeError, BufferError):
            if not hasattr(value, "__array__"):
                kind = type(value).__name__
                raise TypeError(f"{where} is bytes or an array, not {kind}") from None
        else:
            return view if view.c_contiguous else view.tobytes()
    array = array_of(value, where, as_bits=True)
    if array.dtype.hasobject or array.dtype.kind == "U":
        raise TypeError(f"{where} is bytes, and an array of objects or texts has none to store")
    array = np.ascontiguousarray(array)
    # Times, and types that NumPy has not itself, show no buffer.
    return array.view(np.uint8) if array.dtype.kind in "mMV" else array


def as_bytes(buffer: BytesLike) -> bytes:
    """A copy, unless they are bytes; `bytes` would take an integer for a count."""
    if isinstance(buffer, np.ndarray):
        return buffer.tobytes()
    return buffer if isinstance(buffer, bytes) else memoryview(buffer).tobytes()


def key_of(key: Any) -> bytes:  # noqa: ANN401 - whatever a user gives
    """The bytes of a key; none for None.

    Raises:
        TypeError: it is neither text nor bytes; a number would be taken for so many zero bytes.
        ValueError: it is empty.
    """
    if key is None:
        return b""
    if isinstance(key, str):
        encoded = text(key, "the key")
    elif isinstance(key, bytes | bytearray | memoryview):
        encoded = bytes(key)
    else:
        raise TypeError(
            f"the key {key!r:.40} is of type {type(key).__name__}; keys are str or bytes, such as "
            f"str(key)"
        )
    if not encoded:
        raise ValueError("the key is empty; a key has at least one byte")
    return encoded


# Values that may be masked, or have such values in them.
_HOLDERS = (np.ma.MaskedArray, list, dict)


def may_be_masked(value: Any) -> bool:  # noqa: ANN401 - anything
    """Whether `unmasked` may change it."""
    return isinstance(value, _HOLDERS)


def unmasked(value: Any) -> Any:  # noqa: ANN401 - anything
    """The value with None for what is masked in it, as readers give nulls in lists.

    An item of numbers with a shape that is masked as a whole is one null.
    """
    if isinstance(value, dict):
        return {name: unmasked(each) for name, each in value.items()}
    if isinstance(value, list):
        return [unmasked(each) for each in value] if any(map(may_be_masked, value)) else value
    if not isinstance(value, np.ma.MaskedArray):
        return value
    mask = np.ma.getmaskarray(value)
    if not mask.any():
        return value.data
    if value.ndim == 0:
        return None
    return [
        None if gone.all() and gone.size else unmasked(each)
        for each, gone in zip(value, mask, strict=True)
    ]


def array_of(value: Any, where: str, as_bits: bool = False) -> Array:  # noqa: ANN401 - anything
    """The value as an array of NumPy, of which nothing is lost.

    Args:
        value: whatever a user gives.
        where: the column, for errors.
        as_bits: bytes are wanted: of a type that NumPy lacks, as torch's bfloat16.

    Raises:
        ValueError: some of it is masked or null, or lists in it have several lengths.
        TypeError: it has no numbers that this process can read.
    """
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            if np.ma.getmaskarray(value).any():
                raise ValueError(f"{where} has a masked value: fill it, or leave it out")
            return value.data
        return value
    if isinstance(value, _SEQUENCES):
        return _of_sequence(value, where)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, where, as_bits)
    if _has_null(value):
        raise ValueError(f"{where} has a null: fill it, or leave it out")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        kind = type(value).__name__
        raise TypeError(f"{where}: a {kind} has no numbers to store: {error}") from None
    return array if as_bits else _widened(array)


def _has_null(value: Any) -> bool:  # noqa: ANN401 - whatever a user gives
    """Whether an array of Arrow, polars or pandas lacks a value, for which NumPy would have NaN."""
    nulls = getattr(value, "null_count", 0)  # Of polars it is a method.
    if nulls() if callable(nulls) else nulls:
        return True
    is_pandas = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "isna")
    return is_pandas and not isinstance(value.dtype, np.dtype) and bool(value.isna().any())


def _widened(array: Array) -> Array:
    """Numbers of ml_dtypes, which NumPy does not know, as those that hold them."""
    if array.dtype.kind != "V" or array.dtype.type.__module__ != "ml_dtypes":
        return array
    return array.astype(np.int8 if "int" in array.dtype.name else np.float32)


def _of_sequence(value: Sequence[Any], where: str) -> Array:
    kinds = set(map(type, value))
    if kinds <= _PLAIN:
        array = np.asarray(value)
        if array.dtype.kind == "f" and int in kinds and not _fit_in_f64(value):
            return np.array(value, object)
        return array
    parts = [array_of(each, where) for each in value]
    if len({part.shape for part in parts}) > 1:
        raise ValueError(f"{where}: the lists in it have several lengths")
    found = {part.dtype for part in parts}
    if len(found) > 1 and {dtype.kind for dtype in found} != {"f"}:
        parts = [part.astype(object) for part in parts]  # NumPy would make floats of integers.
    return np.stack(parts)


def _fit_in_f64(value: Sequence[Any]) -> bool:
    return all(type(v) is not int or -_EXACT_IN_F64 <= v <= _EXACT_IN_F64 for v in value)


def _of_tensor(torch: Any, value: Any, where: str, as_bits: bool) -> Array:  # noqa: ANN401
    """The numbers of a tensor on any device; those of types that NumPy lacks are f32."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError):
        pass  # It has a gradient, or is on a device, or of such a type.
    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if tensor.dtype not in (torch.float16, torch.float32, torch.float64):
            if as_bits and tensor.is_floating_point():
                # One of a single element is contiguous with any stride.
                flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
                tensor = flat.view(torch.uint8)
            elif tensor.is_floating_point():
                tensor = tensor.float()
        return np.asarray(tensor.numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise TypeError(f"{where}: NumPy cannot have such a tensor: {error}") from None


def exact(array: Array, kind: str, where: str) -> Array:
    """The array with the type of a column; bf16 is uint16 with the same bits.

    Args:
        array: of any numbers.
        kind: the name of the type, such as "i64".
        where: the column, for errors.

    Raises:
        UnfitError: a number does not fit the type; a float is too large, or an integer not exact.
        TypeError: the numbers are of another kind, such as fractions for integers.
    """
    dtype = _DTYPES[kind]
    if array.dtype == dtype:
        return array
    array = _widened(array)
    if not array.size:
        return np.empty(array.shape, dtype)
    if array.dtype.kind == "O":
        array = _of_objects(array, kind, where)
    if array.dtype.kind not in _TAKEN.get(kind, "biu"):
        raise TypeError(f"{where} is {kind}, the value is {array.dtype}")
    if kind == "bf16" and array.dtype.newbyteorder("=") == _U16:
        return array.astype(dtype)  # Bits, in the other byte order.
    if kind != "bf16" and np.can_cast(array.dtype, dtype) and array.dtype.kind in dtype.kind + "b":
        return array.astype(dtype)
    if kind in _MANTISSA_BITS:
        return _floats(array, kind, where)
    if dtype.kind in "iu":
        least, most = _limits(kind)
        if int(array.min()) < least or int(array.max()) > most:
            wrong = [not least <= each <= most for each in array.reshape(-1).tolist()]
            _refuse_first(wrong, array, kind, where)
    return array.astype(dtype)


def _of_objects(array: Array, kind: str, where: str) -> Array:
    """Numbers of Python that NumPy has in no one type, such as 1 and 2 ** 63 in a list."""
    values = array.reshape(-1).tolist()
    is_float = kind in _MANTISSA_BITS
    known = int | np.integer | float | np.floating if is_float else int | np.integer
    for at, value in enumerate(values):
        if not isinstance(value, known):
            raise TypeError(f"{where} is {kind}, the value has a {type(value).__name__}")
        if not is_float and not _limits(kind)[0] <= value <= _limits(kind)[1]:
            raise UnfitError(f"{where}: {value!r} does not fit {kind}", at)
    if not is_float:
        return np.array(values, _DTYPES[kind]).reshape(array.shape)
    try:
        made = np.array(list(map(float, values)))
    except OverflowError:
        raise UnfitError(f"{where}: a number does not fit {kind}", 0) from None
    _check_integers(values, _rounded(made, kind), kind, where)
    return made.reshape(array.shape)


def _limits(kind: str) -> tuple[int, int]:
    limits = np.iinfo(_DTYPES[kind])
    return int(limits.min), int(limits.max)


def _floats(array: Array, kind: str, where: str) -> Array:
    made = _rounded(array, kind)
    if array.dtype.kind in "iu":
        largest = max(int(array.max()), -int(array.min()))
        if largest > 1 << _MANTISSA_BITS[kind]:
            _check_integers(array.reshape(-1).tolist(), made, kind, where)
        return made
    lost = (made & 0x7FFF) == 0x7F80 if kind == "bf16" else np.isinf(made)
    if np.count_nonzero(lost) and (lost & np.isfinite(array)).any():  # Faster than any().
        _refuse_first(lost & np.isfinite(array), array, kind, where)
    return made


def _rounded(array: Array, kind: str) -> Array:
    """Rounded to the nearest; what is too large is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bf16_bits(array) if kind == "bf16" else array.astype(_DTYPES[kind])


def _check_integers(values: list[Any], made: Array, kind: str, where: str) -> None:
    """Check that the integers among the values are exact in what was made of them."""
    found = made.reshape(-1)
    found = bf16_numbers(found) if kind == "bf16" else found
    for at, (value, number) in enumerate(zip(values, found.tolist(), strict=True)):
        if isinstance(value, int) and value != number:
            raise UnfitError(
                f"{where}: the integer {value} is not exact in {kind}; float({value}) would be "
                "rounded",
                at,
            )


def bf16_bits(array: Array) -> npt.NDArray[np.uint16]:
    """Numbers as the bits of bf16, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).reshape(array.shape)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if not np.count_nonzero(is_nan):
        return rounded
    # Rounding could carry a NaN over to infinity: it is cut instead, and kept a quiet NaN.
    return np.where(is_nan, (bits >> 16 | 0x40).astype("<u2"), rounded)


def bf16_numbers(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers that bits of bf16 stand for: the upper halves of f32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def _refuse_first(wrong: npt.ArrayLike, array: Array, kind: str, where: str) -> NoReturn:
    at = int(np.flatnonzero(wrong)[0])
    number = array.reshape(-1)[at].item()
    raise UnfitError(f"{where}: {number!r} does not fit {kind}", at)
