"""Random batches of large and small records, cold and warm, against fio, pread and memcpy.

Images: 110 KB on average, log-normal, random content; a batch is 128 of them, drawn without
replacement. The file is the same for all arms, and so are offsets and sizes: fio replays them from
a log, widened to whole blocks as O_DIRECT wants. Each arm of a round draws records of its own, so
that no arm warms a cache below for the next. Cold arms start with at most 1 % of the file in the
page cache, warm ones with at least 99 %; ours verifies every record's checksum, the others none. A
warm arm is one process that stays and has read the whole file once before it is measured, as a
training process has after its first epoch; `_first_epoch` arms are a new process each round. Cold
images meet fio twice: with our settings, and with the best that a sweep over fio's own found in
this run: huge pages, depth, and the size of the pieces that a record is read in. --part runs one of
images, blocks, tiny and growth.

Blocks: 4 KiB each, aligned so that a record is one block, cold, batches of 256, against fio.
Tiny: 100 B each, warm, batches of 4096, on one core: C++, and through Python's Batch.
Growth: random reads of small records out of files of 10^4 to 10^7 of them. `growth` is of a window
of 10^4 neighbours somewhere in the file, warm: the same bytes to keep in caches whatever N, so that
only what the reader does can differ. `growth_raw` is of the whole file, past the page cache: there
the device and the processor's caches see ever more bytes too.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable

import harness
import numpy as np
import numpy.typing as npt

MEAN_BYTES = 110_000
SIGMA = 0.5
BATCH = 128
DEPTH = 64
FILE_BYTES_MAX = 3 << 30
BLOCK = 4096
SEED = 7
HEADER_BYTES = 128  # format.md, "Version 2".
RECORD_HEADER_BYTES = 32
SEGMENT_RECORDS = 170 * 256

FIO_DEPTHS = (16, 32, 64, 128)
FIO_PIECES_BYTES = (0, 256 << 10, 64 << 10)  # 0: a record in one read.
FIO_FINALISTS, FIO_FINAL_TURNS = 3, 3
# How long the sweep may take; what comes late is not tried, and the notes say so.
FIO_SWEEP_S, FIO_SWEEP_QUICK_S = 120, 45

BLOCK_BATCH = 256
BLOCK_DEPTH = 128
BLOCK_RECORDS = 200_000  # Each takes two blocks: its header needs room before the next.
TINY_BYTES = 100
TINY_RECORDS = 2_000_000
TINY_BATCH = 4096
GROWTH_BYTES = 100  # And 32 of header and 24 of index: 1.6 GB at 10^7.
GROWTH_COUNTS = (10**4, 10**5, 10**6, 10**7)
GROWTH_READS = 12_800
GROWTH_BATCH = 16
GROWTH_WINDOW_READS = 1_000_000
GROWTH_WINDOW_BATCH = 256

PYTHON_EPOCH = """
import json, sys, time
import numpy as np
import ffrecord
path, batch, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
reader = ffrecord.open(path)
order = np.random.default_rng(seed).permutation(len(reader))
for _ in range(2):
    start = time.perf_counter()
    size = 0
    for first in range(0, len(order), batch):
        got = reader.read(order[first : first + batch])
        size += int(got.sizes[-1])
    seconds = time.perf_counter() - start
print(json.dumps({"records": len(order), "bytes": size, "seconds": seconds}))
"""


@dataclasses.dataclass(frozen=True)
class Data:
    """The file, and where its records lie in it."""

    path: pathlib.Path
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def locate(
    path: pathlib.Path, count: int, alignment: int = 1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Walk the record headers of a file whose records fill less than one index segment."""
    offsets, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    at = HEADER_BYTES
    with path.open("rb", buffering=0) as file:
        for index in range(count):
            at += -(at + RECORD_HEADER_BYTES) % alignment  # Payloads are aligned.
            header = os.pread(file.fileno(), RECORD_HEADER_BYTES, at)
            magic, number = struct.unpack_from("<4s12xQ", header)
            if magic != b"\xe5REC" or number & (2**48 - 1) != index:
                raise harness.Unable(f"{path}: no header of record {index} at byte {at}")
            offsets[index] = at + RECORD_HEADER_BYTES
            sizes[index] = int.from_bytes(header[22:27], "little")
            at = int(offsets[index] + sizes[index])
    return offsets, sizes


