"""The records in every form, and who loads them."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import environment
import harness
import processes
from lineup import DEFAULT, FORM, OURS, QUICK, WHAT
from workloads import WORKLOADS

Argument = TypeVar("Argument")
Found = TypeVar("Found")

# Pages that a process has mapped cannot be put out of the cache while it lives.
COLD_SHARE_MAPPED_MAX = 0.05
COLD_TRIES, COLD_PAUSE_S = 10, 0.3
_BLOCK = 4096
# A peer that has not begun, or loaded an epoch, by then is lost. Ours takes a few seconds.
_BEGIN_S = {True: 45.0, False: 600.0}
_WINDOW_S = 30.0
_AT_ONCE = 2
_BATCHES_MIN = 8


class Field:
    """The parts that all tables share: peers, forms, and the reasons why somebody is missing."""

    def __init__(self, settings: harness.Settings) -> None:
        """Install the peers."""
        self.settings = settings
        self.options = settings.options
        self.python = environment.install(settings.scratch)
        self.variables = environment.variables(settings.scratch)
        self.failed: dict[str, str] = {}
        self.notes: list[str] = []

    @property
    def seconds(self) -> float:
        """Seconds of a window."""
        return float(self.options.seconds or (0.4 if self.settings.quick else 1.5))

    @property
    def begin_s(self) -> float:
        """Limit for starting, and for loading an epoch."""
        return _BEGIN_S[self.settings.quick]

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Those that the command line leaves."""
        if not self.options.arms:
            return [name for name in names if name in QUICK or not self.settings.quick]
        chosen = self.options.arms.split(",")
        if unknown := sorted(set(chosen) - set(WHAT)):
            raise harness.Unable(f"--arms {unknown[0]}: there are {', '.join(WHAT)}")
        return [name for name in names if name in chosen or name in (*OURS, DEFAULT)]

    def count(self, workload: str) -> int:
        """Records of a workload."""
        usual = WORKLOADS[workload]
        plain = usual.quick_count if self.settings.quick else usual.count
        return int(self.options.records or plain)

    def folder(self, workload: str) -> pathlib.Path:
        """Where its forms are."""
        return self.settings.scratch / "loader" / f"{workload}-{self.count(workload)}"

    def files(self, workload: str, name: str) -> list[pathlib.Path]:
        """The files that an arm reads."""
        found = self.folder(workload) / FORM[name]
        return [path for path in found.rglob("*") if path.is_file() and path.stat().st_size]

    def prepare(self, workload: str, names: Sequence[str]) -> list[str]:
        """Write what is missing; return who can be run."""

        def write(form: str) -> str | None:
            target = self.folder(workload) / form
            stamp = target.with_suffix(".done")
            if stamp.exists():
                return None
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            print(f"writing {workload} as {form}", file=sys.stderr)
            words = [form, workload, self.count(workload), target]
            if (reason := processes.convert(self.python, self.variables, words)) is None:
                stamp.touch()
            return reason

        forms = list(dict.fromkeys(FORM[name] for name in names))
        reasons = dict(zip(forms, _at_once(write, forms), strict=True))
        for name in names:
            if why := reasons[FORM[name]]:
                self.lose(name, why)
        return [name for name in names if reasons[FORM[name]] is None]

    def start(self, workload: str, name: str, workers: int) -> processes.Process:
        """An arm that answers.

        Raises:
            processes.Failed: it does not.
        """
        return processes.Process(
            self.python,
            self.variables,
            [name, workload, self.folder(workload), workers],
            begin_s=self.begin_s,
        )

    @contextlib.contextmanager
    def running(
        self, workload: str, names: Sequence[str], workers: int
    ) -> Iterator[dict[str, processes.Process]]:
        """All arms at once, of which all load the same; who cannot is among `failed`."""

        def begin(name: str) -> tuple[processes.Process, dict[str, Any]] | str:
            print(f"starting {name}, {workers} workers", file=sys.stderr)
            try:
                arm = self.start(workload, name, workers)
            except processes.Failed as error:
                return str(error)
            try:
                return arm, arm.ask("digest", within_s=self.begin_s)
            except processes.Failed as error:
                arm.close()
                return str(error)

        with contextlib.ExitStack() as stack:
            begun = dict(zip(names, _at_once(begin, names), strict=True))
            running, digests = {}, {}
            for name, found in begun.items():
                if not isinstance(found, str):
                    running[name] = stack.enter_context(found[0])
                    digests[name] = found[1]["records"], found[1]["digest"]
            for name, found in begun.items():
                if isinstance(found, str):
                    self.lose(name, f"{found} ({workers} workers)")
            expected = digests[names[0]]
            for name, digest in digests.items():
                if digest != expected or digest[0] != self.count(workload):
                    raise harness.Unable(f"void: {name} loads other {workload}: {digests}")
            self.notes.append(
                f"{workload}: digests of {len(digests)} arms with {workers} workers agree"
            )
            yield running

    def window(self, name: str, arm: processes.Process, workload: str) -> dict[str, Any]:
        """The window that an arm loads in its turn.

        Raises:
            harness.Lost: nothing, in time.
        """
        try:
            batches = WORKLOADS[workload].batch * _BATCHES_MIN
            return arm.ask("go", self.seconds, batches, within_s=_WINDOW_S)
        except processes.Failed as error:
            self.lose(name, str(error))
            raise

    def lose(self, name: str, reason: str) -> None:
        """Go on without an arm.

        Raises:
            harness.Unable: it is one of ours, without which there is nothing to compare.
        """
        if name in OURS:
            raise harness.Unable(f"{name}: {reason}")
        print(f"{name} is lost: {reason}", file=sys.stderr)
        self.failed[name] = reason

    def make_warm(self, workload: str, names: Sequence[str]) -> None:
        """Put all that the arms read into the page cache, and see that it stays."""
        files = sorted({path for name in names for path in self.files(workload, name)})
        for path in files:
            path.read_bytes()
        if (share := _cached_share(files)) < harness.WARM_SHARE_MIN:
            raise harness.Unable(f"{workload}: {share:.1%} stays in the page cache; see --records")

    def make_cold(self, workload: str, name: str, in_use: bool = False) -> None:
        """Put what an arm reads out of the page cache; what a live process maps stays there."""
        files = self.files(workload, name)
        most = COLD_SHARE_MAPPED_MAX if in_use else harness.COLD_SHARE_MAX
        # A live process may still be reading ahead, and then its pages come back.
        for _ in range(COLD_TRIES):
            for path in files:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if (share := _cached_share(files)) <= most:
                return
            time.sleep(COLD_PAUSE_S)
        raise harness.Unable(f"{workload} as {FORM[name]}: {share:.1%} stays in the page cache")


def _at_once(call: Callable[[Argument], Found], words: Sequence[Argument]) -> list[Found]:
    """The results of `call` for each, as many at a time as there are cores to do it."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(call, words))


def _cached_share(files: Sequence[pathlib.Path]) -> float:
    """Which share of the bytes of files is in the page cache, 0 to 1."""
    fincore = harness.foreign("fincore", "util-linux-extra")
    words = [fincore, "--bytes", "--noheadings", "--output", "RES", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    cached = sum(map(int, done.stdout.split()))
    return cached / sum(-(-path.stat().st_size // _BLOCK) * _BLOCK for path in files)
