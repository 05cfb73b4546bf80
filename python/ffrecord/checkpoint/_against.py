"""Whether a checkpoint has the tensors of another one, or of a file, by their digests.

Digests were made of the tensors as they were when they were saved. They do not depend on the mesh
that saved, so two steps are compared without reading a tensor.
"""

import math
import os
import re
from typing import Any, NamedTuple

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint._difference import leaves
from ffrecord.checkpoint._safetensors import read_header
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._tensor_names import below, tensors_by_name
from ffrecord.checkpoint._tensors import ITEM_SIZES
from ffrecord.checkpoint._values import TensorRef, decode
from ffrecord.errors import CorruptionError

# A step of the same target, a target and its step, TARGET/step-000001200, or a safetensors file.
Against = int | tuple[Target, int] | Target

_READ_SIZE = 16 << 20
_STEP_OF = re.compile(r"(.+)/step-(\d{9,})/*")


class _Tensor(NamedTuple):
    """A tensor; equal if the other has the same elements."""

    dtype: str
    shape: tuple[int, ...]
    digest: int


def differences(
    reader: _ffrecord.CheckpointReader, target: Target, against: Against, timeout_s: float
) -> list[str]:
    """One message for each tensor that the checkpoint does not have as the other does.

    Raises:
        FileNotFoundError: there is no such step or file.
        ValueError: `against` is of no known form.
        CorruptionError: the other is damaged.
    """
    if isinstance(against, str | os.PathLike) and (file := _file_at(against)):
        there = _of_file(file)
        mine = _named_as(reader, there)
        return _differences(mine, there, os.path.basename(file), only_there=True)
    where, step = _step_at(target, against)
    other = _ffrecord.CheckpointReader(where, step, timeout_s)
    name = f"step {step}" if where == target_from_root(target) else f"step {step} of {where}"
    here, there = _of_step(reader), _of_step(other)
    if here.keys() != there.keys():  # Ties may differ, and then a path says more than a key.
        here, there = _by_path(reader), _by_path(other)
    return _differences(here, there, name, only_there=False)


def _differences(
    mine: dict[str, _Tensor], there: dict[str, _Tensor], name: str, *, only_there: bool
) -> list[str]:
    found = [f"tensor {key} is in {name}, and not here" for key in there if key not in mine]
    if not only_there:
        found += [f"tensor {key} is here, and not in {name}" for key in mine if key not in there]
    for key, tensor in mine.items():
        other = there.get(key)
        if other is None or tensor == other:
            continue
        if tensor[:2] != other[:2]:
            kinds = f"{tensor.dtype} {list(tensor.shape)} here, {other.dtype} {list(other.shape)}"
            found.append(f"tensor {key} is {kinds} in {name}")
        else:
            found.append(f"tensor {key} has other elements than in {name}")
    return found


def _file_at(against: Target) -> str | None:
    """The path of a safetensors file; None if it is a step."""
    path = os.fsdecode(against)
    is_step = _STEP_OF.fullmatch(path) is not None
    return path if not is_step and (path.endswith(".safetensors") or os.path.isfile(path)) else None


def _step_at(target: Target, against: Against) -> tuple[str, int]:
    if isinstance(against, tuple):
        return target_from_root(against[0]), step_number(against[1])
    if isinstance(against, int):
        return target_from_root(target), step_number(against)
    if named := _STEP_OF.fullmatch(os.fsdecode(against)):
        return target_from_root(named[1]), int(named[2])
    raise ValueError(
        f"against is {against!r}, must be a step, a target and its step, TARGET/step-000001200 or "
        "a safetensors file"
    )


def _of_step(reader: _ffrecord.CheckpointReader) -> dict[str, _Tensor]:
    """By key. Reads the tensors of a step that was saved without digests."""
    found = {}
    for (key, dtype, shape), digest in zip(reader.tensors, reader.digests, strict=True):
        made = _read_digest(reader, key, dtype, shape) if digest is None else digest
        found[key] = _Tensor(dtype, tuple(shape), made)
    return found


def _read_digest(reader: _ffrecord.CheckpointReader, key: str, dtype: str, shape: list[int]) -> int:
    row_size = math.prod(shape[1:]) * ITEM_SIZES[dtype]
    rows_at_once = max(1, _READ_SIZE // max(1, row_size))
    count = shape[0] if shape else 1
    digest = 0
    for begin in range(0, count if row_size else 0, rows_at_once):
        rows = min(rows_at_once, count - begin)
        offset = [begin, *[0] * (len(shape) - 1)] if shape else []
        extent = [rows, *shape[1:]] if shape else []
        room = np.empty(rows * row_size, np.uint8)
        reader.read([(key, offset, extent, room.ctypes.data, room.nbytes)])
        digest ^= _ffrecord.tensor_digest(room.ctypes.data, room.nbytes, begin * row_size)
    return digest


def _of_file(path: str) -> dict[str, _Tensor]:
    """By name. Reads the whole file."""
    found = {}
    room = np.empty(_READ_SIZE, np.uint8)
    with open(path, "rb") as file:
        entries, _, data_begin = read_header(file, path)
        for name, dtype, shape, begin, end in entries:
            file.seek(data_begin + begin)
            digest = 0
            for at in range(0, end - begin, _READ_SIZE):
                part: Any = room[: min(_READ_SIZE, end - begin - at)]
                if file.readinto(part.data) != part.nbytes:
                    raise CorruptionError(f"{path}: became shorter while it was read")
                digest ^= _ffrecord.tensor_digest(part.ctypes.data, part.nbytes, at)
            found[name] = _Tensor(dtype, tuple(shape), digest)
    return found


def _by_path(reader: _ffrecord.CheckpointReader) -> dict[str, _Tensor]:
    """By all paths of the state, or by key where it does not refer to them.

    A tensor with two names is stored once; another step may have two that are equal.
    """
    tensors = _of_step(reader)
    keys = {
        path: leaf.key
        for path, leaf in leaves(decode(reader.structure))
        if isinstance(leaf, TensorRef)
    }
    found = {path: tensors[key] for path, key in keys.items()}
    return found | {key: tensors[key] for key in tensors.keys() - keys.values()}


def _named_as(reader: _ffrecord.CheckpointReader, there: dict[str, _Tensor]) -> dict[str, _Tensor]:
    """The tensors under the names that a file has: those of all, or below one path.

    Where several paths have as many of the names, as of a model and its average, it is the one with
    the most equal tensors.
    """
    here = _of_step(reader)
    tree = decode(reader.structure)
    best: dict[str, _Tensor] = {}
    most = 0, 0
    for path in ["", *map(str, tree)] if isinstance(tree, dict) else [""]:
        try:
            refs = tensors_by_name(below(tree, path))
        except ValueError:
            continue
        found = {name: here[ref.key] for name, ref in refs.items() if name in there}
        fits = len(found), sum(tensor == there[name] for name, tensor in found.items())
        if fits > most:
            best, most = found, fits
    return best
