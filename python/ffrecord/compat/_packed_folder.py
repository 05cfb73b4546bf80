"""Folders packed into one file, under the names that code for HFAiLab/ffrecord knows."""

import os
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path, PurePath

from ffrecord._tables.schema import Bytes
from ffrecord.compat._fileio import FileReader, FileWriter
from ffrecord.compat._packed_trailer import DEPTH_MAX, Folder, decode, encode, walk
from ffrecord.errors import BadArgumentError, MissingError, NotPackedError, TrailerError

PathName = str | os.PathLike[str]


class PackedFolder:
    """Files of a packed folder by name. Nothing in the file is unpickled or run."""

    def __init__(self, ffr_file: PathName, check_data: bool = True) -> None:
        """Open the file and read its table of contents.

        Raises:
            NotPackedError: it is a record file, but not a packed folder; a ValueError.
            TrailerError: its table of contents is damaged or hostile; a ValueError as well.
        """
        self.reader = FileReader(ffr_file, check_data)
        if self.reader.n == 0:
            raise NotPackedError(f"{os.fspath(ffr_file)} is not a packed folder: it has no records")
        try:
            trailer = self.reader.read_one(self.reader.n - 1).tobytes()
            self.structure = decode(trailer, self.reader.n - 1)
        except TrailerError as error:
            raise TrailerError(f"{os.fspath(ffr_file)}: {error}") from None
        except NotPackedError as error:
            raise NotPackedError(f"{os.fspath(ffr_file)} is not a packed folder: {error}") from None

    def num_files(self) -> int:
        """Number of files, without folders."""
        return self.reader.n - 1

    def read_one(self, fname: PathName) -> Bytes:
        """The content of a file, uint8 of shape (size,).

        Raises:
            MissingError: there is no such file; an AssertionError.
        """
        return self.reader.read_one(self._index(fname))

    def read(self, fnames: Sequence[PathName]) -> list[Bytes]:
        """The contents of many files, read in one submission."""
        if not isinstance(fnames, list | tuple):
            raise BadArgumentError(f"expected a list of names, not {type(fnames).__name__}")
        return self.reader.read([self._index(name) for name in fnames])

    def exists(self, path: PathName) -> bool:
        """Whether there is a file or folder of that name."""
        return self._find(path) is not None

    def is_file(self, path: PathName) -> bool:
        """Whether there is a file of that name."""
        return isinstance(self._find(path), int)

    def is_dir(self, path: PathName) -> bool:
        """Whether there is a folder of that name."""
        return isinstance(self._find(path), OrderedDict)

    def list(
        self,
        path: PathName | None = None,
        list_file: bool = True,
        list_dir: bool = True,
        recursive: bool = False,
    ) -> list[str | Path]:
        """List a folder in the order of the file: names, or paths below it if recursive.

        Raises:
            MissingError: there is no such folder; an AssertionError.
        """
        folder = self.structure if path is None else self._find(path)
        if folder is None:
            raise MissingError(f"{path} does not exist")
        if isinstance(folder, int):
            raise MissingError(f"{path} is a file, not a directory")
        return _list(folder, list_file, list_dir, recursive)

    def __repr__(self) -> str:
        return f"<ffrecord.PackedFolder: {self.num_files()} files in {self.reader.fnames[0]!r}>"

    def _find(self, path: PathName) -> int | Folder | None:
        entry: int | Folder = self.structure
        for name in PurePath(path).parts:
            if not isinstance(entry, OrderedDict) or name not in entry:
                return None
            entry = entry[name]
        return entry

    def _index(self, fname: PathName) -> int:
        entry = self._find(fname)
        if entry is None:
            raise MissingError(f"{fname} does not exist")
        if not isinstance(entry, int):
            raise MissingError(f"{fname} is a directory, not a file")
        return entry


def pack_folder(folder: PathName, out_file: PathName, verbose: bool = False) -> None:
    """Pack a folder, with subfolders and empty folders, into one version 1 file.

    Follows links; does not keep times and modes. Names are sorted by code point.

    Args:
        folder: the folder to pack.
        out_file: ends in .ffr; an existing file is replaced.
        verbose: name each file on standard error.

    Raises:
        MissingError: `folder` is not a folder; an AssertionError.
        BadArgumentError: folders are nested too deep, for example by a link to itself.
    """
    root = Path(folder).absolute()
    if not root.is_dir():
        raise MissingError(f"{root} is not a directory")
    tree, count = _scan(root, 0, 1)
    width = len(str(count))
    with FileWriter(out_file, count + 1) as writer:
        for parts, index in walk(tree):
            path = root.joinpath(*parts)
            writer.write_one(path.read_bytes())
            if verbose:
                print(f"{index:0{width}d}/{count} {path}", file=sys.stderr, flush=True)
        writer.write_one(encode(tree))


def _scan(folder: Path, first: int, depth: int) -> tuple[Folder, int]:
    """The tree below `folder`, its files numbered from `first` on, and the number after them."""
    if depth > DEPTH_MAX:
        raise BadArgumentError(f"{folder} is nested more than {DEPTH_MAX} deep; does a link loop?")
    tree: Folder = OrderedDict()
    for child in sorted(folder.iterdir(), key=lambda path: path.name):
        if child.is_dir():
            tree[child.name], first = _scan(child, first, depth + 1)
        else:
            tree[child.name] = first
            first += 1
    return tree, first


def _list(folder: Folder, list_file: bool, list_dir: bool, recursive: bool) -> list[str | Path]:
    names: list[str | Path] = []
    for name, entry in folder.items():
        is_file = isinstance(entry, int)
        if list_file if is_file else list_dir:
            names.append(name)
        if recursive and isinstance(entry, OrderedDict):
            names += [Path(name) / below for below in _list(entry, list_file, list_dir, True)]
    return names
