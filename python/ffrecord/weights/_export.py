"""A step as a folder of safetensors files, laid out as Hugging Face's libraries read them.

All ranks compute the same plan from the step's manifests, and each writes whole files of it into a
folder inside one beside the destination. That gets its name when all files are durable. After a
failure or a kill, the same call finds the files that are finished there, and writes the others.

Ranks of the last call may still be writing then: only rank 0 has the lock. So each call has a
folder of its own, into which it moves what is finished, and the folders of others lose their names
first. A late rank finds no folder.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence

import numpy as np

from ffrecord import _ffrecord
from ffrecord._base.addresses import Target
from ffrecord._base.folders import sync_folder
from ffrecord._base.shared_memory import write_all
from ffrecord.checkpoint._activity import Activity, now, watched
from ffrecord.checkpoint._agreement import digest
from ffrecord.checkpoint._loading import _Loader as Opener
from ffrecord.checkpoint._ranks import Ranks, group_of, together
from ffrecord.checkpoint._safetensors import is_text
from ffrecord.checkpoint._safetensors_file import (
    METADATA,
    Entry,
    check_folder,
    entry_of,
    front_of,
    write_file,
)
from ffrecord.checkpoint._tensor_names import below, tensors_by_name
from ffrecord.checkpoint._tensors import ITEM_SIZES, check_castable, torch_if_imported
from ffrecord.checkpoint._values import decode
from ffrecord.weights._reading import Step

_INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Export:
    """The result of an export.

    Attributes:
        step: of the checkpoint.
        attempt: the save that it is; also in the metadata of every file.
        folder: where the files are.
        files: their names, without the index.
        size_bytes: of the tensors.
    """

    step: int
    attempt: str
    folder: str
    files: tuple[str, ...]
    size_bytes: int


def export(
    target: Target,
    folder: Target,
    *,
    step: Step = "latest",
    prefix: str = "",
    dtype: str | None = None,
    file_bytes_max: int = 5 << 30,
    group: Ranks = None,
    dry_run: bool = False,
    timeout_s: float = 30.0,
) -> Export:
    """Write the tensors of a step as `model.safetensors`, or as several files and an index.

    Each rank writes some of the files; all name the same folder of a shared file system. Run it
    outside of the save, in any process that reads the target. If it fails or is killed, call it
    again: files that are finished are kept beside the folder, as `.NAME.ffrecord-export`. If the
    folder holds this export already, nothing is written.

    Args:
        target: where the checkpoint is.
        folder: appears with all files or not at all. It must be absent or empty.
        step: which step; "latest" is the newest that is whole.
        prefix: export only what is below this path of the state, such as "model", with names from
            there on. Parts of a path are joined by dots.
        dtype: convert floating-point elements to this type, such as "bfloat16"; needs torch.
        file_bytes_max: a file has at most so many bytes of tensors, or one tensor. With several
            ranks, files are smaller if some rank had none otherwise.
        group: the ranks that export together. None: all ranks of torch's default process group, if
            there is one. "alone": this process only.
        dry_run: check all that can be checked without reading tensors, and write nothing.
        timeout_s: for each call to a daemon or store.

    Raises:
        FileNotFoundError: there is no such step, or no parent folder.
        FileExistsError: the folder has other files.
        BlockingIOError: another export to this folder is in progress.
        ValueError: nothing is below the prefix, the format has no such elements, or two tensors
            would get one name.
        CorruptionError: stored bytes fail a check; names tensor and file.
        PeerError: another rank failed.
    """
    ranks = group_of(group)
    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    opener = Opener(ranks, timeout_s)
    with watched(ranks, Activity("begins an export")), contextlib.ExitStack() as held:
        opener.begin(target, step, "raise")
        made: list[_Plan] = []

        def prepare() -> list[object]:
            plan = _plan(opener.reader, folder, prefix, dtype, file_bytes_max, size)
            is_done = rank == 0 and _look(plan)
            made.append(plan)
            return [digest((plan, dry_run)), is_done]

        told = together(ranks, prepare)
        plan = made[0]
        if any(each[0] != told[0][0] for each in told):  # type: ignore[index]
            raise ValueError(
                f"the ranks export different files to {plan.export.folder}: they need the same "
                "folder, prefix, dtype, file_bytes_max and dry_run"
            )
        if dry_run or told[0][1]:  # type: ignore[index]
            if rank == 0 and not dry_run:
                _remove_staging(plan)  # A call that was killed at its end left it.
            return plan.export
        begun = together(ranks, lambda: held.enter_context(_begun(plan)) if rank == 0 else None)
        where = os.path.join(plan.staging, str(begun[0]))
        together(ranks, lambda: _write(opener.reader, plan, where, rank, size))
        together(ranks, lambda: _finish(plan, where) if rank == 0 else None)
        return plan.export


class _File:
    """One file of the plan: its name, its tensors in order, and what comes before them."""

    def __init__(self, name: str, entries: Sequence[Entry], metadata: dict[str, str]) -> None:
        # Large elements first: each lies at a multiple of its size, as readers that map it like it.
        self.name = name
        self.entries = sorted(entries, key=lambda entry: -ITEM_SIZES[entry.dtype])
        self.front = front_of(self.entries, metadata)
        self.size_bytes = len(self.front) + sum(entry.size_bytes for entry in entries)

    def __repr__(self) -> str:  # For digests.
        return f"{self.name} {self.front!r}"

    def is_finished(self, folder: str) -> bool:
        """Whether the folder has it, of this very save."""
        try:
            with open(os.path.join(folder, self.name), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                return size == self.size_bytes and file.read(len(self.front)) == self.front
        except (FileNotFoundError, IsADirectoryError):
            return False


@dataclasses.dataclass(frozen=True)
class _Plan:
    """All files of an export; the same on every rank."""

    export: Export
    files: tuple[_File, ...]
    index: bytes  # Empty if there is one file.

    @property
    def staging(self) -> str:
        """Where the files of each call are, in a folder of its own, until all are there."""
        parent, name = os.path.split(self.export.folder)
        return os.path.join(parent, f".{name}.ffrecord-export")


def _plan(
    reader: _ffrecord.CheckpointReader,
    folder: Target,
    prefix: str,
    dtype: str | None,
    file_bytes_max: int,
    ranks: int,
) -> _Plan:
    if file_bytes_max < 1:
        raise ValueError(f"file_bytes_max is {file_bytes_max}, must be at least 1")
    check_castable(dtype)
    stored = {key: (kind, shape) for key, kind, shape in reader.tensors}
    tree = below(decode(reader.structure), prefix)
    entries = [
        entry_of(name, ref.key, *stored[ref.key], dtype)
        for name, ref in tensors_by_name(tree).items()
    ]
    if any(entry.dtype != entry.stored for entry in entries) and torch_if_imported() is None:
        raise TypeError(f"conversion to {dtype} needs torch: import it first")
    step, attempt, _ = reader.commit
    kept = tree.get(METADATA) if isinstance(tree, dict) else None
    metadata = {"format": "pt", **(kept if is_text(kept) else {})}
    metadata |= {"ffrecord.step": str(step), "ffrecord.attempt": attempt}
    metadata["ffrecord.prefix"] = prefix  # Others of the same step may have the same names.
    size = sum(entry.size_bytes for entry in entries)
    lots = list(_lots(entries, min(file_bytes_max, -(-size // ranks))))
    names = ["model.safetensors"]
    if len(lots) > 1:
        names = [f"model-{i:05}-of-{len(lots):05}.safetensors" for i in range(1, len(lots) + 1)]
    files = [_File(name, lot, metadata) for name, lot in zip(names, lots, strict=True)]
    where = os.path.abspath(os.fsdecode(folder))
    if os.path.islink(where):
        where = os.path.realpath(where)  # Only folders can be replaced.
    made = Export(step, attempt, where, tuple(names), size)
    return _Plan(made, tuple(files), _index_of(files, size) if len(files) > 1 else b"")


def _lots(entries: Sequence[Entry], size_max: int) -> Iterator[list[Entry]]:
    """The tensors of each file, in the order of the state; at least one file."""
    lot: list[Entry] = []
    size = 0
    for entry in entries:
        if lot and size + entry.size_bytes > size_max:
            yield lot
            lot, size = [], 0
        lot.append(entry)
        size += entry.size_bytes
    yield lot


def _index_of(files: Sequence[_File], size: int) -> bytes:
    places = {entry.name: file.name for file in files for entry in file.entries}
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    return json.dumps(index, indent=2, ensure_ascii=False).encode() + b"\n"


def _look(plan: _Plan) -> bool:
    """Whether the destination holds this export already; raises if it holds anything else."""
    folder = plan.export.folder
    check_folder(os.path.dirname(folder))
    try:
        found = set(os.listdir(folder))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        why = "there is a file of that name: name a folder that is absent or empty"
        raise FileExistsError(errno.EEXIST, why, folder) from None
    if not found and os.path.ismount(folder):
        why = "the folder is a mount point, which cannot be replaced: name a folder inside of it"
        raise OSError(errno.EBUSY, why, folder)
    if not found:
        return False
    is_there = all(file.is_finished(folder) for file in plan.files)
    if is_there and plan.index:
        path = os.path.join(folder, _INDEX)
        is_there = _INDEX in found and _content(path) == plan.index
    if not is_there:
        why = "the folder has other files: name one that is absent or empty"
        raise FileExistsError(errno.EEXIST, why, folder)
    return True


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def _begun(plan: _Plan) -> Iterator[str]:
    """The name of this call's folder, with what earlier ones have finished of the plan; locked."""
    staging, name = plan.staging, secrets.token_hex(8)
    with contextlib.suppress(FileExistsError):
        os.mkdir(staging)
    descriptor = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, plan)
        os.mkdir(os.path.join(staging, name))
        for other in sorted(set(os.listdir(staging)) - {name}):
            _take_over(plan, os.path.join(staging, other), os.path.join(staging, name))
        yield name
    finally:
        os.close(descriptor)


