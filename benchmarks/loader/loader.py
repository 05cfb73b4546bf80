"""The PyTorch loader against other loaders: images, token blocks and rows, warm, random order.

Every arm is a process that loads whole epochs in batches with two workers; each loads the same
records, which a digest over all of them proves, else the run is void. Peers are installed from the
package index into the scratch folder, and run as their documentation advises for this use, and at
their defaults. Who cannot shuffle globally is compared apart. Payload is random, files are in the
page cache. Ours verifies every record's checksum.
"""

import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import time

import harness
import numpy as np
import numpy.typing as npt

import ffrecord
from ffrecord.torch import Dataset, Sampler

Payloads = npt.NDArray[np.object_]
HERE = pathlib.Path(__file__).resolve().parent
PEERS = ["array-record", "webdataset", "braceexpand", "pyyaml"]
SEED = 7
IMAGE_MEAN_BYTES, IMAGE_SIGMA = 110_000, 0.5
TOKEN_BYTES, ROW_BYTES = 4096, 80
TAR_RECORDS = 500
RESUME_RECORDS = 10**8

# Arms by workload; the first is ours, of the others those that shuffle globally.
SHUFFLED = ["torch_folder", "array_record", "array_record_default"]
ARMS = {
    "images": ["ours_threads", "ours_workers", *SHUFFLED, "webdataset"],
    "tokens": ["ours_threads", "ours_workers", "array_record", "array_record_default"],
    "tabular": ["ours_threads", "ours_workers", "array_record", "array_record_default"],
}
WHAT = {
    "ours_threads": "ffrecord, mode='threads', checksums on",
    "ours_workers": "ffrecord, worker processes, checksums on",
    "torch_folder": "torch's loader over a folder of small files",
    "array_record": "array-record, group_size 1, no read-ahead, one read for each batch",
    "array_record_default": "array-record at its defaults",
    "webdataset": "webdataset, tar shards of 500, shards shuffled: sequential",
}


def payloads(workload: str, count: int) -> Payloads:
    """Random records of a workload."""
    generator = np.random.default_rng(SEED)
    mean = np.log(IMAGE_MEAN_BYTES) - IMAGE_SIGMA**2 / 2
    sizes = {
        "images": lambda: generator.lognormal(mean, IMAGE_SIGMA, count).astype(int) + 1,
        "tokens": lambda: np.full(count, TOKEN_BYTES),
        "tabular": lambda: np.full(count, ROW_BYTES),
    }[workload]()
    records = np.empty(count, object)
    records[:] = [generator.bytes(int(size)) for size in sizes]
    return records


def write(workload: str, count: int, folder: pathlib.Path) -> None:
    """Write the records in the form of every arm."""
    records = payloads(workload, count)
    size = {"tokens": TOKEN_BYTES, "tabular": ROW_BYTES}.get(workload)
    schema = {"row": f"u8[{size}]"} if size else None
    with ffrecord.Writer(folder / f"{workload}.ffr", schema, replace=True) as writer:
        for record in records:
            row = np.frombuffer(record, np.uint8)
            writer.write({"row": row} if size else row)
    from array_record.python.array_record_module import ArrayRecordWriter

    for name, options in (("", "group_size:1"), ("-default", "")):
        other = ArrayRecordWriter(str(folder / f"{workload}{name}.array_record"), options)
        for record in records:
            other.write(record)
        other.close()
    if workload == "images":
        write_files(records, folder)


def write_files(
    records: "np.ndarray[tuple[int], np.dtype[np.object_]]", folder: pathlib.Path
) -> None:
    """A folder of small files, and tar shards."""
    (folder / "images-files").mkdir(exist_ok=True)
    (folder / "images-tar").mkdir(exist_ok=True)
    for number, record in enumerate(records):
        (folder / "images-files" / f"{number:07d}").write_bytes(record)
    for first in range(0, len(records), TAR_RECORDS):
        with tarfile.open(folder / "images-tar" / f"{first // TAR_RECORDS:04d}.tar", "w") as tar:
            for number, record in enumerate(records[first : first + TAR_RECORDS], first):
                member = tarfile.TarInfo(f"{number:07d}.bin")
                member.size = len(record)
                tar.addfile(member, io.BytesIO(record))


def install_peers(settings: harness.Settings) -> str:
    """Fetch the peers into the scratch folder; return their versions."""
    target = settings.scratch / "loader-peers"
    if not (target / "done").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        done = subprocess.run(
            [*command, "--target", str(target), *PEERS], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise harness.Unable(f"peers cannot be installed: {done.stderr.strip()[-500:]}")
        (target / "done").touch()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*filter(None, [os.environ.get("PYTHONPATH")]), str(target)]
    )
    sys.path.append(str(target))
    found = sorted(path.name for path in target.glob("*.dist-info"))
    return ", ".join(name.removesuffix(".dist-info").replace("-", " ") for name in found)


