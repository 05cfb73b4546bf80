"""Formats of the values of a batch; see `Records.with_format`."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ffrecord._tables.nested import mapped
from ffrecord._tables.schema import Column, Kind
from ffrecord._tables.values import bf16_numbers

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["numpy", "bytes", "torch", "arrow"]


def checked(format: str) -> Format:
    """The format, if there is such a one.

    Raises:
        ValueError: there is none of that name.
    """
    for known in get_args(Format):
        if format == known:
            made: Format = known
            return made
    raise ValueError(f"format is {format!r}; it can be {', '.join(get_args(Format))}")


def converter(format: Format) -> Callable[[Any, Column | None], Any]:
    """Makes the values of a column, given as NumPy's, those of "bytes" or "torch".

    The column is None for whole records and for decoded values.
    """
    return _as_bytes if format == "bytes" else _as_tensors


def nested_converter(format: Format) -> Callable[[Any, Kind], Any]:
    """As `converter`, for a nested column."""
    if format == "bytes":
        return partial(mapped, leaf=bytes_of_leaf)
    from ffrecord._tables.tensors import tensors_of_leaf  # Few programs need it.

    return partial(mapped, leaf=tensors_of_leaf)


def _as_bytes(values: Any, column: Column | None) -> Any:  # noqa: ANN401 - as a batch has them
    if column is not None and column.type != "bytes":
        return values
    return [bytes(value) if isinstance(value, np.ndarray) else value for value in values]


def bytes_of_leaf(values: Any, kind: Kind) -> Any:  # noqa: ANN401 - as a batch has them
    """Bytes as `bytes`; all else as it is."""
    return _as_bytes(values, kind.column(""))


def _as_tensors(values: Any, column: Column | None) -> Any:  # noqa: ANN401 - as a batch has them
    from ffrecord._tables.tensors import tensor_of, tensors  # Few programs need it.

    if column is not None and isinstance(values, np.ndarray):
        return tensor_of(values, column)
    return tensors(values)


def as_arrow(values: Any, column: Column | None) -> "pa.Array":  # noqa: ANN401 - as a batch has them
    """Values as an array of pyarrow: numbers without a copy, bytes and text in one block.

    Values of a shape are of Arrow's type for tensors; bf16, which Arrow lacks, is float32.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: Arrow has no type for what a decoder made.
    """
    pa = pyarrow()
    if isinstance(values, np.ndarray):
        if column is not None and column.type == "bf16":
            values = bf16_numbers(values)
        if values.ndim == 1:
            return pa.array(values)
        if values.dtype != np.bool_ and values.size:
            return pa.FixedShapeTensorArray.from_numpy_ndarray(values)
        if values.dtype != np.bool_ and not len(values):
            return _no_tensors(pa, values)
        return pa.array(values.tolist(), _nested(pa, values))
    if all(isinstance(one, np.ndarray) and one.dtype == "u1" and one.ndim == 1 for one in values):
        text = column is not None and column.type == "utf8"  # None of it.
        return pa.array([], pa.string()) if text else _binary(pa, values)
    there = [one for one in values if one is not None]
    shapes = {(one.dtype, one.shape) if isinstance(one, np.ndarray) else None for one in there}
    if len(shapes) == 1 and None not in shapes and there[0].ndim > 1 and there[0].size:
        return _tensors_of_some(pa, values, np.stack(there))
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"values such as {type(values[0]).__name__} have no type of Arrow's ({error}): leave "
            "out their decoder, or their column"
        ) from None


def pyarrow() -> Any:  # noqa: ANN401 - it has no types
    """The package: not imported without need, for it is large, and optional.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyarrow as found
    except ImportError:
        raise ImportError("tables and the format arrow need pyarrow: pip install pyarrow") from None
    return found


def _tensors_of_some(pa: Any, values: list[Any], there: npt.NDArray[Any]) -> Any:  # noqa: ANN401
    """Arrays of one shape, of which some are None; `there` has the others."""
    if there.dtype == np.bool_:
        rows = [None if one is None else one.tolist() for one in values]
        return pa.array(rows, _nested(pa, there))
    is_there = np.array([one is not None for one in values])
    block = np.zeros((len(values), *there.shape[1:]), there.dtype)
    block[is_there] = there
    flat = pa.array(block.reshape(-1))
    of_all = pa.FixedSizeListArray.from_arrays(flat, there[0].size, mask=pa.array(~is_there))
    kind = pa.fixed_shape_tensor(flat.type, there.shape[1:])
    return pa.ExtensionArray.from_storage(kind, of_all)


def _binary(pa: Any, values: list[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Laid end to end: the one copy that they need, for Arrow wants them without gaps."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([value.size for value in values], out=offsets[1:])
    block = np.concatenate(values) if values else np.empty(0, np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def _no_tensors(pa: Any, values: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """An array of the type that it would have with values, so that tables of parts fit together."""
    number, shape = pa.from_numpy_dtype(values.dtype), values.shape[1:]
    storage = pa.array([], pa.list_(number, math.prod(shape)))
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(number, shape), storage)


def _nested(pa: Any, values: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """The type of lists of fixed sizes: for booleans, of which Arrow makes no tensors."""
    made = pa.from_numpy_dtype(values.dtype)
    for size in reversed(values.shape[1:]):
        made = pa.list_(made, size)
    return made
