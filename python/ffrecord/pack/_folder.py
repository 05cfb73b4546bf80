"""A folder of classes, as torchvision's ImageFolder expects it: SRC/class/.../file."""

import hashlib
import os
import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffrecord._write.file_rows import FileRanges, FileRows, RowFile, integers, texts
from ffrecord.pack import _places
from ffrecord.pack._cutting import Mark, parts_between
from ffrecord.pack._source import (
    HIDDEN,
    WHOLE,
    InFiles,
    Part,
    Progressed,
    Source,
    SourceOptions,
    check_text,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

# Files read at the same time, of a disk and of a store, and read ahead of the writer in all.
_THREADS, _REQUESTS = 4, 32
_AHEAD_FILES_MAX = 32
_AHEAD_BYTES_MAX = 64 << 20
# Files that the writer reads in one call: between calls it tells how far it is, and Ctrl-C acts.
_GROUP_FILES_MAX, _GROUP_BYTES = 256, 16 << 20
# A record has these bytes beside its name and payload.
_LABEL_BYTES = 8
# Names of parts of a dataset, not of classes.
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
# A folder of datasets is no class. Compressed ones, too.
_DATASETS = re.compile(
    r"\.(tar|tgz|tbz2?|txz|tfrecords?|parquet|arrow|jsonl|ndjson|mds|ffr)(\.(gz|bz2|xz|zst|lz4))?$",
    re.IGNORECASE,
)
# Files that file managers and notebooks leave behind: .DS_Store, .ipynb_checkpoints.


class _File(NamedTuple):
    path: str
    name: str
    label: int
    size_bytes: int
    version: str


def is_folder(path: str) -> bool:
    """Whether it is a folder, of whatever is no other kind."""
    return _places.is_dir(path)


class FolderSource(Source):
    """Label (the class's place among the sorted subfolders), name (relative path), payload."""

    def __init__(self, root: str, options: SourceOptions) -> None:
        """List the files; see `open_source` for arguments and errors."""
        options.allow(root, "a folder of classes", "follow_links", "include", "nested")
        self.schema = {"label": "i64", "name": "utf8", "payload": "bytes"}
        self.key = "name"
        self.skipped = Counter()
        self._root = root
        self._follow_links = options.follow_links
        self._include = options.include
        self._nested = options.nested
        self._gives_files = False
        self.classes = tuple(self._class_names())
        if not self._nested and {name.lower() for name in self.classes} <= _SPLITS:
            raise ValueError(
                f"{root} has {', '.join(self.classes)}, which are not names of classes: pack each "
                f"on its own, such as {os.path.join(root, self.classes[0])}, or use --nested"
            )
        self._files = [
            file
            for label, name in enumerate(self.classes)
            for file in self._walk(os.path.join(root, name), label)
        ]
        if not self._files:
            what = f" that match {', '.join(self._include)}" if self._include else ""
            raise ValueError(
                f"{root} has {len(self.classes)} subfolders but no files in them{what}: "
                f"there is nothing to pack{self._hint()}"
            )
        self.size_bytes = sum(file.size_bytes for file in self._files)

    def samples(self) -> Iterator[Progressed]:
        """Yield the files class by class, each sorted by path, reading some ahead."""
        yield from self.samples_of(Part(0, WHOLE, 0), Counter())

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return runs of files of about this size."""
        numbers = range(len(self._files) + 1)
        behind = accumulate((file.size_bytes for file in self._files), initial=0)
        return parts_between(map(Mark, numbers, behind, numbers), size_bytes)

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield some of the files.

        Raises:
            ValueError: a file has another size or time than when the folder was listed.
        """
        done_bytes = 0
        end = len(self._files) if part.end == WHOLE else part.end
        if part.begin == 0:  # All was listed at once.
            skipped.update(self.skipped)
        files = self._files[part.begin : end]
        if self._gives_files:
            yield from _in_files(files, part.begin)
            return
        for file, (content, version) in self._contents(files):
            if version != file.version or len(content) != file.size_bytes:
                raise _changed(file, len(content))
            done_bytes += len(content)
            yield {"label": file.label, "name": file.name, "payload": content}, done_bytes

    def give_files(self) -> None:
        """Let the writer read the files, if they are on a disk."""
        self._gives_files = not _places.is_address(self._root)

    def stamp(self) -> str:
        """Return a hash of names, sizes and times of all files."""
        found = hashlib.sha256()
        for file in self._files:
            found.update(f"{file.name}\0{file.size_bytes}\0{file.version}\n".encode())
        return found.hexdigest()

    def _contents(self, files: Sequence[_File]) -> Iterator[tuple[_File, tuple[bytes, str]]]:
        from concurrent.futures import ThreadPoolExecutor  # Slow to import.

        ahead: deque[tuple[_File, Future[tuple[bytes, str]]]] = deque()
        ahead_bytes = 0
        count = _REQUESTS if _places.is_address(self._root) else _THREADS
        with ThreadPoolExecutor(count, "ffrecord-pack") as pool:
            try:
                for file in files:
                    ahead.append((file, pool.submit(_places.read, file.path)))
                    ahead_bytes += file.size_bytes
                    while len(ahead) > _AHEAD_FILES_MAX or ahead_bytes > _AHEAD_BYTES_MAX:
                        first, content = ahead.popleft()
                        yield first, content.result()
                        ahead_bytes -= first.size_bytes
                for first, content in ahead:
                    yield first, content.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _class_names(self) -> list[str]:
        names, datasets = [], set()
        with _places.scan(self._root) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    self.skipped[HIDDEN] += 1
                elif entry.is_symlink() and not self._follow_links:
                    self.skipped["symbolic links"] += 1
                elif entry.is_dir():
                    names.append(check_text(entry.name, self._root))
                else:
                    self.skipped["files outside of classes"] += 1
                    datasets |= {found[0] for found in [_DATASETS.search(entry.name)] if found}
        if datasets and not names:
            each = " ".join(os.path.join(self._root, f"*{suffix}") for suffix in sorted(datasets))
            raise ValueError(
                f"{self._root} is a folder of datasets: pack them by their names, {each}"
            )
        if not names:
            raise ValueError(
                f"{self._root} has no subfolders: one for each class is needed{self._hint()}"
            )
        return sorted(names)

    def _walk(self, folder: str, label: int) -> Iterator[_File]:
        found = []
        # For each folder, the real paths of it and of those that it was reached through.
        through = {folder: {_places.real(folder)}}
        for parent, subfolders, names in _places.walk(
            folder, followlinks=self._follow_links, onerror=_raise
        ):
            if not self._follow_links:
                links = [d for d in subfolders if _places.is_link(os.path.join(parent, d))]
                self.skipped["symbolic links"] += len(links)
            hidden = [name for name in (*subfolders, *names) if name.startswith(".")]
            self.skipped[HIDDEN] += len(hidden)
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            if self._follow_links:
                _follow(parent, subfolders, through)
            if parent == folder:
                self._check_class(folder, subfolders, names)
            found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        for path in sorted(found):
            if (file := self._file(path, label)) is not None:
                yield file

    def _check_class(self, folder: str, subfolders: list[str], names: list[str]) -> None:
        """Check that its files are in it, not one level further down, where classes may be."""
        own = [name for name in names if not name.startswith(".")]
        below = [
            name
            for name in subfolders
            if self._follow_links or not _places.is_link(os.path.join(folder, name))
        ]
        if len(below) > 1 and not own and not self._nested:
            raise ValueError(
                f"{folder} has no files but {len(below)} folders, such as {min(below)}: if those "
                "are the classes, pack the folder above them; if not, use --nested"
            )

    def _file(self, path: str, label: int) -> _File | None:
        if self._include and not any(
            fnmatchcase(os.path.basename(path), pattern) for pattern in self._include
        ):
            self.skipped["other names"] += 1
            return None
        is_link, facts = _places.look_at_entry(path)
        if is_link and not self._follow_links:
            self.skipped["symbolic links"] += 1
        elif not is_link and facts is None:
            self.skipped["special files"] += 1
        elif not self._include and _DATASETS.search(path):
            raise ValueError(
                f"{path} is a dataset, in what looks like a folder of classes: pack such files by "
                "their names, or use --include to pack them as files"
            )
        else:
            name = check_text(path.removeprefix(os.path.join(self._root, "")), self._root)
            return _File(path, name, label, *(facts or _places.look(path)))
        return None

    def _hint(self) -> str:
        reasons = [f"{count} {what}" for what, count in self.skipped.items() if count]
        return f" (skipped: {', '.join(reasons)})" if reasons else ""


def _in_files(files: Sequence[_File], first: int) -> Iterator[Progressed]:
    """Yield files for a writer that reads them, many at a time."""
    done_bytes = begin = 0
    while begin < len(files):
        sizes = [file.size_bytes for file in files[begin : begin + _GROUP_FILES_MAX]]
        count = max(1, bisect_right(list(accumulate(sizes)), _GROUP_BYTES))
        group = files[begin : begin + count]
        payloads = np.array(sizes[:count], np.int64)
        numbers = np.arange(count)
        columns = (
            integers([file.label for file in group]),
            texts([file.name for file in group]),
            FileRanges(numbers, np.zeros(count, np.int64), payloads),
        )
        listed = [RowFile(os.fsencode(f.path), f.size_bytes, int(f.version)) for f in group]
        names = np.array([len(file.name) for file in group], np.int64)
        done_bytes += int(payloads.sum())
        yield (
            InFiles(
                FileRows(columns, listed),
                payloads + names + _LABEL_BYTES,
                first + begin,
                changed=lambda row, group=group: _changed(group[row]),  # type: ignore[misc]
            ),
            done_bytes,
        )
        begin += count


def _changed(file: _File, size_bytes: int | None = None) -> ValueError:
    """The error of a file that is not as it was listed."""
    found = _places.size_of(file.path) if size_bytes is None else size_bytes
    if found == file.size_bytes:
        return ValueError(
            f"{file.path} was changed after it was listed: pack the folder when nothing writes to "
            "it any more"
        )
    return ValueError(
        f"{file.path} had {file.size_bytes} bytes and has {found}: pack the folder when nothing "
        "writes to it any more"
    )


def _follow(parent: str, subfolders: list[str], through: dict[str, set[str]]) -> None:
    """Continue with `subfolders`, unless one of them is a folder that contains it."""
    been = through.pop(parent)
    for name in subfolders:
        path = os.path.join(parent, name)
        real = _places.real(path)
        if real in been:
            raise ValueError(
                f"{path} links to {real}, which contains it: the loop has no end; "
                "remove the link, or pack without --follow-links"
            )
        through[path] = been | {real}


def _raise(error: OSError) -> None:
    raise error
