"""The tensors of one step by name, read when and as far as they are wanted."""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._layouts import is_distributed
from ffrecord.checkpoint._pieces import read_into
from ffrecord.checkpoint._restore import Restorer
from ffrecord.checkpoint._state import Shard
from ffrecord.checkpoint._steps import tell_skipped, wanted_step
from ffrecord.checkpoint._tensor_names import below, tensors_by_name
from ffrecord.checkpoint._tensors import ITEM_SIZES, check_castable, empty, is_castable, kind_of
from ffrecord.checkpoint._values import Kind, TensorRef, decode
from ffrecord.errors import CorruptionError

Step = int | Literal["latest"]


def open(
    target: Target,
    *,
    step: Step = "latest",
    prefix: str = "",
    as_torch: bool = False,
    timeout_s: float = 30.0,
) -> "Weights":
    """Open the tensors of a step; reads its manifests and no tensor.

    Args:
        target: a folder, `ffrecord://host[:port]/run`, `s3://bucket/run` or a replicated target.
        step: which step; "latest" is the newest that is whole. If newer ones are damaged, a warning
            says so.
        prefix: show only what is below this path of the state, such as "model", with names from
            there on.
        as_torch: return torch tensors, if torch is imported; else NumPy arrays where NumPy has such
            elements.
        timeout_s: for each call to a daemon or store.

    Raises:
        FileNotFoundError: there is no such step, or no checkpoint at all.
        ValueError: nothing is below the prefix, or two tensors would get one name.
        CorruptionError: a manifest fails a check.
    """
    reader = _ffrecord.CheckpointReader(target_from_root(target), wanted_step(step), timeout_s)
    tell_skipped(reader, 2)
    return Weights(reader, prefix, as_torch)


