"""Storage for `torch_checkpointing`: its checkpoints durable, and each block with a checksum.

    from ffrecord.torch.torch_checkpointing import CheckedStorageConfig

    CheckpointManager(storage_config=CheckedStorageConfig(), ...)  # Where a StorageConfig goes.

Files stay plain files that any program reads; `.NAME.sums` beside each holds its checksums, which
every read compares. A file appears whole, and is on the disk when its stream is closed; a folder is
renamed and removed in one step. Folders of the local system and network mounts; not `ffrecord://`
or `s3://`, whose addresses the package's trainers refuse.
"""

import io
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from torch_checkpointing.storage.base_storage import (  # type: ignore[import-not-found, unused-ignore]
    ReadArgs,
    Storage,
    StorageConfig,
)

from ffrecord.checkpoint import _checked_files
from ffrecord.checkpoint._checked_files import Verified
from ffrecord.errors import CorruptionError

__all__ = ["CheckedStorage", "CheckedStorageConfig", "Verified", "verify"]

Path = pathlib.Path


def verify(folder: str | os.PathLike[str]) -> Verified:
    """Read every file under a folder and compare it with its checksums.

    Returns:
        How many files are as they were written, which have no checksums, and what is wrong with the
        damaged ones.
    """
    return _checked_files.verify(Path(folder))


@dataclass
class CheckedStorageConfig(StorageConfig):  # type: ignore[misc, unused-ignore]
    """Makes `CheckedStorage`; may be pickled."""

    def create_storage(self) -> "CheckedStorage":
        """Return a storage; nothing is opened."""
        return CheckedStorage()


class CheckedStorage(Storage):  # type: ignore[misc, unused-ignore]
    """The package's storage interface over files with checksums. Any thread may use it."""

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> io.RawIOBase:
        """Return a stream that raises CorruptionError where a block is not what was written."""
        reader = _checked_files.CheckedReader(_local(path))
        known = None if read_args is None else read_args.known_size_bytes
        if known is not None and known != reader.size:
            reader.close()
            raise CorruptionError(f"{path} has {reader.size} bytes, but {known} were expected")
        return reader

    def stream_write(self, path: Path) -> io.RawIOBase:
        """Return a stream whose file appears, durable, when it is closed without an exception."""
        return _checked_files.CheckedWriter(_local(path))

    def write(self, path: Path, data: Any) -> None:  # noqa: ANN401 - any buffer
        """Write a whole file."""
        with self.stream_write(path) as stream:
            stream.write(data)

    def delete(self, path: Path) -> None:
        """Remove a file."""
        _checked_files.remove_file(_local(path))

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Make a folder; with `recursive` those above too, and one that exists is fine."""
        _checked_files.make_folder(_local(path), parents=recursive)

    def rmdir(self, path: Path) -> None:
        """Remove a folder and all that is in it, in one step."""
        _checked_files.remove_folder(_local(path))

    def rename(
        self,
        src_path: Path,
        dst_path: Path,
        is_directory: bool = False,
        background_cleanup: bool = False,
    ) -> None:
        """Move a file or folder to exactly `dst_path`, durably; what is occupied stays."""
        del is_directory, background_cleanup  # A rename copies nothing.
        _checked_files.rename(_local(src_path), _local(dst_path))

    def ls(self, path: Path) -> list[str]:
        """The names in a folder."""
        return _checked_files.names_in(_local(path))

    def exists(self, path: Path) -> bool:
        """Whether a file or folder is there."""
        return _local(path).exists()

    def getsize(self, path: Path) -> int:
        """Bytes of a file."""
        return _local(path).stat().st_size

    def isdir(self, path: Path) -> bool:
        """Whether it is a folder."""
        return _local(path).is_dir()

    def remap_path(self, path: Path) -> str:
        """The path itself."""
        return str(path)


def _local(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if "://" in text or text.startswith(("s3:/", "ffrecord:/")):  # Path("s3://x") has one slash.
        raise ValueError(f"{text}: this storage writes to folders; give a path")
    return Path(text)
