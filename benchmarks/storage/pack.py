"""Packing: folders, tars, JSON lines, TFRecords and Parquet, against what the disk and readers do.

Each arm runs in processes of its own, with warm inputs, and ends when the result is durable. Times
are those of the command, but for Parquet: there both sides are timed without imports. The
folder is compared with the slower of two limits: fio's sequential write of as many bytes, and `cat`
of the same files in two processes. JSON lines of 100 bytes have five fields; examples have four
features. A run that is killed ten times repeats the command after each kill. A kill costs the start
of the command and the part that was under way, whatever the input: `pack_kill_s`. So the ratio to a
run that was not killed falls with the time of a run. The gain of two workers is limited by that of
the same function in a pool of two processes. Peak memory is that of the largest process, for the
largest of the inputs.
"""

import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import harness

FILE_BYTES = 110_000
FIO_BLOCK = 2 << 20
KILLS = 10
PART_BYTES = 128 << 20
COLD_RECORDS = 1024


class Inputs:
    """The sources to pack, made once in the scratch folder."""

    def __init__(self, settings: harness.Settings) -> None:
        """Make what is not there."""
        quick = settings.quick
        self.folder = settings.scratch / ("pack-quick" if quick else "pack")
        self.folder.mkdir(exist_ok=True)
        self.file_count = 20_000  # The start takes most of the time of fewer.
        self.line_count = 1_000_000 if quick else 10_000_000
        self.example_count = 100_000 if quick else 1_000_000
        self.row_count = 2_000_000 if quick else 5_000_000
        self.image_count = 400 if quick else 2_000
        self.classes = self._made("classes", self._write_classes)
        self.tar = self._made("files.tar", self._write_tar)
        self.lines = self._made("lines.jsonl", self._write_lines)
        self.examples = self._made("examples.tfrecord", self._write_examples)
        self.parquet = self._made("rows.parquet", self._write_parquet)
        self.images = self._made("images", self._write_images)
        self.packed = self._made("packed-tar.ffr", self._pack_tar)

    def _made(self, name: str, write: Callable[[pathlib.Path], None]) -> pathlib.Path:
        path = self.folder / name
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            new = self.folder / f"new-{name}"
            shutil.rmtree(new, ignore_errors=True)
            write(new)
            new.rename(path)
        return path

    def _write_classes(self, path: pathlib.Path) -> None:
        for name in ("a", "b"):
            (path / name).mkdir(parents=True)
        for number in range(self.file_count):
            (path / "ab"[number % 2] / f"{number:06}.jpg").write_bytes(os.urandom(FILE_BYTES))

    def _write_tar(self, path: pathlib.Path) -> None:
        words = ["tar", "-cf", str(path), "--sort=name", "-C", str(self.classes), "."]
        subprocess.run(words, check=True)

    def _pack_tar(self, path: pathlib.Path) -> None:
        """A record file of the tar, and an index of the tar."""
        code = (
            "import sys, ffrecord; from ffrecord.pack import pack;"
            "ffrecord.index(sys.argv[1]); pack(sys.argv[1], sys.argv[2])"
        )
        subprocess.run([sys.executable, "-c", code, str(self.tar), str(path)], check=True)

    def _write_lines(self, path: pathlib.Path) -> None:
        draws = random.Random(1)
        with path.open("w") as file:
            for number in range(self.line_count):
                ok = "true" if draws.random() < 0.5 else "false"
                file.write(
                    f'{{"id": {number}, "score": {draws.random():.12f}, "ok": {ok}, '
                    f'"name": "user {draws.randrange(10**7):07}", "text": "{"x" * 15}"}}\n'
                )

    def _write_examples(self, path: pathlib.Path) -> None:
        crc32c = _needed("google_crc32c").value

        def field(number: int, content: bytes) -> bytes:
            size = len(content)
            length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
            return bytes([number << 3 | 2]) + length + content

        def feature(name: bytes, kind: int, values: bytes) -> bytes:
            return field(1, field(1, name) + field(2, field(kind, values)))

        def masked(data: bytes) -> bytes:
            crc = crc32c(data)
            return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

        image = os.urandom(1 << 20)
        with path.open("wb") as file:
            for number in range(self.example_count):
                features = (
                    feature(b"image", 1, field(1, image[number % 65536 :][:200])),
                    feature(b"label", 3, field(1, bytes([number % 100]))),
                    feature(b"box", 2, field(1, struct.pack("<4f", number, 1, 2, 3))),
                    feature(b"name", 1, field(1, b"picture %09d" % number)),
                )
                payload = field(1, b"".join(features))
                length = struct.pack("<Q", len(payload))
                file.write(length + masked(length) + payload + masked(payload))

    def _write_parquet(self, path: pathlib.Path) -> None:
        np, pa, parquet = map(_needed, ("numpy", "pyarrow", "pyarrow.parquet"))
        count, draws = self.row_count, np.random.default_rng(1)
        columns = {f"i{n}": draws.integers(0, 1 << 40, count) for n in range(3)}
        columns |= {f"f{n}": draws.random(count) for n in range(3)}
        texts = pa.array([f"text {n}" for n in range(1000)])
        columns |= {f"s{n}": texts.take(pa.array(draws.integers(0, 1000, count))) for n in (0, 1)}
        columns["n"] = pa.array(draws.integers(0, 100, count), mask=draws.random(count) < 0.1)
        columns["b"] = pa.array(draws.random(count) < 0.5)
        parquet.write_table(pa.table(columns), path, row_group_size=100_000)

    def _write_images(self, path: pathlib.Path) -> None:
        np, image = _needed("numpy"), _needed("PIL.Image")
        (path / "a").mkdir(parents=True)
        draws = np.random.default_rng(1)
        for number in range(self.image_count):
            small = draws.integers(0, 256, (12, 16, 3), np.uint8)
            picture = image.fromarray(small).resize((640, 480))
            picture.save(path / "a" / f"{number:06}.jpg", quality=90)


