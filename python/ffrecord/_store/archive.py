"""Copies of sealed files in an object store, or wherever checkpoints can be saved."""

import errno
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

import ffrecord.checkpoint as ckpt
from ffrecord._base.addresses import (
    CATALOGUE,
    SCHEME,
    VERSION,
    Target,
    below,
    split_version,
)
from ffrecord._base.background_copies import Copying
from ffrecord._base.destination import destination_path
from ffrecord._base.folders import sync_folder
from ffrecord._ffrecord import list_steps
from ffrecord._read.locations import Where, expand, normalise
from ffrecord._read.reader import open as open_records
from ffrecord._store.catalogue_document import (
    Document,
    has_versions,
    is_count,
    is_file_name,
    read,
)
from ffrecord.checkpoint._steps import newest_on_line
from ffrecord.errors import ConflictError, CorruptionError

Progress = Callable[[int, int], object]
# So much of a file is compared at a time.
_COMPARED_BYTES = 64 << 20
# How often a file is sent again because others have sent another one of its name meanwhile.
_TRIES_MAX = 5


def push(
    files: Where,
    target: Target,
    *,
    timeout_s: float = 30.0,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Store sealed files at `target` as one dataset, the newest there; `pull` fetches it.

    Each file is committed like a checkpoint that holds its bytes; the list of files is committed
    last, so a reader sees the old dataset or the new one. Files that an earlier push has sent, even
    one that failed or was killed, are not sent again. If the dataset is the newest already, nothing
    is written.

    Args:
        files: as for `ffrecord.open`, but local; their names without the folders must differ.
        target: `s3://bucket/name`, or another target of `ffrecord.checkpoint.save`.
        timeout_s: for each call, retries included.
        dry_run: only find out which files would be sent.
        progress: called with bytes done and bytes in all.

    Returns:
        The names of the files that were sent.

    Raises:
        CorruptionError: opening a file shows that it is damaged.
        ConflictError: the dataset has versions, and needs one.
        ValueError: two files have one name, or `target` is no target.
        OSError: a file cannot be read, or the target cannot be written.
    """
    where = os.fsdecode(target)
    if has_versions(where, timeout_s):
        raise ConflictError(
            errno.EEXIST,
            f"{where} has versions, or had some; give the files one, with ffrecord publish "
            "--version",
        )
    sent, listed = store_files(
        files, where, timeout_s=timeout_s, dry_run=dry_run, progress=progress
    )
    if dry_run:
        return sent
    newest = newest_on_line(where, timeout_s)
    if newest is None or not _is_list(where, newest, listed, timeout_s):
        step = 0 if newest is None else newest + 1
        ckpt.save(where, step, {"files": listed}, group="alone", timeout_s=timeout_s)
    return sent


def store_files(
    files: Where,
    where: str,
    *,
    timeout_s: float,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Store each file at `where` that is not there yet; no list of files names them afterwards.

    Returns:
        The names of the files that were sent, and for each file the facts that identify it there.
    """
    paths = [pathlib.Path(os.fsdecode(path)) for path in expand(normalise(files))]
    names = [path.name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two files are called {twice[0]}: in a dataset names are unique")
    if CATALOGUE in names:
        raise ValueError(f"a file of a dataset cannot be called {CATALOGUE}; rename it")
    list_steps(where, timeout_s)  # It raises if this is no target, or does not answer.
    total, done = sum(path.stat().st_size for path in paths), 0
    sent: list[str] = []
    listed: dict[str, dict[str, Any]] = {}
    for path in paths:
        facts = _facts(path)
        run = below(where, path.name)
        commit = _find(run, facts, timeout_s)
        if commit is None:
            sent.append(path.name)
            if not dry_run:
                commit = _send(path, run, facts, timeout_s)
        if commit is not None:
            listed[path.name] = {"step": commit.step, **facts}
        done += facts["size_bytes"]
        if progress is not None:
            progress(done, total)
    return sent, listed


def pull(
    target: Target,
    folder: str | os.PathLike[str],
    *,
    version: str | None = None,
    timeout_s: float = 30.0,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Fetch the newest dataset that `push` stored at `target` into `folder`.

    Each file appears whole, with every block verified. Existing files of the same size and content,
    by their indexes, are left alone; other files of the same names are replaced.

    Args:
        target: as for `push`.
        folder: created if missing.
        version: a version of the dataset, or a tag; None: the newest.
        timeout_s: for each call, retries included.
        dry_run: only find out which files would be fetched.
        progress: called with bytes done and bytes in all.

    Returns:
        The names of the files that were fetched.

    Raises:
        FileNotFoundError: there is no dataset, or no such version.
        CorruptionError: a stored file is damaged; it does not appear in `folder`.
        ValueError: `target` is no target, or has a dataset that is opened, or `folder` is an
            address.
    """
    where, into = os.fsdecode(target), destination_path(folder, "the folder")
    listed = newest_list(where, timeout_s, version)
    if dry_run:
        return [name for name, facts in listed.items() if not is_there(into / name, facts)]
    into.mkdir(parents=True, exist_ok=True)
    total, done = sum(facts["size_bytes"] for facts in listed.values()), 0
    brought: list[str] = []
    for name, facts in listed.items():
        if bring(into / name, where, facts, timeout_s):
            brought.append(name)
        done += facts["size_bytes"]
        if progress is not None:
            progress(done, total)
    return brought


class Mirror(Copying[list[str]]):
    """Keeps copies of sealed files at a target, made while more of them are written.

        with archive.Mirror("shards", "s3://bucket/shards") as mirror:
            for number, samples in enumerate(parts):
                with ffrecord.Writer(f"shards/{number:05}.ffr") as writer:
                    ...
                mirror.start()

    Each round is a `push`: the files that are there then are the newest dataset at the target. One
    process of a dataset has a Mirror. Thread-safe.
    """

    def __init__(self, files: Where, target: Target, *, timeout_s: float = 30.0) -> None:
        """Start and send nothing yet; the arguments are those of `push`."""
        self.files, self.target, self.timeout_s = files, target, timeout_s
        super().__init__()

    def sync(self) -> list[str]:
        """Push; return the names of the files that were sent."""
        return push(self.files, self.target, timeout_s=self.timeout_s)


def newest_list(
    where: str, timeout_s: float, version: str | None = None
) -> dict[str, dict[str, Any]]:
    """The files of the newest dataset, or of a version, by name, with the facts that identify each.

    Raises:
        FileNotFoundError: there is no dataset, or no such version.
        CorruptionError: the stored object is damaged, or not a list of files. An older list is
            another dataset.
    """
    if where.startswith(SCHEME) and split_version(where)[1] is not None:
        raise _opened(where)
    document = read(where, timeout_s)
    if version is not None or document.versions:
        return _files_of_version(document, version)
    newest = newest_on_line(where, timeout_s)
    if newest is None:
        raise FileNotFoundError(_no_dataset(where))
    return _list_of(where, newest, timeout_s)


def bring(path: pathlib.Path, where: str, facts: dict[str, Any], timeout_s: float) -> bool:
    """Make `path` the file that is listed at `where`; return whether it was not before."""
    if is_there(path, facts):
        return False
    _bring(path, below(where, path.name), facts, timeout_s)
    return True


def is_there(path: pathlib.Path, facts: dict[str, Any]) -> bool:
    """Whether `path` is exactly that file, by its size and its indexes."""
    try:
        found = _facts(path)
    except (OSError, CorruptionError):
        return False
    return all(found[key] == facts[key] for key in found)


def is_stored(path: pathlib.Path, where: str, facts: dict[str, Any], timeout_s: float) -> bool:
    """Whether the copy of a file that is listed at `where` has the same bytes; reads both.

    Returns:
        False if the file is another one by now, or changes meanwhile.

    Raises:
        CorruptionError: the copy is damaged, or not all there.
        OSError: it cannot be read now.
    """
    run, size = below(where, path.name), facts["size_bytes"]
    before = _stamp_of(path)
    try:
        is_same = _has_stored(path, run, facts["step"], size, timeout_s)
    except (CorruptionError, FileNotFoundError) as error:
        raise CorruptionError(
            f"{path} stays: its copy at {run}, step {facts['step']}, is damaged ({error}). Remove "
            "that step with ffrecord.checkpoint.remove, and push the file again"
        ) from None
    return is_same and is_there(path, facts) and _stamp_of(path) == before


def is_listed(name: object, facts: object) -> bool:
    """Whether this is a valid entry in a list of files: a name without folders, and all facts."""
    kinds = {"step": int, "size_bytes": int, "fingerprint": str}
    return (
        is_file_name(name)
        and isinstance(facts, dict)
        and {key: type(value) for key, value in facts.items()} == kinds
        and is_count(facts["size_bytes"])
        and is_count(facts["step"])
    )


def sync(path: pathlib.Path) -> None:
    """Sync a file to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _facts(path: pathlib.Path) -> dict[str, Any]:
    """The facts that tell one sealed file from another of the same name."""
    with open_records(path) as reader:
        return {"size_bytes": path.stat().st_size, "fingerprint": reader.fingerprint}


def _find(run: str, facts: dict[str, Any], timeout_s: float) -> ckpt.Commit | None:
    """The commit of a file that was sent before."""
    for commit in reversed(ckpt.list(run, timeout_s=timeout_s)):
        if commit.damage or commit.size_bytes != facts["size_bytes"]:
            continue
        stored: Any = ckpt.load(
            run,
            {"facts": None},
            step=commit.step,
            strict=False,
            group="alone",
            resume=False,
            timeout_s=timeout_s,
        )
        if stored["facts"] == facts:
            return commit
    return None


def _send(path: pathlib.Path, run: str, facts: dict[str, Any], timeout_s: float) -> ckpt.Commit:
    """Store a file as the next step, whatever step others who send files of its name are at."""
    state = {"content": np.memmap(path, "uint8", "r"), "facts": facts}
    for tries in range(1, _TRIES_MAX + 1):
        step = max(list_steps(run, timeout_s), default=-1) + 1  # Also behind damaged ones.
        try:
            return ckpt.save(run, step, state, group="alone", timeout_s=timeout_s)
        except ConflictError:
            if tries == _TRIES_MAX or step not in list_steps(run, timeout_s):
                raise
    raise AssertionError  # The last try has returned or raised.


def _stamp_of(path: pathlib.Path) -> tuple[int, ...]:
    """The facts of a file that differ once it is written or replaced."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _has_stored(path: pathlib.Path, run: str, step: int, size: int, timeout_s: float) -> bool:
    """Whether a file has the bytes that a step has; reads both, piece by piece."""
    with open(path, "rb") as file:
        for begin in range(0, size, _COMPARED_BYTES):
            piece = np.empty(min(_COMPARED_BYTES, size - begin), "uint8")
            ckpt.load(
                run,
                {"content": ckpt.Shard(piece, (size,), (begin,))},
                step=step,
                strict=False,
                group="alone",
                resume=False,
                timeout_s=timeout_s,
            )
            if file.read(piece.size) != piece.data:
                return False
    return True


def _bring(path: pathlib.Path, run: str, facts: dict[str, Any], timeout_s: float) -> None:
    made = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        content = np.memmap(made, "uint8", "w+", shape=(facts["size_bytes"],))
        ckpt.load(
            run,
            {"content": content},
            step=facts["step"],
            strict=False,
            group="alone",
            resume=False,
            timeout_s=timeout_s,
        )
        content.flush()
        del content
        sync(made)
        if not is_there(made, facts):
            raise CorruptionError(f"{run}, step {facts['step']}: not the file that was listed")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    sync_folder(path.parent)


def _opened(address: str) -> ValueError:
    return ValueError(f"{address} is at a daemon: open it, instead of pulling it")


def _no_dataset(where: str) -> str:
    text = f"{where} keeps no dataset; ffrecord push brings one there"
    if where.startswith(SCHEME):
        return f"{text}, and one that was published at a daemon is opened, not pulled"
    place, sign, version = where.rpartition("@")
    if sign and VERSION.fullmatch(version):
        return f"{text}; a version is given apart from its place: {place} --version {version}"
    return text


def _files_of_version(document: Document, version: str | None) -> dict[str, dict[str, Any]]:
    found = document.find(version)
    if document.place.startswith(SCHEME):
        raise _opened(found.address)
    listed = dict(found.stored)
    if not all(is_listed(*each) for each in listed.items()):
        raise CorruptionError(f"{found.address}: the list of its files is damaged")
    return listed


def _is_list(where: str, step: int, listed: dict[str, dict[str, Any]], timeout_s: float) -> bool:
    """Whether a step is this list of files; a damaged one is none."""
    try:
        stored: Any = ckpt.load(where, step=step, group="alone", resume=False, timeout_s=timeout_s)
    except CorruptionError:
        return False
    return _files_of(where, step, stored) == listed


def _list_of(where: str, step: int, timeout_s: float) -> dict[str, dict[str, Any]]:
    """The files of a dataset by name."""
    try:
        stored: Any = ckpt.load(where, step=step, group="alone", resume=False, timeout_s=timeout_s)
    except CorruptionError as error:
        raise CorruptionError(
            f"{where}, step {step}: the newest list of files is damaged ({error}); push the files "
            "again"
        ) from None
    return _files_of(where, step, stored)


def _files_of(where: str, step: int, stored: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """The entries of a list; the names come from outside and become paths."""
    files = stored.get("files") if isinstance(stored, dict) else None
    if not isinstance(files, dict) or not all(is_listed(*each) for each in files.items()):
        raise CorruptionError(f"{where}, step {step}: not the list of a dataset's files")
    return files
