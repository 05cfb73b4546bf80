"""Shared by all benchmarks: arms interleaved in rounds, medians and spread, the state of the cache.

An arm is one way to do the work. Every round runs every arm once, in an order that shifts from
round to round, so that drift of the machine affects all arms. A ratio is the median over rounds of
our value divided by the reference value of the same round; higher is better.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

ROUNDS_MIN = 5
COLD_SHARE_MAX = 0.01
WARM_SHARE_MIN = 0.99


class Unable(Exception):
    """The machine lacks what a benchmark needs; the message says what and the remedy."""


class Lost(Exception):
    """An arm cannot continue, but the others can; the message says why."""


class Missing(Unable, Lost):
    """A third-party program is not installed: its arms are left out, and the notes say so."""


# Third-party programs that were not found: name -> remedy.
missing: dict[str, str] = {}

LOAD_AT_START = os.getloadavg()[0]  # The load of others before this program began.


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a benchmark."""

    quick: bool
    rounds: int
    scratch: pathlib.Path  # A folder for files that are kept between runs.
    programs: pathlib.Path  # Where benchmark programs of ours were built.
    # The options that `add_options` of the benchmark added.
    options: argparse.Namespace = dataclasses.field(default_factory=argparse.Namespace)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to do the work: `run(round)` returns what it reached, higher is better."""

    name: str
    what: str
    run: Callable[[int], float]


@dataclasses.dataclass
class Outcome:
    """The findings of a benchmark: values of each arm by round, and which pairs to compare."""

    unit: str
    arms: list[Arm]
    values: dict[str, list[float]]
    ratios: dict[str, tuple[str, str]]  # key -> (arm of ours, arm of reference)
    # Figures that are no ratios: key -> values, one for each round. The key ends in its unit.
    figures: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


def interleave(arms: Sequence[Arm], rounds: int) -> dict[str, list[float]]:
    """Run every arm once a round; the arm that begins is another one each round.

    Returns the values of the arms that went through all rounds: who raises `Lost` is left out.
    """
    values: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for number in range(rounds):
        shift = number % len(arms)
        for arm in [*arms[shift:], *arms[:shift]]:
            if arm.name not in values:
                continue
            try:
                value = arm.run(number)
            except Lost as error:
                print(f"round {number + 1}/{rounds} {arm.name}: {error}", file=sys.stderr)
                del values[arm.name]
                continue
            values[arm.name].append(value)
            print(f"round {number + 1}/{rounds} {arm.name}: {value:,.0f}", file=sys.stderr)
    return values


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile; of a single value, that value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and the distance between the quartiles around it."""
    low, middle, high = quartiles(values)
    return {"median": middle, "iqr": high - low}


def report(name: str, settings: Settings, outcome: Outcome) -> dict[str, Any]:
    """Put together what --json writes. Figures that need a missing program are left out."""
    by_round = {
        key: [a / b for a, b in zip(outcome.values[ours], outcome.values[other], strict=True)]
        for key, (ours, other) in outcome.ratios.items()
        if not missing or {ours, other} <= outcome.values.keys()
    }
    return {
        "bench": name,
        "quick": settings.quick,
        "unit": outcome.unit,
        "ratios": {key: spread(values)["median"] for key, values in by_round.items()},
        "ratios_iqr": {key: spread(values)["iqr"] for key, values in by_round.items()},
        "figures": {key: spread(values)["median"] for key, values in outcome.figures.items()},
        "figures_iqr": {key: spread(values)["iqr"] for key, values in outcome.figures.items()},
        "arms": [
            {
                "name": arm.name,
                "what": arm.what,
                **spread(outcome.values[arm.name]),
                "rounds": outcome.values[arm.name],
            }
            for arm in outcome.arms
            if not missing or arm.name in outcome.values
        ],
        "notes": [*outcome.notes, *(f"without {name}: {why}" for name, why in missing.items())],
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Tell what a reader needs to judge the figures."""
    model = ""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "load_at_start": LOAD_AT_START,
        "load": os.getloadavg()[0],
    }


def table(found: dict[str, Any]) -> str:
    """Format a report for people."""
    rows = [("arm", found["unit"], "IQR", "")]
    for arm in found["arms"]:
        rows.append((arm["name"], f"{arm['median']:,.0f}", f"{arm['iqr']:,.0f}", arm["what"]))
    rows.append(("", "", "", ""))
    rows.append(("ratio", "median", "IQR", ""))
    for key, value in found["ratios"].items():
        rows.append((key, f"{value:.2f}", f"{found['ratios_iqr'][key]:.2f}", ""))
    if found["figures"]:
        rows += [("", "", "", ""), ("figure", "median", "IQR", "")]
    for key, value in found["figures"].items():
        rows.append((key, readable(value), readable(found["figures_iqr"][key]), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip()
        for row in rows
    ]
    about = found["machine"]
    lines += ["", *found["notes"]]
    lines.append(
        f"{about['cores']} cores of {about['cpu']}, {about['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {about['kernel']}, "
        f"load {about['load_at_start']:.1f} before and {about['load']:.1f} after"
    )
    return "\n".join(lines)


def readable(value: float) -> str:
    """Format a figure: small ones need digits behind the point, large ones none."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def free_bytes(folder: pathlib.Path) -> int:
    """How much may be written below a folder."""
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize


def program(settings: Settings, name: str) -> pathlib.Path:
    """Where a benchmark program of ours is."""
    path = settings.programs / name
    if not path.exists():
        raise Unable(f"{path} is not built: start this through benchmarks/run")
    return path


def foreign(name: str, package: str) -> str:
    """Where a program of others is. Called by an arm while it runs, it costs that arm only.

    Raises:
        Missing: it is not installed.
    """
    if path := shutil.which(name):
        return path
    missing[name] = f"apt-get install {package}, or benchmarks/setup for all peers"
    raise Missing(f"{name} is not installed: {missing[name]}")


def run_json(*command: object) -> dict[str, Any]:
    """Run a program that prints one JSON object; return it."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise Unable(f"{' '.join(words[:3])} ... failed: {done.stderr.strip()}")
    value = json.loads(done.stdout)
    if not isinstance(value, dict):
        raise Unable(f"{' '.join(words[:3])} ... printed no JSON object")
    return value


def cached_share(path: pathlib.Path) -> float:
    """Which share of a file's bytes is in the page cache, 0 to 1."""
    done = subprocess.run(
        [
            foreign("fincore", "util-linux-extra"),
            "--bytes",
            "--noheadings",
            "--output",
            "RES",
            str(path),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) / path.stat().st_size


def make_cold(path: pathlib.Path) -> None:
    """Put a file out of the page cache, and check that it is out."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (share := cached_share(path)) > COLD_SHARE_MAX:
        raise Unable(f"{path}: {share:.1%} stays in the page cache; is it open elsewhere?")


def make_warm(path: pathlib.Path) -> None:
    """Put a file into the page cache, and check that it is in."""
    if cached_share(path) == 1:
        return
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    if (share := cached_share(path)) < WARM_SHARE_MIN:
        raise Unable(f"{path}: only {share:.1%} stays in the page cache; memory is too small")