def _needed(module: str) -> object:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError as error:
        package = {"PIL.Image": "pillow", "google_crc32c": "google-crc32c"}.get(module, module)
        raise harness.Unable(f"{module} is not installed: pip install {package}") from error


RESIZE = """
import io
from PIL import Image

def resize(sample):
    image = Image.open(io.BytesIO(sample["payload"])).convert("RGB").resize((224, 224))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return {"name": sample["name"], "image": out.getvalue()}
"""


POOL = """
import multiprocessing
import pathlib
import sys

from bench_pack_functions import resize

def made(path):
    return resize({"name": path.name, "payload": path.read_bytes()})["image"]

if __name__ == "__main__":
    paths = sorted(pathlib.Path(sys.argv[1]).rglob("*.jpg"))
    with multiprocessing.Pool(int(sys.argv[3])) as pool, open(sys.argv[2], "wb") as file:
        for image in pool.imap(made, paths, chunksize=16):
            file.write(image)
"""


class Arms:
    """How each arm runs a round."""

    def __init__(self, settings: harness.Settings) -> None:
        """Make the inputs."""
        self.inputs = Inputs(settings)
        self.out = self.inputs.folder / "out"
        self.peaks: list[float] = []
        self.seconds: dict[str, list[float]] = {}
        self.cpu_s: dict[pathlib.Path, list[float]] = {}  # Times of all processes of a packing.
        (self.inputs.folder / "bench_pack_functions.py").write_text(RESIZE)
        (self.inputs.folder / "bench_pack_pool.py").write_text(POOL)

    def _begun(self, source: pathlib.Path, *options: str) -> "subprocess.Popen[bytes]":
        command = shutil.which("ffrecord-pack")
        if command is None:
            raise harness.Unable("no ffrecord-pack: start this through benchmarks/run")
        words = [command, str(source), str(self.out), *options]
        return subprocess.Popen(
            words, cwd=self.inputs.folder, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def pack(self, source: pathlib.Path, *options: str) -> float:
        """Seconds of a packing from nothing."""
        self._clear()
        began = time.monotonic()
        process = self._begun(source, *options)
        _, status, usage = os.wait4(process.pid, 0)
        if process.poll() is None:
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if os.waitstatus_to_exitcode(status) != 0:
            raise harness.Unable(f"packing {source} failed")
        self.peaks.append(usage.ru_maxrss * 1024.0)
        self.cpu_s.setdefault(source, []).append(usage.ru_utime + usage.ru_stime)
        return seconds

    def pack_in_process(self, source: pathlib.Path) -> float:
        """Seconds of a packing in one process, without its imports."""
        self._clear()
        code = (
            "import json, sys, time; import pyarrow.parquet; from ffrecord.pack import pack;"
            "began = time.monotonic(); pack(sys.argv[1], sys.argv[2]);"
            "print(json.dumps({'seconds': time.monotonic() - began}))"
        )
        done = harness.run_json(sys.executable, "-c", code, source, self.out)
        return float(done["seconds"])

    def _clear(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        for left in self.inputs.folder.glob(".out.packing*"):
            shutil.rmtree(left, ignore_errors=True)

    def resize_in_pool(self, workers: int) -> float:
        """Seconds in which a pool of processes resizes the images into a file, without a sync."""
        self._clear()
        words = [sys.executable, "bench_pack_pool.py", self.inputs.images, self.out, str(workers)]
        began = time.monotonic()
        subprocess.run(words, cwd=self.inputs.folder, check=True)
        seconds = time.monotonic() - began
        self.out.unlink()
        return seconds

    def arm(self, name: str, what: str, count: float, run: Callable[[], float]) -> harness.Arm:
        """An arm whose value is `count` by second."""

        def timed(_: int) -> float:
            seconds = run()
            self.seconds.setdefault(name, []).append(seconds)
            return count / seconds

        return harness.Arm(name, what, timed)

    def killed(self, whole_s: Callable[[], float], source: pathlib.Path, *options: str) -> float:
        """Seconds of a run that is killed ten times, spread over the time of a whole one."""
        self._clear()
        limit_s = whole_s() / (KILLS + 1)
        total = 0.0
        for _ in range(KILLS):
            process = self._begun(source, *options)
            began = time.monotonic()
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            total += time.monotonic() - began
        began = time.monotonic()
        if self._begun(source, *options).wait() != 0:
            raise harness.Unable("a packing that was killed does not end")
        return total + time.monotonic() - began


def _fio(path: pathlib.Path, size_bytes: int) -> float:
    """Seconds of a sequential write."""
    options = {
        "name": "write",
        "filename": path,
        "rw": "write",
        "ioengine": "io_uring",
        "direct": 1,
        "bs": FIO_BLOCK,
        "iodepth": 4,
        "size": size_bytes // FIO_BLOCK * FIO_BLOCK,
        "fallocate": "none",
        "end_fsync": 1,
        "refill_buffers": 1,
        "output-format": "json",
    }
    words = [f"--{key}={value}" for key, value in options.items()]
    done = harness.run_json(harness.foreign("fio", "fio"), *words)
    path.unlink(missing_ok=True)
    return float(done["jobs"][0]["job_runtime"]) / 1000


def _cat(folder: pathlib.Path) -> float:
    """Seconds in which two processes read all files of a folder of two classes."""
    began = time.monotonic()
    words = "find {} -type f | sort | xargs cat > /dev/null"
    both = [subprocess.Popen(["sh", "-c", words.format(each)]) for each in sorted(folder.iterdir())]
    for one in both:
        one.wait()
    return time.monotonic() - began


def _read_parquet(path: pathlib.Path) -> float:
    """Seconds in which pyarrow reads a file, in a process of its own."""
    code = (
        "import json, sys, time; import pyarrow.parquet as p; began = time.monotonic();"
        "p.read_table(sys.argv[1]); print(json.dumps({'seconds': time.monotonic() - began}))"
    )
    return float(harness.run_json(sys.executable, "-c", code, path)["seconds"])


def _read_cold(path: pathlib.Path, number: int) -> float:
    """Seconds in which random batches are read that are not in the page cache."""
    harness.make_cold(path)
    code = (
        "import json, sys, time; import numpy as np; import ffrecord;"
        "r = ffrecord.open(sys.argv[1]); n = int(sys.argv[2]); r.read([0]);"
        "order = np.random.default_rng(int(sys.argv[3])).permutation(len(r))[:n];"
        "began = time.monotonic(); [r.read(order[i:i + 128]) for i in range(0, n, 128)];"
        "print(json.dumps({'seconds': time.monotonic() - began}))"
    )
    words = (path, str(COLD_RECORDS), str(number))
    return float(harness.run_json(sys.executable, "-c", code, *words)["seconds"])


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare packing with its limits."""
    if harness.free_bytes(settings.scratch) < (12 << 30 if settings.quick else 16 << 30):
        raise harness.Unable(f"{settings.scratch} is too full for the inputs and results")
    arms = Arms(settings)
    inputs = arms.inputs
    file_mb = inputs.file_count * FILE_BYTES / 1e6
    tar_mb = inputs.tar.stat().st_size / 1e6
    part = ["--part-size", f"{PART_BYTES}B"]
    two = [*part, "--workers", "2"]
    resize = ["--map", "bench_pack_functions:resize", "--part-size", "256KiB"]
    limit = inputs.folder / "fio.tmp"
    size_bytes = inputs.file_count * FILE_BYTES

    def slower_limit() -> float:
        return max(_fio(limit, size_bytes), _cat(inputs.classes))

    parts = [
        arms.arm("folder", "MB/s, files of 110 KB", file_mb, lambda: arms.pack(inputs.classes)),
        arms.arm("limit", "MB/s, the slower of fio's write and cat", file_mb, slower_limit),
        arms.arm("tar", "MB/s, the same files in a tar", tar_mb, lambda: arms.pack(inputs.tar)),
        arms.arm("fio", "MB/s, fio's write", tar_mb, lambda: _fio(limit, int(tar_mb * 1e6))),
        arms.arm(
            "jsonl",
            "lines/s to typed columns, two workers",
            inputs.line_count,
            lambda: arms.pack(inputs.lines, *two),
        ),
        arms.arm(
            "tfrecord",
            "examples/s of four features",
            inputs.example_count,
            lambda: arms.pack(inputs.examples),
        ),
        arms.arm(
            "parquet",
            "rows/s of ten columns",
            inputs.row_count,
            lambda: arms.pack_in_process(inputs.parquet),
        ),
        arms.arm(
            "pyarrow",
            "rows/s, pyarrow's read_table",
            inputs.row_count,
            lambda: _read_parquet(inputs.parquet),
        ),
        arms.arm(
            "resize_1",
            "images/s, resized and re-encoded by a function, one worker",
            inputs.image_count,
            lambda: arms.pack(inputs.images, *resize),
        ),
        arms.arm(
            "resize_2",
            "the same, two workers",
            inputs.image_count,
            lambda: arms.pack(inputs.images, *resize, "--workers", "2"),
        ),
        arms.arm(
            "pool_1",
            "the same function in multiprocessing.Pool, one process",
            inputs.image_count,
            lambda: arms.resize_in_pool(1),
        ),
        arms.arm(
            "pool_2",
            "the same, two processes",
            inputs.image_count,
            lambda: arms.resize_in_pool(2),
        ),
        arms.arm(
            "killed",
            "the same, one worker, killed ten times and continued",
            inputs.image_count,
            lambda: (
                arms.killed(lambda: arms.seconds["resize_1"][-1], inputs.images, *resize)
                if "resize_1" in arms.seconds
                else arms.killed(lambda: arms.pack(inputs.images, *resize), inputs.images, *resize)
            ),
        ),
    ]
    parts += [
        harness.Arm(
            "in_place",
            "records/s, random batches of 128 of the tar in place, cold",
            lambda number: COLD_RECORDS / _read_cold(inputs.tar, number),
        ),
        harness.Arm(
            "packed",
            "records/s, the same of the record file packed from it",
            lambda number: COLD_RECORDS / _read_cold(inputs.packed, number),
        ),
    ]
    values = harness.interleave(parts, settings.rounds)
    arms._clear()
    figures = {
        "pack_jsonl_mrps": [value / 1e6 for value in values["jsonl"]],
        "pack_tfrecord_us": [1e6 / value for value in values["tfrecord"]],
        "pack_jsonl_cpu_us": [s / inputs.line_count * 1e6 for s in arms.cpu_s[inputs.lines]],
        "pack_tfrecord_cpu_us": [
            s / inputs.example_count * 1e6 for s in arms.cpu_s[inputs.examples]
        ],
        "pack_resume_cost": [
            whole / killed
            for whole, killed in zip(values["resize_1"], values["killed"], strict=True)
        ],
        "pack_kill_s": [
            inputs.image_count * (1 / killed - 1 / whole) / KILLS
            for whole, killed in zip(values["resize_1"], values["killed"], strict=True)
        ],
        "pack_peak_bytes": [max(arms.peaks)] * settings.rounds,
    }
    return harness.Outcome(
        unit="of each arm",
        arms=parts,
        values=values,
        ratios={
            "pack_folder_vs_limit": ("folder", "limit"),
            "pack_tar_vs_fio": ("tar", "fio"),
            "pack_parquet_vs_read": ("parquet", "pyarrow"),
            "pack_jobs_gain": ("resize_2", "resize_1"),
            "pack_pool_gain": ("pool_2", "pool_1"),
            "pack_jobs_vs_pool": ("resize_2", "pool_2"),
            "in_place_vs_packed": ("in_place", "packed"),
        },
        figures=figures,
        notes=[
            f"{inputs.file_count:,} files; {inputs.line_count:,} lines, "
            f"{inputs.lines.stat().st_size / inputs.line_count:.0f} bytes each; "
            f"{inputs.example_count:,} examples; {inputs.row_count:,} rows; "
            f"{inputs.image_count:,} images; {settings.rounds} rounds"
        ],
    )