class Weights(Mapping[str, "Weight"]):
    """The tensors of one step, by name: parts of a path are joined by dots.

    Made by `open`. Every block that is read is verified. Reads of several threads run beside each
    other.

    Attributes:
        commit: step, attempt and size of the checkpoint.
    """

    def __init__(self, reader: _ffrecord.CheckpointReader, prefix: str, as_torch: bool) -> None:
        """Made by `open`."""
        self.commit = Commit(*reader.commit)
        self._reader, self._as_torch = reader, as_torch
        self._stored = {key: (dtype, tuple(shape)) for key, dtype, shape in reader.tensors}
        self._refs = tensors_by_name(below(decode(reader.structure), prefix))
        for name, ref in self._refs.items():
            if ref.key not in self._stored:
                raise CorruptionError(f"{name}: the checkpoint has no tensor {ref.key}")

    def __getitem__(self, name: str) -> "Weight":
        ref = self._refs[name]
        return Weight(self._reader, name, ref, *self._stored[ref.key], self._as_torch)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        return f"Weights({len(self)} tensors of step {self.commit.step})"

    def read(
        self, names: Iterable[str] | None = None, *, dtype: str | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Read whole tensors, one at a time, in the given order.

        Args:
            names: which; None: all.
            dtype: convert floating-point elements to this type, such as "bfloat16".

        Raises:
            KeyError: the step has no tensor of such a name.
            ValueError: `dtype` is no type of floating-point elements.
            CorruptionError: stored bytes fail a check; names tensor and file.
        """
        for name in self._refs if names is None else names:
            yield name, self[name].read(dtype=dtype)

    def fill(self, into: Mapping[str, object], *, cast: bool = False) -> None:
        """Read into arrays and tensors that exist; only what they need, and without a second copy.

        Args:
            into: names, each with an array or tensor of the whole shape, a `Shard` or a DTensor, of
                which the parts of this rank are read.
            cast: convert floating-point elements where the buffer has them of another type.

        Raises:
            MismatchError: names that the step lacks, and other types or shapes; nothing is read.
            CorruptionError: stored bytes fail a check; names tensor and file. Buffers may be partly
                filled.
        """
        for name, value in into.items():
            if not _can_be_filled(value):
                raise TypeError(f"{name}: {type(value).__name__} cannot be filled")
        restorer = Restorer(self._reader, 0, 1, False, cast)
        tree = {name: self._refs[name] for name in into if name in self._refs}
        restorer.into(dict(into), tree)
        restorer.check(strict=True)
        restorer.read()


def _can_be_filled(value: object) -> bool:
    is_tensor = kind_of(value) not in (None, Kind.SCALAR)
    return is_tensor or isinstance(value, Shard) or is_distributed(value)


class Weight:
    """One tensor of a step; indexing it reads.

    Attributes:
        name: as in `Weights`.
        dtype: the name of the type of its elements, such as "bfloat16".
        shape: of the whole tensor.
    """

    def __init__(
        self,
        reader: _ffrecord.CheckpointReader,
        name: str,
        ref: TensorRef,
        dtype: str,
        shape: tuple[int, ...],
        as_torch: bool,
    ) -> None:
        """Made by `Weights`."""
        self.name, self.dtype, self.shape = name, dtype, shape
        self._reader, self._ref, self._as_torch = reader, ref, as_torch

    @property
    def size_bytes(self) -> int:
        """Size of the whole tensor, as it is stored."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]

    def __repr__(self) -> str:
        return f"Weight({self.name}: {self.dtype} {self.shape})"

    def __getitem__(self, index: object) -> Any:  # noqa: ANN401 (an array or a tensor)
        """Read a slice: integers, slices of step 1 and an Ellipsis, as of an array.

        Raises:
            IndexError: it is beyond the shape, or of another kind.
            CorruptionError: stored bytes fail a check; names tensor and file.
        """
        return self.read(index)

    def read(self, index: object = (), *, dtype: str | None = None) -> Any:  # noqa: ANN401
        """Read a slice, the whole by default; with `dtype`, floating-point elements as these.

        Raises:
            ValueError: `dtype` is no type of floating-point elements.
            IndexError: as indexing.
            CorruptionError: as indexing.
        """
        check_castable(dtype)
        made_of = dtype if dtype and is_castable(self.dtype, dtype) else self.dtype
        offset, extent, shape = self._box(index)
        made: Any = empty(Kind.TORCH, made_of, extent, self._as_torch)
        wanted = (self._ref.key, offset, extent, made)
        read_into(self._reader, [wanted], {self._ref.key: self.dtype})
        return made.reshape(shape)

    def _box(self, index: object) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Offset and extent of what an index says, and the shape without what integers choose."""
        parts = list(index) if isinstance(index, tuple) else [index]
        gaps = [at for at, part in enumerate(parts) if part is Ellipsis]
        if len(gaps) > 1:
            raise IndexError(f"{self.name}: an index has one Ellipsis at most")
        at = gaps[0] if gaps else len(parts)
        rest = len(self.shape) - (len(parts) - len(gaps))
        if rest < 0:
            raise IndexError(f"{self.name}: {self.shape} has no {len(parts)} dimensions")
        parts[at : at + 1] = [slice(None)] * rest
        offset, extent, shape = [], [], []
        for part, size in zip(parts, self.shape, strict=True):
            begin, count, is_kept = self._range(part, size)
            offset.append(begin)
            extent.append(count)
            shape += [count] if is_kept else []
        return tuple(offset), tuple(extent), tuple(shape)

    def _range(self, part: Any, size: int) -> tuple[int, int, bool]:  # noqa: ANN401
        if isinstance(part, slice):
            begin, end, step = part.indices(size)
            if step != 1:
                raise IndexError(f"{self.name}: a slice has step 1, not {step}")
            return begin, max(0, end - begin), True
        try:
            number = operator.index(part)
        except TypeError:
            kind = type(part).__name__
            raise IndexError(
                f"{self.name}: an index is made of integers and slices, not of {kind}"
            ) from None
        if isinstance(part, bool) or not -size <= number < size:
            raise IndexError(f"{self.name}: index {part!r} is beyond {self.shape}")
        return number % size, 1, False


def named_after(target: str, suffix: str) -> str:
    """Another target, whose name is that of this one and a suffix."""
    place, mark, options = target.partition("?") if "://" in target else (target, "", "")
    return f"{place.rstrip('/')}{suffix}{mark}{options}"
