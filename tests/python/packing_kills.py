"""Packings that are killed at random moments and begun again: each must end as one that was not.

A kill hits all processes of a run, one of them, or two runs that share the work. After each kill
the destination is not there, or whole.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cuttable
from packing import begun, contents, records, write_classes

_WORKERS = (1, 2, 3)
# Runs of one destination, before one is left to end.
_RUNS_MAX = 12


class Scene(NamedTuple):
    """A source, and how it is packed."""

    make: Callable[[Path], Path]
    """Writes the source into a folder."""
    arguments: tuple[str, ...]
    destination: str = "x"
    has_old: bool = False
    """Whether another result is there, which the run replaces."""


_SMALL = ("--part-size", "20000B")
_SLOW = ("--map", "packing_functions:slow")
_FEW = ("--part-size", "6000B")


def _repeated(folder: Path) -> Path:
    """JSON lines, of which each is there three times."""
    path = cuttable.json_lines(folder)
    path.write_bytes(b"\n".join([path.read_bytes()] * 3))
    return path


SCENES: Mapping[str, Scene] = {
    "files": Scene(write_classes, _SMALL),
    "files through a function": Scene(write_classes, (*_SMALL, *_SLOW)),
    "files that are shuffled": Scene(write_classes, (*_SMALL, *_SLOW, "--shuffle", "11")),
    "files in place of others": Scene(write_classes, (*_SMALL, "--overwrite"), has_old=True),
    "files into one": Scene(write_classes, _SLOW, "x.ffr"),
    "compressed files": Scene(write_classes, (*_SMALL, "--compress", "--dictionary", "1KiB")),
    "JSON lines": Scene(cuttable.json_lines, (*_FEW, *_SLOW)),
    "JSON lines without duplicates": Scene(
        _repeated, (*_FEW, "--map", "deduplicate('id', 'text')", *_SLOW)
    ),
    "CSV": Scene(cuttable.csv, (*_FEW, "--shuffle", "3")),
    "TFRecord": Scene(cuttable.tfrecord, (*_FEW, *_SLOW)),
    "WebDataset": Scene(cuttable.web_dataset, ("--part-size", "50000B")),
    "WebDataset through a function": Scene(cuttable.web_dataset, ("--part-size", "50000B", *_SLOW)),
    "Parquet": Scene(cuttable.parquet, (*_FEW, "--map", "keep('id != 5')", *_SLOW)),
    "bins of tokens": Scene(cuttable.tokens, ("--part-size", "1000B", "--map", "bins(64)")),
}


class Counts(NamedTuple):
    """The numbers of a campaign."""

    kills: int = 0
    results: int = 0


def kill_packings(scene: Scene, folder: Path, kills: int, draws: random.Random) -> Counts:
    """Kill packings of a scene, again and again, until there were so many kills.

    Raises:
        AssertionError: a result is not that of a run without kills, or partly there, or a run that
            nobody killed failed; `folder` is left as it was found.
    """
    (folder / "in").mkdir(parents=True)
    source = scene.make(folder / "in")
    whole = folder / "whole" / scene.destination
    whole.parent.mkdir()
    begin = time.monotonic()
    _end([begun(*scene.arguments, source, whole)])
    usual_s = time.monotonic() - begin
    place = folder / "out" / scene.destination
    done = results = 0
    while done < kills:
        place.parent.mkdir()
        old = _with_old(scene, source, place) if scene.has_old else None
        trial = _Trial(scene, source, place, (_found(whole), old), usual_s, draws)
        done += trial.run(kills - done)
        results += 1
        shutil.rmtree(place.parent)
    return Counts(done, results)


class _Trial:
    """Runs of one destination."""

    def __init__(
        self,
        scene: Scene,
        source: Path,
        place: Path,
        wanted: tuple[Any, Any],
        usual_s: float,
        draws: random.Random,
    ) -> None:
        self._scene, self._source, self._place = scene, source, place
        self._wanted, self._old = wanted
        self._usual_s, self._draws = usual_s, draws

    def run(self, kills_max: int) -> int:
        """Begin runs and kill them; then let one end. Return how many kills there were."""
        kills = 0
        for _ in range(self._draws.randrange(1, _RUNS_MAX)):
            if kills == kills_max:
                break
            count = 2 if self._place.suffix == "" and self._draws.random() < 0.2 else 1
            running = [self._begun() for _ in range(count)]
            if self._draws.random() < 0.3:
                kills += self._killed(running, _one_of)
            if kills < kills_max:
                kills += self._killed(running, _all_of)
            _end(running, may_be_killed=True)
            found = _found(self._place)
            assert found in (self._old, self._wanted), f"{self._place} is there in part"
            if found == self._wanted and self._place.suffix:
                return kills  # It would be made again only to replace it.
        _end([self._begun()])
        assert _found(self._place) == self._wanted, f"{self._place} is another result"
        left = sorted(os.listdir(self._place.parent))
        assert left == [self._place.name], f"{left} are left"
        return kills

    def _begun(self) -> "subprocess.Popen[bytes]":
        workers = str(self._draws.choice(_WORKERS)) if self._place.suffix == "" else "1"
        return begun(*self._scene.arguments, "--workers", workers, self._source, self._place)

    def _killed(
        self,
        running: list["subprocess.Popen[bytes]"],
        chosen: "Callable[[subprocess.Popen[bytes], random.Random], list[int]]",
    ) -> int:
        """Kill some processes after a while; whether there was one."""
        time.sleep(self._draws.random() * 1.2 * self._usual_s)
        found = [
            pid for each in running if each.poll() is None for pid in chosen(each, self._draws)
        ]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                found = [each for each in found if each != pid]
        return int(bool(found))


def _one_of(process: "subprocess.Popen[bytes]", draws: random.Random) -> list[int]:
    return [draws.choice(group)] if (group := _all_of(process, draws)) else []


def _all_of(process: "subprocess.Popen[bytes]", draws: random.Random) -> list[int]:
    """The processes of a run, which began with `process`."""
    group = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{each}/stat") as file:
                facts = file.read().rpartition(")")[2].split()
        except OSError:  # It has ended.
            continue
        if int(facts[2]) == process.pid and facts[0] != "Z":
            group.append(int(each))
    return sorted(group)


def _end(running: list["subprocess.Popen[bytes]"], *, may_be_killed: bool = False) -> None:
    """Wait for the end of runs; fail if one that nobody killed did not succeed."""
    for process in running:
        said = process.communicate()[1].decode()
        code = process.returncode
        # A worker that is killed is replaced.
        wanted = (0, -signal.SIGKILL) if may_be_killed else (0,)
        assert code in wanted, f"a run ended with {code}: {said}"


def _with_old(scene: Scene, source: Path, place: Path) -> Any:  # noqa: ANN401 - see `_found`
    _end([begun(*scene.arguments, "--compress", source, place)])
    return _found(place)


def _found(place: Path) -> Any:  # noqa: ANN401 - bytes of files, or records
    """The bytes of a result; the records of a file, which has an id of its own; None if none."""
    if not place.exists():
        return None
    return contents(place) if place.is_dir() else records(place)