def _lock(descriptor: int, plan: _Plan) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # One that ended meanwhile has removed the folder.
        if os.path.samestat(os.fstat(descriptor), os.stat(plan.staging)):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    why = "another export to this folder is in progress"
    raise BlockingIOError(errno.EWOULDBLOCK, why, plan.export.folder)


def _take_over(plan: _Plan, found: str, folder: str) -> None:
    """Move the finished files of another call's folder to this one's; remove the rest."""
    if os.path.islink(found) or not os.path.isdir(found):
        os.unlink(found)
        return
    gone = os.path.join(plan.staging, f"{secrets.token_hex(8)}.gone")
    os.rename(found, gone)  # From here on, ranks of that call find nothing by its name.
    for file in plan.files:
        if file.is_finished(gone):
            os.rename(os.path.join(gone, file.name), os.path.join(folder, file.name))
    shutil.rmtree(gone, ignore_errors=True)  # Some network mounts keep what is open elsewhere.


def _write(
    reader: _ffrecord.CheckpointReader, plan: _Plan, where: str, rank: int, size: int
) -> None:
    """Write this rank's files; the largest go first to the rank with the least."""
    loads = [0] * size
    for file in sorted(plan.files, key=lambda file: -file.size_bytes):
        least = loads.index(min(loads))
        loads[least] += file.size_bytes
        if least == rank and not file.is_finished(where):
            now(f"exports {file.name} of step {plan.export.step}")
            _write_file(reader, file, where)
    sync_folder(where)


