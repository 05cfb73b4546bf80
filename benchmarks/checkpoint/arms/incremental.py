"""The bytes that an incremental save writes and sends, in a folder, at a daemon and at a store.

A tenth of every large tensor's rows has changed since the save before.
"""

import contextlib
import itertools
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np
from states import ROOT, tensors_of

REMOTE_BYTES = 256 << 20  # A share of bytes does not depend on how many there are.
_passes = itertools.count()


def incremental_cost(arms: Any) -> dict[str, float]:  # noqa: ANN401 (Arms, of checkpoint.py)
    """Checkpoints in a folder: bytes and times by those of the first one.

    The second one reads what it shares, which a process does once; the third one does not.
    """
    run = arms.fresh("incremental")
    seconds = []

    def save(step: int) -> None:
        began = time.perf_counter()
        arms.ckpt.save(run, step, arms.state, incremental=True)
        seconds.append(time.perf_counter() - began)

    save(1)
    first = occupied(run)
    change(tensors_of(arms.state))
    save(2)
    cost = occupied(run) / first - 1
    change(tensors_of(arms.state))
    save(3)
    shutil.rmtree(run)
    return {
        "incremental_cost": cost,
        "incremental_first_time_cost": seconds[1] / seconds[0],
        "incremental_time_cost": seconds[2] / seconds[0],
        **incremental_at_daemon(arms),
        **incremental_at_store(arms),
    }


def change(tensors: list[Any]) -> None:
    """Change a tenth of the rows of each large one."""
    for tensor in tensors:
        if tensor.nbytes >= 1 << 20:
            tensor[: max(1, len(tensor) // 10)] += 1


def occupied(folder: pathlib.Path) -> int:
    """Bytes on disk, those that have several names once."""
    files = {(path.stat().st_ino, path.stat().st_blocks * 512) for path in folder.rglob("*")}
    return sum(size for _, size in files)


def share(arms: Any, run: str, count: Callable[[], int]) -> float:  # noqa: ANN401
    """The bytes that the second save adds to `count`, by those of the first."""
    state = {f"t{i}": np.ones((1 << 14, 1 << 10), "float32") for i in range(REMOTE_BYTES >> 26)}
    counts = [count()]
    for step in (1, 2):
        arms.ckpt.save(run, step, state, incremental=True, group="alone")
        counts.append(count())
        change(list(state.values()))
    return (counts[2] - counts[1]) / (counts[1] - counts[0])


def incremental_at_daemon(arms: Any) -> dict[str, float]:  # noqa: ANN401
    """Bytes that a daemon stores."""
    data = arms.fresh("incremental-daemon")
    with daemon_at(data) as address:
        found = share(arms, f"{address}/run", lambda: occupied(data))
    shutil.rmtree(data)
    return {"incremental_at_daemon_cost": found}


@contextlib.contextmanager
def daemon_at(data: pathlib.Path) -> Iterator[str]:
    """A daemon with that folder; gives its address."""
    program = shutil.which("ffrecordd")
    if program is None:
        raise harness.Unable("ffrecordd is not in PATH: start this through benchmarks/run")
    with subprocess.Popen(
        [program, "--data", data, "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stderr or ():
                if "event=ready" in line:
                    yield "ffrecord://" + line.split("listen=")[1].split()[0]
                    break
        finally:
            process.terminate()


def incremental_at_store(arms: Any) -> dict[str, float]:  # noqa: ANN401
    """Bytes that a client sends to moto's S3; none where that is not installed."""
    try:
        import moto  # noqa: F401
    except ImportError:
        return {}
    sys.path.append(str(ROOT / "tests" / "python"))
    from object_store import serve

    with contextlib.contextmanager(serve)() as store:
        run = f"s3://bucket/run-{next(_passes)}"  # moto keeps a bucket until its process ends.
        found = share(arms, run, lambda: store.taken_bytes)
    return {"incremental_at_store_cost": found}
