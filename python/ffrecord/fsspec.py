"""Files and datasets of a daemon as a read-only file system of fsspec."""

from ffrecord._integrations.fsspec import File, FileSystem

__all__ = ["File", "FileSystem"]
