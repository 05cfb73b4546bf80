"""Whether a checkpoint has the tensors of another one, or of a file, by their digests.

Digests were made of the tensors as they were when they were saved. They do not depend on the mesh
that saved, so two steps are compared without reading a tensor.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target, target_from_root
from ffrecord.checkpoint._difference import leaves
from ffrecord.checkpoint._digests import Digested, digested
from ffrecord.checkpoint._named import inside
from ffrecord.checkpoint._safetensors import read_header
from ffrecord.checkpoint._steps import step_number
from ffrecord.checkpoint._tensor_names import tensors_by_name
from ffrecord.checkpoint._values import EachRank, Named, TensorRef, decode
from ffrecord.errors import CorruptionError

# A step of the same target, a target and its step, TARGET/step-000001200, or a safetensors file.
Against = int | tuple[Target, int] | Target

_READ_SIZE = 16 << 20
_STEP_OF = re.compile(r"(.+)/step-(\d{9,})/*")


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
    trees = decode(reader.structure), decode(other.structure)
    names = _paths if _is_torchs(trees[0]) == _is_torchs(trees[1]) else _torchs_names
    here, there = _named(reader, names(trees[0])), _named(other, names(trees[1]))
    return _differences(here, there, name, only_there=False)


def _differences(
    mine: dict[str, Digested], there: dict[str, Digested], name: str, *, only_there: bool
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


def _of_file(path: str) -> dict[str, Digested]:
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
            found[name] = Digested(dtype, tuple(shape), digest)
    return found


def _named(reader: _ffrecord.CheckpointReader, refs: dict[str, TensorRef]) -> dict[str, Digested]:
    """The tensors by all their names: one with two is stored once, and may be two elsewhere."""
    tensors = digested(reader)
    return {name: tensors[ref.key] for name, ref in refs.items()}


def _is_torchs(tree: object) -> bool:
    """Whether torch's planner has saved it, which gives one name to all parts of a path."""
    about = tree.get("dcp") if isinstance(tree, dict) else None
    return isinstance(about, dict) and "planner_data" in about


def _paths(tree: object) -> dict[str, TensorRef]:
    if _is_torchs(tree):
        return _torchs_names(tree)
    return {path: leaf for path, leaf in leaves(tree) if isinstance(leaf, TensorRef)}


def _torchs_names(tree: Any) -> dict[str, TensorRef]:  # noqa: ANN401
    """Names as torch's planner makes them of paths."""
    return tensors_by_name(tree["state"] if _is_torchs(tree) else tree)


def _named_as(
    reader: _ffrecord.CheckpointReader, there: dict[str, Digested]
) -> dict[str, Digested]:
    """The tensors under the names that a file has: those of all, or below one path.

    Where several paths have as many of the names, as of a model and its average, it is the one with
    the most equal tensors.
    """
    here = digested(reader)
    best: dict[str, Digested] = {}
    most = 0, 0
    for part in _parts(decode(reader.structure)):
        try:
            refs = tensors_by_name(part)
        except ValueError:
            continue
        found = {name: here[ref.key] for name, ref in refs.items() if name in there}
        fits = len(found), sum(tensor == there[name] for name, tensor in found.items())
        if fits > most:
            best, most = found, fits
    return best


def _parts(tree: object) -> Iterator[object]:
    """The tree, and all that is below a path of it."""
    yield tree
    if isinstance(tree, EachRank):
        tree = tree.values
    if isinstance(tree, Named):
        tree = inside(tree)
    if isinstance(tree, dict):
        tree = [*tree.values()]
    for child in tree if isinstance(tree, list | tuple) else ():
        if not isinstance(child, TensorRef):
            yield from _parts(child)
