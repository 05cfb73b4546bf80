"""Checkpoints from and to files of the safetensors format.

A file is the size of a header (u64, little-endian), the header (JSON: name to dtype, shape, and
begin and end of the data), and the data. https://huggingface.co/docs/safetensors
"""

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, TypeGuard

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord._base.folders import sync_folder
from ffrecord.checkpoint import _staged as staged
from ffrecord.checkpoint._commit import Commit
from ffrecord.checkpoint._safetensors_file import (
    METADATA,
    NAMES,
    check_folder,
    entry_of,
    front_of,
    write_file,
)
from ffrecord.checkpoint._state import join
from ffrecord.checkpoint._steps import step_number, tell_skipped, wanted_step
from ffrecord.checkpoint._tensor_names import below, tensors_by_name
from ffrecord.checkpoint._tensors import ITEM_SIZES
from ffrecord.checkpoint._values import Kind, TensorRef, decode, encode
from ffrecord.errors import CorruptionError

# The format's own limit, so that no header is worth more memory than that.
HEADER_SIZE_MAX = 100_000_000
_DIMENSIONS_MAX = 64
_SIZE_MAX = 1 << 48
_DTYPES = {name: dtype for dtype, name in NAMES.items()}


def export_safetensors(
    target: Target,
    path: Target,
    *,
    step: int | Literal["latest"] = "latest",
    prefix: str = "",
    overwrite: bool = False,
    dry_run: bool = False,
    timeout_s: float = 30.0,
) -> Commit:
    """Write the tensors of a checkpoint to one file, piece by piece; leaves out small values.

    Args:
        target: where the checkpoint is.
        path: of the file, which appears whole or not at all.
        step: which checkpoint; "latest" is the newest that is whole. If newer ones are damaged, a
            warning says so.
        prefix: export only what is below this path of the state, such as "model", with names from
            there on. Parts of a path are joined by dots.
        overwrite: replace a file of that name.
        dry_run: check all that can be checked without reading tensors, and write nothing.
        timeout_s: for each call to a daemon.

    Raises:
        FileExistsError: the file exists.
        ValueError: nothing is below the prefix, the format has no such elements, or two tensors
            would get one name.
        CorruptionError: stored bytes fail a check; names the file.
    """
    path = os.path.abspath(os.fsdecode(path))
    if not overwrite and os.path.lexists(path):
        why = "there is a file already; remove it or say overwrite"
        raise FileExistsError(errno.EEXIST, why, path)
    check_folder(os.path.dirname(path))
    reader = _ffrecord.CheckpointReader(target, wanted_step(step), timeout_s)
    tell_skipped(reader, 2)
    tree = below(decode(reader.structure), prefix)
    metadata = tree.get(METADATA) if isinstance(tree, dict) else None
    stored = {key: (dtype, shape) for key, dtype, shape in reader.tensors}
    entries = [
        entry_of(name, ref.key, *stored[ref.key], None)
        for name, ref in tensors_by_name(tree).items()
    ]
    front = front_of(entries, metadata if is_text(metadata) else {})
    if not dry_run:
        with _published(path, overwrite) as descriptor:
            write_file(reader, front, entries, descriptor)
    return Commit(*reader.commit)


@contextlib.contextmanager
def _published(path: str, overwrite: bool) -> Iterator[int]:
    """A file that gets its name, durably, when it is complete; after a failure, nothing is left."""
    folder = os.path.dirname(path)
    fd, temporary = tempfile.mkstemp(".tmp", ".ffrecord-", folder)
    try:
        try:
            yield fd
            os.fsync(fd)
            os.fchmod(fd, 0o666 & ~_umask())
        finally:
            os.close(fd)
        if overwrite:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_folder(folder)


def is_text(value: object) -> TypeGuard[dict[str, str]]:
    """Whether it is a dict of strings to strings, as metadata of a file are."""
    return isinstance(value, dict) and all(
        _is_utf8(key) and _is_utf8(item) for key, item in value.items()
    )


