"""Soaks the loader: tests/soak/loader [--seconds N] [--seed N]. Half an hour by default.

Goal: nothing grows, however often loaders come, go, and are broken off. Method: life after life, a
loader of a random engine, start method, number of workers, world size and source loads a part of an
epoch, which is compared with the order; it is broken off, or one of its workers is killed, or its
daemon is, and the next life goes on from its state at another world size. After each life the
memory of this process (Pss without the pages of files), its descriptors, threads and children are
noted. At the end a line is fitted through each: over the run, memory may grow by 1 % and 4 MiB at
most, and descriptors, threads and children by less than one. The first fifth, in which allocators
and imports settle, is left out. Prints its seed; exit code 1 and the reason if it fails.
"""

# ruff: noqa: E402, I001 - the built package is put in front before it is imported
import argparse
import faulthandler
import gc
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Before numpy and what forks: threads of theirs would be noise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(ROOT / "tests" / "python"))

import conftest  # noqa: F401 - puts it in front
import numpy as np
from daemon import Daemon

import ffrecord
from ffrecord.torch import DataLoader, Dataset, Sampler

COUNT = 6_000
LIFE_S_MAX = 180
SETTLED = 0.2
MEMORY_SHARE_MAX, MEMORY_BYTES_MAX = 0.01, 4 << 20
COUNTED_MAX = 1.0
SAMPLES_MIN = 10


def with_pid(sample: dict[str, Any]) -> tuple[int, int]:
    """What a worker makes of a record: its label, and who made it."""
    assert len(sample["image"]) == 500 + int(sample["label"]) % 3_000
    return int(sample["label"]), os.getpid()


def write(path: pathlib.Path) -> None:
    """A file whose labels are its indices."""
    with ffrecord.Writer(path, {"label": "i64", "image": "bytes"}) as writer:
        for label in range(COUNT):
            writer.write({"label": label, "image": bytes(500 + label % 3_000)})


def children() -> list[int]:
    """Of this process."""
    found: list[int] = []
    for path in pathlib.Path("/proc/self/task").glob("*/children"):
        found += map(int, path.read_text().split())
    return found


