"""Files and datasets of a daemon as a read-only file system of fsspec."""

from ffrecord._integrations.fsspec import File, FileSystem

__all__ = ["File", "FileSystem"]

for _each in (File, FileSystem):
    _each.__module__ = __name__  # Messages and pickles name the public module.