def make(settings: harness.Settings, name: str, size: int, *words: object) -> pathlib.Path:
    """Make the file `name` of about `size` bytes with `read-arm`, or take that of the last run."""
    path = settings.scratch / name
    if not path.exists():
        for old in settings.scratch.glob(f"{name.partition('-')[0]}-*.ffr"):
            old.unlink()
        free = os.statvfs(settings.scratch)
        if free.f_bavail * free.f_frsize < size * 1.2:
            raise harness.Unable(f"{settings.scratch}: {size / 2**30:.1f} GiB do not fit")
        how, *sizes = words
        harness.run_json(harness.program(settings, "read-arm"), how, path, *sizes, SEED)
    return path


def prepare(settings: harness.Settings) -> Data:
    """Make the file of images, or take the one of the last run."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory += sum(file.stat().st_size for file in settings.scratch.glob("read-*.ffr"))
    size = min(FILE_BYTES_MAX, memory // 2)
    count = min(size // MEAN_BYTES, SEGMENT_RECORDS - 1)
    count -= count % 1000
    path = make(settings, f"read-{count}.ffr", size, "make", count, MEAN_BYTES, SIGMA)
    return Data(path, *locate(path, count))


def prepare_blocks(settings: harness.Settings) -> Data:
    """Make the file of aligned blocks; where they lie follows from the format."""
    count = BLOCK_RECORDS // 4 if settings.quick else BLOCK_RECORDS
    path = make(
        settings, f"blocks-{count}.ffr", count * 2 * BLOCK, "make-equal", count, BLOCK, BLOCK
    )
    return Data(path, *locate(path, min(count, SEGMENT_RECORDS - 1), BLOCK))


@dataclasses.dataclass(frozen=True)
class FioSettings:
    """How fio reads."""

    depth: int
    huge_pages: bool = False  # Its memory; ours lies in such pages.
    piece_bytes: int = 0  # Records are cut into reads of so many; 0: not.

    def __str__(self) -> str:
        """For notes and names of arms."""
        pages = "huge pages" if self.huge_pages else "pages of 4 KiB"
        pieces = f"reads of {self.piece_bytes >> 10} KiB" if self.piece_bytes else "whole records"
        return f"depth {self.depth}, {pages}, {pieces}"


def fio_reads(
    data: Data, indices: npt.NDArray[np.int64], piece_bytes: int
) -> list[tuple[int, int]]:
    """List the reads of records as offset and size, in whole blocks."""
    first = data.offsets[indices] // BLOCK * BLOCK
    last = -(-(data.offsets[indices] + data.sizes[indices]) // BLOCK) * BLOCK
    return [
        (at, min(piece_bytes, end - at) if piece_bytes else end - at)
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        for at in range(begin, end, piece_bytes or end - begin)
    ]


def fio_log(path: pathlib.Path, reads: list[tuple[int, int]]) -> str:
    """Write reads as fio replays them."""
    return (
        f"fio version 2 iolog\n{path} add\n{path} open\n"
        + "".join(f"{path} read {at} {size}\n" for at, size in reads)
        + f"{path} close\n"
    )


class Server:
    """A `read-arm serve` that stays: ask it for one trace after the other."""

    def __init__(self, *command: object) -> None:
        """Start it; it opens the file."""
        words = [str(word) for word in command]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read(self, trace: pathlib.Path) -> dict[str, float]:
        """Read what the trace says."""
        pipes = self.process.stdin, self.process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise AssertionError
        print(trace, file=pipes[0], flush=True)
        line = pipes[1].readline()
        if not line:
            raise harness.Unable(f"read-arm ended with {self.process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def stop(self) -> None:
        """Let it end."""
        self.process.communicate()


class Arms:
    """How each arm runs one round."""

    def __init__(
        self, settings: harness.Settings, data: Data, batch: int, depth: int = DEPTH
    ) -> None:
        """Give every arm its own random stream; `depth` reads are in flight in each."""
        self.settings = settings
        self.data = data
        self.batch = batch
        self.depth = depth
        self.cpu_s_per_gb: dict[str, list[float]] = {}
        self.trace = settings.scratch / "read.trace"
        self.program = harness.program(settings, "read-arm")
        self.servers: dict[str, Server] = {}

    def draw(self, arm: str, number: int, batches: int) -> npt.NDArray[np.int64]:
        """Pick the records that `arm` reads in round `number`; no other arm reads the same."""
        seed = [SEED, number, *arm.encode()]
        order = np.random.default_rng(seed).permutation(len(self.data.sizes)).astype(np.int64)
        return order[: batches * self.batch]

    def write_trace(self, indices: npt.NDArray[np.int64]) -> None:
        """Write the records as `read-arm` takes them."""
        rows = np.stack([indices, self.data.offsets[indices], self.data.sizes[indices]], 1)
        self.trace.write_bytes(rows.astype("<u8").tobytes())

    def serve(self, arm: str, kind: str, stays: bool) -> Server:
        """Start the program for an arm; one that stays has then read the whole file."""
        if arm in self.servers:
            return self.servers[arm]
        server = Server(self.program, "serve", kind, self.data.path, self.batch, self.depth)
        if stays:
            self.write_trace(np.arange(len(self.data.sizes), dtype=np.int64))
            server.read(self.trace)
            self.servers[arm] = server
        return server

    def stop(self) -> None:
        """End what stayed."""
        for server in self.servers.values():
            server.stop()
        self.trace.unlink(missing_ok=True)

    def ours(
        self, arm: str, kind: str, cold: bool, batches: int, stays: bool = False
    ) -> harness.Arm:
        """Make an arm that a program of ours runs: `kind` is what it does with the records."""
        what = {
            "direct": "RecordReader, O_DIRECT, checksums on",
            "direct-unchecked": "RecordReader, O_DIRECT, checksums off",
            "direct-pair": "two threads of one processor, each with half of the depth",
            "direct-queue": "one thread, four batches in flight",
            "auto": "RecordReader as it is by default, checksums on",
            "buffered": "RecordReader, buffered, checksums on",
            "pread": "a loop of pread, buffered, no checks",
            "checked-pread": "a loop of pread, buffered, each record hashed",
            "malloc-zlib": "pread into fresh memory for each record, each with zlib's CRC-32",
            "memcpy": "memcpy out of the mapped file: the limit of warm reads",
        }[kind]

        def run(number: int) -> float:
            (harness.make_cold if cold else harness.make_warm)(self.data.path)
            server = self.serve(arm, kind, stays)
            indices = self.draw(arm, number, batches)
            self.write_trace(indices)
            done = server.read(self.trace)
            if not stays:
                server.stop()
            expected = int(self.data.sizes[indices].sum())
            if done["bytes"] != expected:
                raise harness.Unable(f"{arm} read {done['bytes']} bytes, not {expected}")
            self.cpu_s_per_gb.setdefault(arm, []).append(done["cpu_seconds"] / expected * 1e9)
            return float(done["records"] / done["seconds"])

        return harness.Arm(arm, what, run)

    def fio(self, arm: str, batches: int, how: FioSettings | None = None) -> harness.Arm:
        """Make the arm that fio runs, cold, with the same reads; at our depth by default."""
        settings = how or FioSettings(self.depth)

        def run(number: int) -> float:
            indices = self.draw(arm, number, batches)
            reads = fio_reads(self.data, indices, settings.piece_bytes)
            self.trace.write_text(fio_log(self.data.path, reads))
            harness.make_cold(self.data.path)
            options = {
                "name": "read",
                "ioengine": "io_uring",
                "direct": 1,
                "iodepth": settings.depth,
                "read_iolog": self.trace,
                "replay_no_stall": 1,
                "output-format": "json",
            }
            # The C library asks for huge pages of what fio allocates; no administrator is needed.
            tunables = f"GLIBC_TUNABLES=glibc.malloc.hugetlb={int(settings.huge_pages)}"
            done = harness.run_json(
                *("env", tunables, harness.foreign("fio", "fio")),
                *(f"--{key}={value}" for key, value in options.items()),
            )
            job = done["jobs"][0]
            read = job["read"]
            if read["total_ios"] != len(reads):
                raise harness.Unable(f"fio did {read['total_ios']} reads, not {len(reads)}")
            cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
            wanted = int(self.data.sizes[indices].sum())
            self.cpu_s_per_gb.setdefault(arm, []).append(cpu_s / wanted * 1e9)
            return float(len(indices) / (read["runtime"] / 1000))

        what = "same reads, same depth" if how is None else str(how)
        return harness.Arm(arm, f"fio, io_uring, O_DIRECT, {what}", run)


def best_fio(arms: Arms, batches: int) -> tuple[FioSettings, str]:
    """Try fio's settings in any order, the best of them again; return the best and a note.

    The sweep only chooses the settings: that arm is then measured in the rounds, like all others.
    """
    end = time.monotonic() + (FIO_SWEEP_QUICK_S if arms.settings.quick else FIO_SWEEP_S)
    ways = [
        FioSettings(depth, huge, piece)
        for huge, depth, piece in itertools.product((True, False), FIO_DEPTHS, FIO_PIECES_BYTES)
    ]
    random.Random(SEED).shuffle(ways)  # A cut sweep lacks none of the values altogether.
    found: dict[FioSettings, list[float]] = {}
    number = 0

    def turn(way: FioSettings) -> None:
        nonlocal number
        number += 1
        found.setdefault(way, []).append(arms.fio("fio_sweep", batches, way).run(number))

    def median(way: FioSettings) -> float:
        return statistics.median(found[way])

    # A quarter of the time is kept for the best ones.
    start = time.monotonic()
    for way in ways:
        if not found or time.monotonic() < end - (end - start) / 4:
            turn(way)
    finalists = sorted(found, key=median, reverse=True)[:FIO_FINALISTS]
    for way in finalists * (FIO_FINAL_TURNS - 1):
        if time.monotonic() < end:
            turn(way)
    best = max(finalists, key=median)
    del arms.cpu_s_per_gb["fio_sweep"]
    return best, f"fio's sweep tried {len(found)} of {len(ways)} settings; best: {best}"


def images(settings: harness.Settings) -> harness.Outcome:
    """Compare reads of batches of images, cold and warm."""
    data = prepare(settings)
    arms = Arms(settings, data, BATCH)
    cold, warm = (24, 60) if settings.quick else (40, 100)
    limit = len(data.sizes) // BATCH
    cold, warm = min(cold, limit), min(warm, limit)
    try:
        best, swept = best_fio(arms, cold // 2)
    except harness.Missing:
        best, swept = FioSettings(DEPTH), "no fio, no sweep"
    parts = [
        arms.fio("cold_fio", cold),
        arms.fio("cold_best_fio", cold, best),
        arms.ours("cold_ours", "direct", True, cold),
        arms.ours("cold_ours_queue", "direct-queue", True, cold),
        arms.ours("cold_ours_unchecked", "direct-unchecked", True, cold),
        arms.ours("cold_ours_default", "auto", True, cold),
        arms.ours("cold_pread", "pread", True, cold),
    ]
    warm_parts = [
        arms.ours("warm_ours", "auto", False, warm, stays=True),
        arms.ours("warm_pread", "pread", False, warm, stays=True),
        arms.ours("warm_checked_pread", "checked-pread", False, warm, stays=True),
        arms.ours("warm_malloc_zlib", "malloc-zlib", False, warm, stays=True),
        arms.ours("warm_memcpy", "memcpy", False, warm, stays=True),
        arms.ours("warm_ours_first_epoch", "auto", False, warm),
        arms.ours("warm_pread_first_epoch", "pread", False, warm),
    ]
    # All cold arms of all rounds, then all warm ones: turning the cache over takes time.
    values = harness.interleave(parts, settings.rounds)
    values |= harness.interleave(warm_parts, settings.rounds)
    arms.stop()
    values |= {f"{name}_cpu_s_per_gb": found for name, found in arms.cpu_s_per_gb.items()}
    return harness.Outcome(
        unit="records/s",
        arms=parts + warm_parts,
        values=values,
        ratios={
            "cold_images_vs_fio": ("cold_ours", "cold_fio"),
            "cold_images_vs_best_fio": ("cold_ours", "cold_best_fio"),
            "cold_images_queue_vs_best_fio": ("cold_ours_queue", "cold_best_fio"),
            "cold_images_cpu_vs_best_fio_cost": (
                "cold_ours_cpu_s_per_gb",
                "cold_best_fio_cpu_s_per_gb",
            ),
            "cold_images_cpu_cost": ("cold_ours_cpu_s_per_gb", "cold_fio_cpu_s_per_gb"),
            "cold_images_unchecked_cpu_cost": (
                "cold_ours_unchecked_cpu_s_per_gb",
                "cold_fio_cpu_s_per_gb",
            ),
            "cold_images_vs_pread": ("cold_ours", "cold_pread"),
            "cold_default_images_vs_pread": ("cold_ours_default", "cold_pread"),
            "warm_images_vs_pread": ("warm_ours", "warm_pread"),
            "warm_images_first_epoch_vs_pread": (
                "warm_ours_first_epoch",
                "warm_pread_first_epoch",
            ),
            "warm_images_vs_checked_pread": ("warm_ours", "warm_checked_pread"),
            "warm_images_vs_malloc_zlib": ("warm_ours", "warm_malloc_zlib"),
            "warm_images_vs_memcpy": ("warm_ours", "warm_memcpy"),
        },
        figures={
            f"{name}_cpu_s_per_gb": found
            for name, found in arms.cpu_s_per_gb.items()
            if name in ("cold_ours", "cold_ours_unchecked", "cold_fio", "cold_best_fio")
        },
        notes=[
            f"images: {len(data.sizes):,} records, mean {data.sizes.mean():,.0f} bytes, "
            f"{data.path.stat().st_size / 2**30:.1f} GiB; batch {BATCH}, depth {DEPTH}, "
            f"{cold} cold and {warm} warm batches a round, {settings.rounds} rounds",
            swept,
        ],
    )


def blocks(settings: harness.Settings) -> harness.Outcome:
    """Compare cold reads of single blocks."""
    data = prepare_blocks(settings)
    arms = Arms(settings, data, BLOCK_BATCH, BLOCK_DEPTH)
    batches = min(40 if settings.quick else 100, len(data.sizes) // BLOCK_BATCH)
    parts = [
        arms.fio("blocks_fio", batches),
        arms.ours("blocks_ours", "direct", True, batches),
        arms.ours("blocks_pair", "direct-pair", True, batches),
        arms.ours("blocks_queue", "direct-queue", True, batches),
    ]
    values = harness.interleave(parts, settings.rounds)
    arms.stop()
    values |= {f"{name}_cpu_s_per_gb": found for name, found in arms.cpu_s_per_gb.items()}
    return harness.Outcome(
        unit="records/s",
        arms=parts,
        values=values,
        ratios={
            "cold_4k_vs_fio": ("blocks_pair", "blocks_fio"),
            "cold_4k_one_thread_vs_fio": ("blocks_ours", "blocks_fio"),
            "cold_4k_queue_vs_fio": ("blocks_queue", "blocks_fio"),
            "cold_4k_cpu_cost": ("blocks_pair_cpu_s_per_gb", "blocks_fio_cpu_s_per_gb"),
        },
        notes=[f"blocks: batch {BLOCK_BATCH}, depth {BLOCK_DEPTH}, {batches} batches a round"],
    )


def epoch(
    settings: harness.Settings, arm: str, what: str, path: pathlib.Path, *words: object
) -> harness.Arm:
    """Make an arm that reads records of an order: `words` are those of `read-arm epoch`."""
    kind, *rest = words

    def run(number: int) -> float:
        harness.make_warm(path)
        program = harness.program(settings, "read-arm")
        done = harness.run_json(program, "epoch", kind, path, *rest, SEED + number)
        return float(done["records"] / done["seconds"])

    return harness.Arm(arm, what, run)


def python_epoch(path: pathlib.Path) -> harness.Arm:
    """Make the arm that reads tiny records through Python."""

    def run(number: int) -> float:
        harness.make_warm(path)
        done = harness.run_json(sys.executable, "-c", PYTHON_EPOCH, path, TINY_BATCH, SEED + number)
        return float(done["records"] / done["seconds"])

    return harness.Arm("tiny_python", "Reader.read, random, checksums on", run)


def tiny(settings: harness.Settings) -> harness.Outcome:
    """Read records of 100 B as fast as one core can."""
    path = make(
        settings,
        f"tiny-{TINY_RECORDS}.ffr",
        TINY_RECORDS * (TINY_BYTES + 60),
        *("make-equal", TINY_RECORDS, TINY_BYTES, 1),
    )

    def arm(name: str, what: str, kind: str, order: str) -> harness.Arm:
        return epoch(settings, name, what, path, kind, order, TINY_RECORDS, TINY_BATCH, 1)

    parts = [
        arm("tiny_cpp", "RecordReader, random, checksums on", "auto", "random"),
        arm("tiny_cpp_sequential", "RecordReader, in order, checksums on", "auto", "sequential"),
        arm("tiny_lookup", "table, memcpy, hash, and nothing else: the limit", "lookup", "random"),
        arm("tiny_memcpy", "memcpy out of the mapped file, random", "memcpy", "random"),
        python_epoch(path),
    ]
    values = harness.interleave(parts, settings.rounds)
    figures = {
        f"{name}_mrps": [value / 1e6 for value in values[name]]
        for name in ("tiny_cpp", "tiny_cpp_sequential", "tiny_lookup", "tiny_python")
    }
    return harness.Outcome(
        unit="records/s",
        arms=parts,
        values=values,
        ratios={
            "tiny_cpp_vs_lookup": ("tiny_cpp", "tiny_lookup"),
            "tiny_cpp_vs_memcpy": ("tiny_cpp", "tiny_memcpy"),
        },
        figures=figures,
        notes=[f"tiny: {TINY_RECORDS:,} records of {TINY_BYTES} B, batch {TINY_BATCH}"],
    )


def growth(settings: harness.Settings) -> harness.Outcome:
    """Read out of ever more records: the time of one must not depend on how many there are."""
    raw, window = [], []
    for count in GROWTH_COUNTS:
        size = count * (GROWTH_BYTES + 60)
        path = make(
            settings,
            f"growth{count}-{GROWTH_BYTES}.ffr",
            size,
            "make-equal",
            count,
            GROWTH_BYTES,
            1,
        )
        what = f"{count:,} records, O_DIRECT, any of them"
        words = ("direct", "random", GROWTH_READS, GROWTH_BATCH, 1)
        raw.append(epoch(settings, f"growth_raw_{count}", what, path, *words))
        what = f"{count:,} records, warm, a window of 10,000"
        words = ("auto", "window", GROWTH_WINDOW_READS, GROWTH_WINDOW_BATCH, 1)
        window.append(epoch(settings, f"growth_{count}", what, path, *words))
    values = harness.interleave([*raw, *window], settings.rounds)

    def grown(parts: list[harness.Arm]) -> list[float]:
        """Time per sample of the most records over that of the fewest: 1 is flat."""
        return [
            few / many
            for few, many in zip(values[parts[0].name], values[parts[-1].name], strict=True)
        ]

    return harness.Outcome(
        unit="records/s",
        arms=[*raw, *window],
        values=values,
        ratios={},
        figures={"growth": grown(window), "growth_raw": grown(raw)},
        notes=[
            f"growth: {GROWTH_BYTES} B, of {GROWTH_COUNTS[0]:,} to {GROWTH_COUNTS[-1]:,} records; "
            f"raw: {GROWTH_READS:,} reads, batch {GROWTH_BATCH}; window: "
            f"{GROWTH_WINDOW_READS:,} reads, batch {GROWTH_WINDOW_BATCH}"
        ],
    )


PARTS: dict[str, Callable[[harness.Settings], harness.Outcome]] = {
    "images": images,
    "blocks": blocks,
    "tiny": tiny,
    "growth": growth,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --part."""
    parser.add_argument("--part", choices=sorted(PARTS), help="Run only this part; all by default.")


def bench(settings: harness.Settings) -> harness.Outcome:
    """Run all of it, or one part, one after the other."""
    wanted = settings.options.part
    found = [part(settings) for name, part in PARTS.items() if wanted in (None, name)]
    whole = harness.Outcome(unit="records/s", arms=[], values={}, ratios={})
    for outcome in found:
        whole.arms.extend(outcome.arms)
        whole.values.update(outcome.values)
        whole.ratios.update(outcome.ratios)
        whole.figures.update(outcome.figures)
        whole.notes.extend(outcome.notes)
    return whole