def _is_utf8(text: object) -> bool:
    """Whether it is a string without half of a surrogate pair, which JSON can spell."""
    return isinstance(text, str) and not any("\ud800" <= each <= "\udfff" for each in text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def import_safetensors(
    path: Target,
    target: Target,
    step: int,
    *,
    prefix: str = "",
    timeout_s: float = 30.0,
) -> Commit:
    """Save the contents of a file as a checkpoint.

    Args:
        path: of the file.
        target: where the checkpoint goes.
        step: its name there.
        prefix: the key to put everything below, such as "model"; none if empty.
        timeout_s: for each call to a daemon.

    Raises:
        CorruptionError: the file is not of that format, or its header and its data do not fit.
        FileExistsError: the step is committed already.
    """
    step = step_number(step)
    tree: dict[str, object] = {}
    slices = []
    owners = []
    path = os.fsdecode(path)
    with open(path, "rb") as file:
        entries, metadata, data_begin = read_header(file, path)
        for name, dtype, shape, begin, end in entries:
            data = np.empty(end - begin, np.uint8)
            file.seek(data_begin + begin)
            if file.readinto(data.data) != data.nbytes:
                raise CorruptionError(f"{path}: became shorter while it was read")
            key = join(join("", prefix), name) if prefix else join("", name)
            tree[name] = TensorRef(Kind.ARRAY, key)
            extent, zeros = tuple(shape), (0,) * len(shape)
            slices.append((key, dtype, extent, zeros, extent, data.ctypes.data, data.nbytes, True))
            owners.append(data)
    if metadata:
        tree[METADATA] = metadata
    whole: object = {prefix: tree} if prefix else tree
    staged.before_save(target)
    prepared = _ffrecord.PreparedSave(target, step, slices, True, timeout_s, False, None)
    made = Commit(*prepared.commit(encode(whole), None, None))
    staged.saved(target, made, replaces=False)
    return made


def tensor_sizes(path: Target) -> list[int]:
    """The bytes of each tensor of a file, by its header.

    Raises:
        CorruptionError: as `import_safetensors`.
    """
    path = os.fsdecode(path)
    with open(path, "rb") as file:
        return [end - begin for *_, begin, end in read_header(file, path)[0]]


def read_header(
    file: BinaryIO, path: str
) -> tuple[list[tuple[str, str, list[int], int, int]], dict[str, str], int]:
    """Entries (name, dtype, shape, begin, end), ascending in the data; metadata; where data begins.

    Trusts nothing that it has not checked: the file may come from anybody.
    """

    def bad(what: str) -> CorruptionError:
        return CorruptionError(f"{path}: not a safetensors file: {what}")

    file_size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    if len(first) != 8:
        raise bad("it is shorter than 8 bytes")
    header_size = int.from_bytes(first, "little")
    if header_size > min(HEADER_SIZE_MAX, file_size - 8):
        raise bad(f"a header of {header_size} bytes does not fit")
    try:
        header = json.loads(file.read(header_size), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise bad(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise bad("the header is not an object")
    metadata = header.pop(METADATA, {})
    if not is_text(metadata):
        raise bad("its metadata are not strings")
    data_size = file_size - 8 - header_size
    entries = [_entry(name, about, bad) for name, about in header.items()]
    entries.sort(key=lambda entry: entry[3:])
    reached = 0
    for name, _, _, begin, end in entries:
        if begin != reached:
            raise bad(f"the data of {name} begin at {begin}, the data before end at {reached}")
        reached = end
    if reached != data_size:
        raise bad(f"its tensors have {reached} bytes, the file has {data_size}")
    return entries, metadata, 8 + header_size


def _entry(name: str, about: Any, bad: Any) -> tuple[str, str, list[int], int, int]:  # noqa: ANN401
    if not _is_utf8(name) or not 1 <= len(name.encode()) <= 1024:
        raise bad("a name has 1 to 1,024 bytes of UTF-8")
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise bad(f"{name} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise bad(f"{name} is of unknown type {dtype!r}"[:200])
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(
            type(number) is int and 0 <= number < _SIZE_MAX for number in numbers
        ):
            raise bad(f"{name} has a shape or offsets that are not sizes")
    if len(shape) > _DIMENSIONS_MAX or len(offsets) != 2:
        raise bad(f"{name} has {len(shape)} dimensions and {len(offsets)} offsets")
    begin, end = offsets
    size = math.prod(shape) * ITEM_SIZES[_DTYPES[dtype]]
    if end - begin != size:
        raise bad(f"{name} takes {size} bytes, its offsets say {end - begin}")
    return name, _DTYPES[dtype], shape, begin, end


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name appears twice")
    return made
