"""Arrays and tensors as memory: NumPy, torch and DLPack, without importing torch."""

import dataclasses
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord import _ffrecord
from ffrecord.checkpoint._values import Kind

# Element types of format.md and their sizes in bytes.
ITEM_SIZES = _ffrecord.checkpoint_item_sizes()

# Types that may become each other where a load is asked to convert.
_FRACTIONS = frozenset(
    name
    for name in ITEM_SIZES
    if name.startswith(("float16", "float32", "float64", "bfloat", "float8"))
)

# torch can neither copy nor convert such elements: they are moved as bytes.
_BYTES_ONLY = frozenset(f"{sign}int{bits}" for sign in ("u", "") for bits in range(1, 8))


@dataclasses.dataclass(frozen=True)
class Memory:
    """Contiguous, row-major bytes on the CPU; `owner` keeps them alive."""

    dtype: str
    shape: tuple[int, ...]
    address: int
    size_bytes: int
    owner: object


def torch_if_imported() -> Any:  # noqa: ANN401 (a module that may not be there)
    """The module torch, or None: a program that has not imported it has no tensors."""
    return sys.modules.get("torch")


# Kinds of the types that states are made of; torch's join them as they are met.
_kinds: dict[type, Kind] = {np.ndarray: Kind.ARRAY}
_strided: object = None  # torch's layout, by then.


# The kind of tensors of exactly this type, if they were met before.
known_kind = _kinds.get


def kind_of(value: object) -> Kind | None:
    """The kind of tensor that `value` is; None if it is none."""
    if (known := known_kind(type(value))) is not None:
        return known
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            global _strided
            _strided = torch.strided
            _kinds[type(value)] = Kind.TORCH
        return Kind.TORCH
    if isinstance(value, np.generic):
        return Kind.SCALAR
    if isinstance(value, np.ndarray) or hasattr(value, "__dlpack__"):
        return Kind.ARRAY
    return None


# Names of torch's element types, as they are met.
_torch_names: dict[object, str] = {}


def describe(value: object, kind: Kind | None = None) -> tuple[str, tuple[int, ...]]:
    """Name of the element type, and shape; `kind` if it is known.

    Raises:
        TypeError: elements of that type, or a tensor of that form, cannot be saved as bytes.
    """
    if (kind_of(value) if kind is None else kind) is Kind.TORCH:
        return _describe_torch(value)
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("a masked array would lose its mask: save its data and its mask")
    array = as_array(value)
    name = array.dtype.name
    if ITEM_SIZES.get(name) != array.dtype.itemsize:
        raise TypeError(f"elements of type {array.dtype} would need pickling")
    return name, array.shape


def _describe_torch(tensor: Any) -> tuple[str, tuple[int, ...]]:  # noqa: ANN401 (torch.Tensor)
    torch: Any = sys.modules["torch"]
    if type(tensor) is not torch.Tensor and (
        hasattr(tensor, "_local_tensor") or hasattr(tensor, "local_shards")
    ):
        raise TypeError(f"{type(tensor).__name__} is distributed: pass it itself, not in a Shard")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(
            f"{type(tensor).__name__} is a subclass of torch.Tensor that has no plain bytes: "
            "save the tensors that it is made of, or a plain tensor made of it"
        )
    if tensor.is_nested:
        raise TypeError("a nested tensor has no plain bytes: save the tensors of its unbind()")
    if torch.nn.parameter.is_lazy(tensor):
        raise TypeError(
            f"{type(tensor).__name__} has no elements yet: run the module once, which makes them"
        )
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"a {tensor.layout} {tensor.device.type} tensor has no plain bytes")
    if tensor.data_ptr() == 0 and tensor.numel() > 0:
        raise TypeError("the tensor's memory was released: gather it first, as FSDP does")
    name = _torch_names.get(tensor.dtype)
    if name is None:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in ITEM_SIZES:
            raise TypeError(f"elements of type {tensor.dtype} cannot be saved")
        _torch_names[tensor.dtype] = name
    return name, tuple(tensor.shape)


def look_at(value: object, kind: Kind) -> tuple[str, tuple[int, ...], int | None]:
    """The results of `describe` and `plain_address` at once: states have tensors by the 100,000.

    Raises:
        TypeError: as `describe`.
    """
    if kind is Kind.TORCH:
        tensor: Any = value
        name = _torch_names.get(tensor.dtype)
        if (
            name is not None
            and type(tensor) in _kinds
            and tensor.is_cpu
            and tensor.layout is _strided
            and not tensor.is_nested
            and tensor.is_contiguous()
            and not tensor.is_conj()
            and not tensor.is_neg()
            and (address := tensor.data_ptr()) != 0
        ):
            return name, tuple(tensor.shape), address
    name, shape = describe(value, kind)
    return name, shape, plain_address(value)


