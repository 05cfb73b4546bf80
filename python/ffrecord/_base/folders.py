"""Names in folders, and what makes them durable."""

import errno
import os


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable, as far as the system allows.

    A folder that cannot be listed cannot be opened, and some network mounts sync names themselves
    and refuse fsync.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
