"""Decoding real JPEGs from memory: the loader against a bare loop of libjpeg-turbo, and others.

Every arm has as many threads as there are processors, and makes RGB of each picture, as large as it
is. The bare loop writes into one buffer again and again; all others hand over batches of 64 that
are kept. Ours reads records and verifies their checksums besides. The pixels of all arms are the
same, which a digest proves, else the run is void; but FFmpeg's, under SPDL, are only close, for it
computes otherwise. The pictures are cuts of one photograph, of many sizes and qualities, or those
of `--pictures FOLDER`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

import harness

HERE = pathlib.Path(__file__).resolve().parent
ARM = HERE / "arms" / "jpegs.py"
PINS = HERE / "jpeg_peers.txt"
COUNT = 256
WHAT = {
    "turbojpeg": "a bare loop of libjpeg-turbo, one buffer for each thread",
    "ours": "ffrecord, mode='threads', a batch to each thread, checksums on",
    "ours_spread": "ffrecord, mode='threads', all threads decode each batch, which is the default",
    "simplejpeg": "simplejpeg in a pool of threads",
    "opencv": "OpenCV in a pool of threads",
    "pillow": "Pillow in a pool of threads",
    "spdl": "SPDL's load_image in a pool of threads",
}
OURS, PEERS = ["ours", "ours_spread"], ["simplejpeg", "opencv", "pillow", "spdl"]
OTHER_PIXELS = ["spdl"]
NOT_RUN = {"ffcv": "what it decodes as large as it is must all be of one size"}
# Makes the pictures; runs among the peers, who have Pillow and a photograph.
CUT = """
import importlib.util, pathlib, random, sys
from PIL import Image
target, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
home = importlib.util.find_spec("matplotlib").submodule_search_locations[0]
photograph = Image.open(home + "/mpl-data/sample_data/grace_hopper.jpg").convert("RGB")
chance = random.Random(7)
for number in range(count):
    side = chance.uniform(0.5, 1)
    width, height = (int(side * size) for size in photograph.size)
    x, y = (chance.randint(0, a - b) for a, b in zip(photograph.size, (width, height)))
    cut = photograph.crop((x, y, x + width, y + height))
    scale = chance.uniform(0.9, 1.4)
    cut = cut.resize((int(width * scale), int(height * scale)), Image.Resampling.LANCZOS)
    if chance.random() < 0.5:
        cut = cut.transpose(Image.Transpose.ROTATE_90)
    cut.save(target / f"{number:05}.jpg", quality=chance.randint(75, 95), subsampling="4:2:0")
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--pictures", type=pathlib.Path, help="Folder of *.jpg; all RGB or grey.")
    parser.add_argument(
        "--seconds", type=float, default=0, help="Seconds of each arm in each round."
    )


def call(words: list[object], environment: dict[str, str] | None = None) -> str:
    """The output of a program.

    Raises:
        harness.Unable: it fails; with its last line.
    """
    done = subprocess.run(
        [str(word) for word in words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [str(done.returncode)]
        raise harness.Unable(f"{pathlib.Path(str(words[0])).name}: {lines[-1][:200]}")
    return done.stdout


def install(scratch: pathlib.Path) -> pathlib.Path:
    """Make an environment of the peers, or take the one of the last run; return its Python."""
    home = scratch / "jpeg-peers"
    python, stamp = home / "bin" / "python", home / "pins.sha256"
    digest = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(home, ignore_errors=True)
        call([sys.executable, "-m", "venv", home])
        call([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", PINS])
        stamp.write_text(digest)
    return python


def prepare(settings: harness.Settings, python: pathlib.Path) -> pathlib.Path:
    """A folder of the pictures, and of the same as records."""
    import ffrecord

    given: pathlib.Path | None = settings.options.pictures
    folder = settings.scratch / ("jpegs" if given is None else "jpegs-given")
    if given is not None or not (folder / "data.ffr").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if given is None:
            call([python, "-c", CUT, folder, COUNT])
        else:
            for number, path in enumerate(sorted(given.glob("*.jpg"))[:4096]):
                (folder / f"{number:05}.jpg").symlink_to(path.resolve())
        paths = sorted(folder.glob("*.jpg"))
        if not paths:
            raise harness.Unable(f"{given}: no *.jpg")
        with ffrecord.Writer(folder / "data.ffr", replace=True) as writer:
            for path in paths:
                writer.write(path.read_bytes())
    return folder


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare what decodes."""
    python = install(settings.scratch)
    folder = prepare(settings, python)
    threads = len(os.sched_getaffinity(0))
    seconds = settings.options.seconds or (0.7 if settings.quick else 2.0)
    bare = harness.program(settings, "jpeg-arm")
    digests: dict[str, int] = {}

    def run(name: str) -> float:
        if name == "turbojpeg":
            words = [bare, folder, threads, seconds]
        else:
            runner = sys.executable if name in OURS else python
            words = [runner, ARM, name, folder, threads, seconds]
        found = json.loads(call(words, {**os.environ, "OMP_NUM_THREADS": "1"}))
        digests[name] = found["digest"]
        return float(found["pictures"] / found["seconds"])

    failed = dict(NOT_RUN)
    names = []
    for name in WHAT:
        try:
            run(name)
            names.append(name)
        except harness.Unable as error:
            if name not in PEERS:
                raise
            failed[name] = str(error)
    for name in names:
        if name not in OTHER_PIXELS and digests[name] != digests["turbojpeg"]:
            raise harness.Unable(f"void: {name} makes other pixels: {digests}")

    arms = [harness.Arm(f"jpeg_{n}", WHAT[n], lambda _, n=n: run(n)) for n in names]  # type: ignore[misc]
    random.Random(1).shuffle(arms)
    values = harness.interleave(arms, settings.rounds)

    def best(candidates: list[str]) -> str:
        ran = [f"jpeg_{name}" for name in candidates if name in names]
        return max(ran, key=lambda name: statistics.median(values[name]))

    ratios = {"jpeg_vs_turbojpeg": (best(OURS), "jpeg_turbojpeg")}
    if any(name in names for name in PEERS):
        ratios["jpeg_vs_best"] = best(OURS), best(PEERS)
    outcome = harness.Outcome("pictures/s", arms, values, ratios)
    sizes = [path.stat().st_size for path in folder.glob("*.jpg")]
    outcome.notes += [
        f"{key}: {mine.removeprefix('jpeg_')} over {other.removeprefix('jpeg_')}"
        for key, (mine, other) in ratios.items()
    ]
    outcome.notes += [
        f"{len(sizes)} pictures of {statistics.mean(sizes) / 1e3:.0f} KB on average, {threads} "
        f"threads, {settings.rounds} rounds of {seconds} s; pixels of "
        f"{len([n for n in names if n not in OTHER_PIXELS])} arms agree",
        *(f"not run: {name}: {reason}" for name, reason in failed.items()),
    ]
    return outcome
