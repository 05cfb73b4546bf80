"""One arm of the loader's benchmark: `arm.py ARM WORKLOAD FOLDER WORKERS`.

It answers each line of its input with a line of JSON: `digest` loads an epoch and says of what;
`go SECONDS RECORDS` loads on for so long, or so many records, whichever is later, but no longer
than a few seconds, after a while that empties what was read ahead; `take BATCHES` loads on, and
`cold RECORDS` says what that took.
"""

import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from batches import Batch, records_of, size_of
from ways import WAYS, Epoch, Task
from workloads import digest

_DRAIN_S = 0.3
_WINDOW_S_MAX, _COLD_S_MAX = 4.0, 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


def family() -> list[int]:
    """This process and its descendants."""
    found = [os.getpid()]
    for pid in found:
        try:
            for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        except OSError:
            continue  # It has ended.
    return found


def cpu_seconds() -> float:
    """User and system time of the family, of its dead members too."""
    ticks = 0
    for pid in family():
        try:
            stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS


def memory_bytes() -> dict[str, int]:
    """Resident bytes of the family: all, shared ones divided; and those that are no file's."""
    sums = {"Pss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    for pid in family():
        try:
            lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in sums:
                sums[name] += int(rest.split()[0]) * 1024
    return {"pss": sums["Pss"], "own": sums["Pss_Anon"] + sums["Pss_Shmem"]}


def endless(epoch: Epoch) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from epoch()


def whole_epoch(epoch: Epoch) -> dict[str, Any]:
    """The contents of an epoch."""
    found, records = 0, 0
    for batch in epoch():
        found += digest(records_of(batch))
        records += len(batch)
    return {"records": records, "digest": found}


def window(
    batches: Iterator[Batch], seconds: float, records_min: int, seconds_max: float
) -> dict[str, Any]:
    """Load on, and say what it took."""
    records = size = 0
    waits: list[float] = []
    batch: Batch = None
    cpu, began = cpu_seconds(), time.perf_counter()
    end = began
    while end - began < seconds or (records < records_min and end - began < seconds_max):
        batch = next(batches)
        records += len(batch)
        size += size_of(batch)
        now = time.perf_counter()
        waits.append(now - end)
        end = now
    used = cpu_seconds() - cpu
    waits.sort()
    return {
        "records": records,
        "bytes": size,
        "seconds": end - began,
        "cpu_seconds": used,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1e3,
        **memory_bytes(),
    }


def main() -> None:
    """Serve until the input ends."""
    # Text that libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
    arm, workload, folder, workers = sys.argv[1:]
    epoch = WAYS[arm](Task(workload, pathlib.Path(folder), int(workers)))
    batches = endless(epoch)
    print(json.dumps({"ready": arm}), file=answers, flush=True)
    for line in sys.stdin:
        command, *numbers = line.split()
        if command == "digest":
            found = whole_epoch(epoch)
        elif command == "take":
            found = {"taken": sum(1 for _ in islice(batches, int(numbers[0])))}
        elif command == "cold":
            found = window(batches, 0, int(numbers[0]), _COLD_S_MAX)
        else:
            until = time.perf_counter() + _DRAIN_S
            while time.perf_counter() < until:
                next(batches)
            found = window(batches, float(numbers[0]), int(numbers[1]), _WINDOW_S_MAX)
        print(json.dumps(found), file=answers, flush=True)
    # Some libraries wait at exit for threads that wait for them; others are ended from outside.
    os._exit(0)


if __name__ == "__main__":
    main()