def measured() -> dict[str, float]:
    """What must not grow, when nothing is loaded."""
    gc.collect()
    sums = {"Pss_Anon": 0, "Pss_Shmem": 0}
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sums:
            sums[name] += int(rest.split()[0]) * 1024
    return {
        "memory_bytes": sum(sums.values()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "children": len(children()),
    }


class Soak:
    """One life after the other."""

    def __init__(self, rng: random.Random, sources: dict[str, Any], daemon: Daemon) -> None:
        """Begin at the beginning of the first epoch."""
        self.rng = rng
        self.sources = sources
        self.daemon = daemon
        self.state: dict[str, Any] | None = None
        self.happened: dict[str, int] = {}

    def note(self, what: str) -> None:
        """Count what has happened."""
        self.happened[what] = self.happened.get(what, 0) + 1

    def engine(self) -> dict[str, Any]:
        """Options of a loader; spawn is rare, for it takes seconds."""
        kind = self.rng.choices(["inline", "threads", "auto", "workers"], [1, 3, 2, 3])[0]
        self.note(kind)
        workers = self.rng.randint(1, 4)
        if kind == "inline":
            return {}
        if kind == "auto":
            return {"num_workers": workers}
        if kind == "threads":
            return {"mode": "threads", "num_workers": workers}
        method = self.rng.choices(["fork", "forkserver", "spawn"], [6, 2, 1])[0]
        self.note(method)
        stay = self.rng.random() < 0.3
        return {
            "num_workers": min(workers, 1 if method == "spawn" else 4),
            "multiprocessing_context": method,
            "persistent_workers": stay,
        }

    def sampler(self, dataset: Dataset) -> Sampler:
        """At a random rank of a random world, where the last life ended."""
        world = self.rng.choice([1, 2, 3, 4])
        rank = self.rng.randrange(world)
        sampler = Sampler(dataset, 60, seed=3, rank=rank, world_size=world)
        if self.state is not None:
            sampler.load_state_dict(self.state)
        return sampler

    def live(self) -> None:
        """Load a part of an epoch, or all that is left of it."""
        source = self.rng.choices(list(self.sources), [4, 1])[0]
        self.note(source)
        dataset = Dataset(self.sources[source], transform=with_pid)
        sampler = self.sampler(dataset)
        options = self.engine()
        loader = DataLoader(dataset, batch_sampler=sampler, timeout=60, **options)
        expected = self.replica(sampler)
        steps = self.rng.randint(1, 60)
        trouble = self.rng.random()
        batches = iter(loader)
        killed = False
        try:
            for number, (labels, pids) in enumerate(itertools.islice(batches, steps)):
                wanted = next(expected)
                if labels.tolist() != list(wanted):
                    raise AssertionError(f"step {number}: {labels.tolist()} is not {list(wanted)}")
                makers = sorted(set(pids.tolist()) - {os.getpid()})
                if number == 1 and trouble < 0.2 and makers:
                    killed = True
                    self.note("workers killed")
                    os.kill(self.rng.choice(makers), signal.SIGKILL)
                elif number == 1 and trouble < 0.6 and source == "daemon":
                    self.note("daemon killed")
                    self.daemon.kill()
                    self.daemon.start()
        except RuntimeError as error:
            if not killed or not re.search("exited unexpectedly|killed by signal", str(error)):
                raise
        self.state = json.loads(json.dumps(loader.state_dict()))
        del batches, loader

    @staticmethod
    def replica(sampler: Sampler) -> Iterator[list[int]]:
        """The batches that come next, without a loader."""
        replica = Sampler(
            sampler.count, 60, seed=3, rank=sampler._rank, world_size=sampler._world_size
        )
        replica.load_state_dict(sampler.state_dict() | {"fingerprint": None})
        return iter(replica)


def growth(times: np.ndarray, values: np.ndarray) -> float:
    """By how much a line through the values rises over the run."""
    slope = np.polyfit(times, values, 1)[0]
    return float(slope * (times[-1] - times[0]))


def judge(samples: list[tuple[float, dict[str, float]]]) -> list[str]:
    """Say what has grown, and what may not have."""
    settled = samples[int(len(samples) * SETTLED) :]
    times = np.array([when for when, _ in settled])
    faults = []
    for name in settled[0][1]:
        values = np.array([found[name] for _, found in settled])
        risen = growth(times, values)
        bound = COUNTED_MAX
        if name == "memory_bytes":
            bound = MEMORY_SHARE_MAX * float(values.mean()) + MEMORY_BYTES_MAX
        print(
            f"{name}: {values[0]:,.0f} at first, {values[-1]:,.0f} at last, {values.min():,.0f} to "
            f"{values.max():,.0f}; the line rises by {risen:,.2f}, allowed {bound:,.2f}"
        )
        if risen >= bound:
            faults.append(f"{name} grows")
    return faults


def main() -> int:
    """Soak; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all samples there")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    multiprocessing.set_forkserver_preload(["ffrecord.torch", "daemon"])
    rng = random.Random(arguments.seed)
    samples: list[tuple[float, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "data.ffr"
        write(path)
        with Daemon(folder / "served") as daemon:
            ffrecord.publish(path, daemon.address("train"))
            sources = {"files": path, "daemon": daemon.address("train")}
            soak = Soak(rng, sources, daemon)
            began = time.monotonic()
            while (now := time.monotonic() - began) < arguments.seconds:
                faulthandler.dump_traceback_later(LIFE_S_MAX, exit=True)  # A hang is a fault.
                soak.live()
                samples.append((now, measured()))
            faulthandler.cancel_dump_traceback_later()
    print(f"{len(samples)} lives: {json.dumps(soak.happened)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(samples))
    if len(samples) < SAMPLES_MIN:
        print(f"{len(samples)} lives are too few to judge: more --seconds", file=sys.stderr)
        return 1
    faults = judge(samples)
    print("FAILED: " + ", ".join(faults) if faults else "flat")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
