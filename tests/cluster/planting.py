"""Build copies of the tree with one bug each, and see whether a simulation finds it."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))
import builds  # noqa: E402  (the build folder is described there, once)
import plants as cluster_plants  # noqa: E402  (beside this file)
from plants import Plant  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "collective"))
import collective_plants  # noqa: E402

COPY = ROOT / builds.PLAIN.folder / "plants"
BUILD = COPY / "build"
TIMEOUT_S = 600


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A program that runs seeds, and the bugs that it has to find."""

    program: str
    plants: list[Plant]


SIMULATIONS = {
    "cluster": Simulation("tests/cluster/cluster-simulation", cluster_plants.PLANTS),
    "collective": Simulation("tests/collective/collective-simulation", collective_plants.PLANTS),
}


def copy_tree() -> None:
    """Bring the copy up to date; files that are the same keep their time."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(source.stat().st_mode)


def build(program: str) -> bool:
    """Build the simulation of the copy; say why if it cannot be built."""
    meson, ninja = builds.BIN / "meson", builds.BIN / "ninja"
    if not (BUILD / "build.ninja").exists():
        options = [*builds.PLAIN.options, "-Dpython=disabled", "-Dbenchmarks=disabled"]
        subprocess.run(
            [meson, "setup", BUILD, COPY, *options], stdout=subprocess.DEVNULL, check=True
        )
    done = subprocess.run(
        [ninja, "-C", BUILD, program],
        env=os.environ | {"CCACHE_BASEDIR": str(COPY), "CCACHE_NOHASHDIR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout[-3000:], file=sys.stderr)
    return done.returncode == 0


def outcome(program: str, seeds: int, first: int) -> str:
    """Run those seeds; `survived`, or how it was caught."""
    try:
        done = subprocess.run(
            [BUILD / program],
            env=os.environ | {"FFRECORD_SIM_SEED": str(first), "FFRECORD_SIM_COUNT": str(seeds)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "caught: it hangs"
    if done.returncode == 0:
        return "survived"
    lines = [line for line in done.stdout.splitlines() if "FFRECORD_SIM_SEED=" in line]
    if not lines:
        return f"caught: exit {done.returncode}"
    seed, what = lines[0].split("FFRECORD_SIM_SEED=")[1].split(": ", 1)
    return f"caught after {int(seed) - first + 1} seeds: {what}"


def planted(plant: Plant) -> str:
    """Return the file's text with the bug; fail if the place is not there exactly once."""
    text = (ROOT / plant.file).read_text()
    if text.count(plant.old) != 1:
        sys.exit(
            f"{plant.file}: '{plant.old}' stands there {text.count(plant.old)} times, not once"
        )
    return text.replace(plant.old, plant.new)


def run(simulation: Simulation, seeds: int, first: int, only: str) -> int:
    """Plant each bug whose name has `only` in it; return how many survived."""
    program = simulation.program
    plants = [plant for plant in simulation.plants if only in plant.name]
    texts = [planted(plant) for plant in plants]  # All are looked at before the first is built.
    copy_tree()
    if not build(program):
        sys.exit("the tree itself does not build")
    if (alone := outcome(program, seeds, first)) != "survived":
        sys.exit(f"without any bug: {alone}")
    survived = 0
    start = time.monotonic()
    for plant, text in zip(plants, texts, strict=True):
        target = COPY / plant.file
        target.write_text(text)
        try:
            result = outcome(program, seeds, first) if build(program) else "does not build"
        finally:
            target.write_text((ROOT / plant.file).read_text())
        survived += not result.startswith("caught")
        print(f"{pathlib.Path(plant.file).name}: {plant.name}: {result}", flush=True)
    seconds = time.monotonic() - start
    print(f"{len(plants)} bugs, {survived} survived {seeds} seeds each ({seconds:.0f} s)")
    return survived