class Runs:
    """Runs arms, and sees to it that all load the same."""

    def __init__(self, folder: pathlib.Path, epochs: dict[str, int]) -> None:
        """Nothing was run yet."""
        self.folder = folder
        self.epochs = epochs
        self.digests: dict[str, set[tuple[int, int]]] = {}
        self.cost: dict[str, list[float]] = {}
        self.rss: dict[str, list[float]] = {}

    def arm(self, workload: str, name: str) -> harness.Arm:
        """The arm of that name over that workload."""

        def run(number: int) -> float:
            found = harness.run_json(
                sys.executable,
                HERE / "arms" / "arm.py",
                name,
                workload,
                self.folder,
                self.epochs[workload],
                int(number == 0),
            )
            if number == 0:
                digests = self.digests.setdefault(workload, set())
                digests.add((found["records"], found["digest"]))
                if len(digests) > 1:
                    raise harness.Unable(f"void: {name} loads other {workload}: {digests}")
            key = f"{workload}_{name}"
            self.cost.setdefault(key, []).append(found["cpu_seconds"] / found["records"] * 1e6)
            self.rss.setdefault(key, []).append(found["rss_kib"] / 1024)
            return float(found["records"] / found["seconds"])

        return harness.Arm(f"{workload}_{name}", WHAT[name], run)


def best_of(names: list[str], values: dict[str, list[float]]) -> list[float]:
    """Round by round, the best of some arms."""
    return [max(found) for found in zip(*(values[name] for name in names), strict=True)]


def resume_ms() -> float:
    """To the first batch at half of an epoch of 10^8 records: the order's share of a resume."""
    sampler = Sampler(RESUME_RECORDS, 256)
    state = json.loads(json.dumps({**sampler.state_dict(), "position": RESUME_RECORDS // 2}))
    began = time.perf_counter()
    resumed = Sampler(RESUME_RECORDS, 256)
    resumed.load_state_dict(state)
    next(iter(resumed))
    return (time.perf_counter() - began) * 1e3


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare loaders, warm."""
    versions = install_peers(settings)
    counts = {"images": 1_500, "tokens": 20_000, "tabular": 200_000}
    epochs = {"images": 2, "tokens": 2, "tabular": 2}
    if not settings.quick:
        counts = {"images": 12_000, "tokens": 250_000, "tabular": 2_000_000}
    folder = settings.scratch / f"loader-{counts['images']}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        for workload, count in counts.items():
            write(workload, count, folder)
        (folder / "done").touch()
    for path in folder.iterdir():
        if path.is_file() and path.stat().st_size:
            harness.make_warm(path)
    runs = Runs(folder, epochs)
    arms = [runs.arm(workload, name) for workload, names in ARMS.items() for name in names]
    values = harness.interleave(arms, settings.rounds)
    best = {
        "images_best_ours": ["images_ours_threads", "images_ours_workers"],
        "images_best_shuffled": [f"images_{name}" for name in SHUFFLED],
        "images_best_sequential": ["images_webdataset"],
        "tokens_best_ours": ["tokens_ours_threads", "tokens_ours_workers"],
        "tokens_best": ["tokens_array_record", "tokens_array_record_default"],
        "tabular_best_ours": ["tabular_ours_threads", "tabular_ours_workers"],
        "tabular_best": ["tabular_array_record", "tabular_array_record_default"],
    }
    for key, names in best.items():
        values[key] = best_of(names, values)
    pickled = len(pickle.dumps(Dataset(folder / "tokens.ffr")))
    costs = {key: float(np.median(found)) for key, found in runs.cost.items()}
    return harness.Outcome(
        unit="samples/s",
        arms=arms,
        values=values,
        ratios={
            "images_vs_best_shuffled": ("images_best_ours", "images_best_shuffled"),
            "images_vs_best_sequential": ("images_best_ours", "images_best_sequential"),
            "tokens_vs_best": ("tokens_best_ours", "tokens_best"),
            "tabular_vs_best": ("tabular_best_ours", "tabular_best"),
        },
        notes=[
            f"{', '.join(f'{count:,} {name}' for name, count in counts.items())}; "
            f"{settings.rounds} rounds of {epochs['images']} epochs; digests of all arms agree",
            f"pickle_bytes {pickled}; resume_ms {resume_ms():.2f} at half of 10^8 records",
            "CPU in us for each record of the loading process: "
            + ", ".join(f"{key} {value:.1f}" for key, value in costs.items()),
            f"peers: {versions}",
        ],
    )