def as_array(value: object) -> npt.NDArray[Any]:
    """A NumPy view of an array, a NumPy scalar or a DLPack object on the CPU."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return np.from_dlpack(value)  # type: ignore[arg-type]


def movable(tensor: Any) -> Any:  # noqa: ANN401 (torch.Tensor)
    """The same memory with elements that torch can copy."""
    name = _torch_names.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
    return tensor.view(sys.modules["torch"].uint8) if name in _BYTES_ONLY else tensor


def memory_of(value: object) -> Memory:
    """The bytes of `value`; a copy if it is strided, foreign in byte order, or on a device."""
    dtype, shape = describe(value)
    if kind_of(value) is Kind.TORCH:
        tensor: Any = value
        tensor = tensor.detach().resolve_conj().resolve_neg()
        tensor = (movable(tensor) if dtype in _BYTES_ONLY else tensor).cpu().contiguous()
        return Memory(dtype, shape, tensor.data_ptr(), tensor.nbytes, tensor)
    array = as_array(value)
    array = np.require(array, dtype=array.dtype.newbyteorder("="), requirements="C")
    return Memory(dtype, shape, array.ctypes.data, array.nbytes, array)


def is_plain(value: object) -> bool:
    """Whether `memory_of` is the value's own memory and not a copy."""
    return plain_address(value) is not None


def plain_address(value: object) -> int | None:
    """Where the bytes of `value` are; None if `memory_of` would have to copy them."""
    if kind_of(value) is Kind.TORCH:
        tensor: Any = value
        if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            return None
        return int(tensor.data_ptr())
    if not isinstance(value, np.ndarray):
        return None  # The memory of a view of it may end with the view.
    array = as_array(value)
    if not array.flags.c_contiguous or not array.dtype.isnative:
        return None
    return int(array.ctypes.data)


def has_elements_apart(value: Any) -> bool:  # noqa: ANN401
    """Whether no two elements can share memory, as those of an expanded tensor do."""
    if kind_of(value) is Kind.TORCH:
        strides, item_size = value.stride(), 1
    else:
        strides, item_size = value.strides, value.itemsize
    reach = 0  # From the first element to the last, along the dimensions with smaller strides.
    for stride, size in sorted(
        (abs(stride), size) for stride, size in zip(strides, value.shape, strict=True) if size > 1
    ):
        if stride < reach + item_size:
            return 0 in value.shape
        reach += stride * (size - 1)
    return True


class Destination:
    """Where the bytes of one tensor go: into `value` itself, or by way of a buffer.

    Raises:
        TypeError: as `describe`, or `value` cannot be written.
    """

    def __init__(self, value: object, dtype: str | None = None) -> None:
        """Data to read has the element type `dtype`; None: that of `value`."""
        self.value: Any = value
        self._is_direct = self.is_direct(value, dtype)
        self.memory = memory_of(value if self._is_direct else self._buffer(dtype))

    @staticmethod
    def is_direct(value: object, dtype: str | None = None) -> bool:
        """Whether there is no buffer; raises as the constructor does."""
        own_dtype, _ = describe(value)
        writeable = isinstance(value, np.ndarray) and value.flags.writeable
        if kind_of(value) is not Kind.TORCH and not writeable:
            raise TypeError(f"{type(value).__name__} cannot be written in place")
        if is_plain(value):
            return dtype is None or dtype == own_dtype
        if not has_elements_apart(value):
            raise TypeError("its elements share memory, so it cannot be filled: clone it")
        return False

    def _buffer(self, dtype: str | None) -> object:
        if kind_of(self.value) is Kind.TORCH:
            torch = torch_if_imported()
            elements = getattr(torch, dtype) if dtype else self.value.dtype
            return torch.empty(self.value.shape, dtype=elements)
        return np.empty(self.value.shape, dtype or self.value.dtype.newbyteorder("="))

    def finish(self) -> None:
        """Move the data into `value`."""
        if self._is_direct:
            return
        if kind_of(self.value) is Kind.TORCH:
            movable(self.value.detach()).copy_(self.memory.owner)
        else:
            self.value[...] = self.memory.owner


def empty(kind: Kind, dtype: str, shape: tuple[int, ...], as_torch: bool) -> object:
    """A fresh array, or a torch tensor if it was one and `as_torch`.

    Raises:
        TypeError: NumPy has no such elements and torch is not imported.
    """
    torch = torch_if_imported()
    if as_torch and kind is Kind.TORCH and torch is not None:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    numpy_dtype = _numpy_dtype(dtype)
    if numpy_dtype is not None:
        return np.empty(shape, numpy_dtype)
    if torch is None:
        raise TypeError(f"NumPy has no {dtype}: import ml_dtypes or torch first, or pass a state")
    return torch.empty(shape, dtype=getattr(torch, dtype))


def is_castable(stored: str, wanted: str) -> bool:
    """Whether a load may convert such elements: floating-point numbers, whatever their size."""
    return stored != wanted and {stored, wanted} <= _FRACTIONS


def check_castable(wanted: str | None) -> None:
    """Raise ValueError if nothing can be converted to `wanted`."""
    if wanted is not None and wanted not in _FRACTIONS:
        names = ", ".join(sorted(_FRACTIONS))
        raise ValueError(f"dtype is {wanted!r}: floating-point elements can become {names}")


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    try:
        return np.dtype(name)
    except TypeError:
        found = getattr(sys.modules.get("ml_dtypes"), name, None)
        return None if found is None else np.dtype(found)
