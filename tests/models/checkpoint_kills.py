"""A save that replaces a step on a file system that exchanges no names, as NFS and FUSE.

The process is a fork of one that has torch: it refuses itself that system call, and may have itself
killed when it has moved the old step away and not yet put the new one in its place.
"""

import ctypes
import multiprocessing
import platform
import signal
import struct
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

import conftest  # noqa: F401  (puts the built package in front)
from checkpoint_truth import Content
from ffrecord.torch import CheckpointWriter

_CANNOT = 77
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
# Of <linux/seccomp.h>, <linux/filter.h> and <linux/fs.h>.
_KILL, _EINVAL, _ALLOW = 0x80000000, 0x00050000 | 22, 0x7FFF0000
_LOAD, _IF_EQUAL, _IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _FLAGS, _NO_REPLACE = 0, 48, 1
_NO_NEW_PRIVILEGES, _SECCOMP = 38, 22


def _refuse_exchange(kills: bool) -> bool:
    """Refuse renameat2, but for one that replaces nothing, on which the process may die."""
    if platform.machine() not in _RENAMEAT2:
        return False
    code = [
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 4, _RENAMEAT2[platform.machine()]),
        (_LOAD, 0, 0, _FLAGS),
        (_IF_ANY, 0, 1, _NO_REPLACE),
        (_RETURN, 0, 0, _KILL if kills else _EINVAL),
        (_RETURN, 0, 0, _EINVAL),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    described = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_SECCOMP, 2, ctypes.byref(described), 0, 0) == 0)


def _save(run: str, step: int, content: Content, kills: bool) -> None:
    torch.set_num_threads(1)
    if not _refuse_exchange(kills):
        raise SystemExit(_CANNOT)
    tensors = {key: torch.from_numpy(each) for key, each in content.arrays().items()}
    writer = CheckpointWriter(run, step=step, overwrite=True)
    dcp.save(tensors, storage_writer=writer, no_dist=True)


def overwrite(run: Path, step: int, content: Content, *, kills: bool) -> bool | None:
    """Replace a step; returns whether the save came to its end, None if that cannot be tried."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    saver = context.Process(target=_save, args=(str(run), step, content, kills))
    saver.start()
    saver.join()
    if saver.exitcode == _CANNOT:
        return None
    assert saver.exitcode in (0, -signal.SIGSYS, -signal.SIGKILL), f"exit code {saver.exitcode}"
    return saver.exitcode == 0