def _write_file(reader: _ffrecord.CheckpointReader, file: _File, folder: str) -> None:
    path = os.path.join(folder, file.name)
    with _durable(path) as descriptor:
        write_file(reader, file.front, file.entries, descriptor)


@contextlib.contextmanager
def _durable(path: str) -> Iterator[int]:
    """A file that gets its name when it is on the disk; after a failure, nothing is left."""
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _finish(plan: _Plan, where: str) -> None:
    """Give the folder its name."""
    folder = plan.export.folder
    missing = [file.name for file in plan.files if not file.is_finished(where)]
    if missing:
        raise FileNotFoundError(
            errno.ENOENT,
            f"{', '.join(missing[:5])} of the export is not there: do all ranks see this folder?",
            where,
        )
    if plan.index:
        with _durable(os.path.join(where, _INDEX)) as descriptor:
            write_all(descriptor, [np.frombuffer(plan.index, np.uint8)])
    sync_folder(where)
    try:
        os.rename(where, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            why = "something appeared here during the export; name another folder"
            raise FileExistsError(errno.EEXIST, why, folder) from None
        raise
    sync_folder(os.path.dirname(folder))
    _remove_staging(plan)


def _remove_staging(plan: _Plan) -> None:
    """If nothing is in it."""
    with contextlib.suppress(OSError):
        os.rmdir(plan.staging)
