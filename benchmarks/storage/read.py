"""Random batches of 110 KB records, cold and warm, against fio, pread and memcpy.

Records are log-normal in size, random in content; a batch is 128 of them, drawn without
replacement. The file is the same for all arms, and so are offsets and sizes: fio replays them from
a log, widened to whole blocks as O_DIRECT wants. Each arm of a round draws records of its own,
lest one arm warms a cache below for the next. Cold arms start with at most 1 % of the file in the
page cache, warm ones with at least 99 %; ours verifies every record's checksum, the others none.
"""

import dataclasses
import os
import pathlib
import struct

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
HEADER_BYTES = 128  # docs/format.md, "Version 2".
RECORD_HEADER_BYTES = 32
SEGMENT_RECORDS = 170 * 256


@dataclasses.dataclass(frozen=True)
class Data:
    """The file, and where its records lie in it."""

    path: pathlib.Path
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def locate(path: pathlib.Path, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Walk the record headers of a file whose records fill less than one index segment."""
    offsets, sizes = np.empty(count, np.int64), np.empty(count, np.int64)
    at = HEADER_BYTES
    with path.open("rb", buffering=0) as file:
        for index in range(count):
            header = os.pread(file.fileno(), RECORD_HEADER_BYTES, at)
            magic, number = struct.unpack_from("<4s12xQ", header)
            if magic != b"\xe5REC" or number & (2**48 - 1) != index:
                raise harness.Unable(f"{path}: no header of record {index} at byte {at}")
            offsets[index] = at + RECORD_HEADER_BYTES
            sizes[index] = int.from_bytes(header[22:27], "little")
            at = int(offsets[index] + sizes[index])
    return offsets, sizes


def prepare(settings: harness.Settings) -> Data:
    """Make the data file, or take the one of the last run."""
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory += sum(file.stat().st_size for file in settings.scratch.glob("read-*.ffr"))
    size = min(FILE_BYTES_MAX, memory // 2)
    count = min(size // MEAN_BYTES, SEGMENT_RECORDS - 1)
    count -= count % 1000
    path = settings.scratch / f"read-{count}.ffr"
    if not path.exists():
        for old in settings.scratch.glob("read-*.ffr"):
            old.unlink()
        free = os.statvfs(settings.scratch)
        if free.f_bavail * free.f_frsize < size * 1.2:
            raise harness.Unable(f"{settings.scratch}: {size / 2**30:.1f} GiB do not fit")
        harness.run_json(
            harness.program(settings, "read-arm"), "make", path, count, MEAN_BYTES, SIGMA, SEED
        )
    return Data(path, *locate(path, count))


def fio_log(data: Data, indices: npt.NDArray[np.int64]) -> str:
    """Write reads as fio replays them, in whole blocks."""
    first = data.offsets[indices] // BLOCK * BLOCK
    last = -(-(data.offsets[indices] + data.sizes[indices]) // BLOCK) * BLOCK
    reads = [
        f"{data.path} read {at} {to - at}\n"
        for at, to in zip(first.tolist(), last.tolist(), strict=True)
    ]
    return (
        f"fio version 2 iolog\n{data.path} add\n{data.path} open\n"
        + "".join(reads)
        + f"{data.path} close\n"
    )


class Arms:
    """How each arm runs one round."""

    def __init__(self, settings: harness.Settings, data: Data) -> None:
        """Give every arm its own random stream."""
        self.settings = settings
        self.data = data
        self.trace = settings.scratch / "read.trace"
        self.program = harness.program(settings, "read-arm")
        self.fio_program = harness.foreign("fio", "fio")

    def draw(self, arm: str, number: int, batches: int) -> npt.NDArray[np.int64]:
        """Pick the records that `arm` reads in round `number`; no other arm reads the same."""
        seed = [SEED, number, *arm.encode()]
        order = np.random.default_rng(seed).permutation(len(self.data.sizes)).astype(np.int64)
        return order[: batches * BATCH]

    def ours(self, arm: str, kind: str, cold: bool, batches: int) -> harness.Arm:
        """Make an arm that a program of ours runs: `kind` is what it does with the records."""
        what = {
            "direct": "RecordReader, O_DIRECT, checksums on",
            "buffered": "RecordReader, buffered, checksums on",
            "pread": "a loop of pread, buffered, no checks",
            "checked-pread": "a loop of pread, buffered, each record hashed",
            "memcpy": "memcpy out of the mapped file: the limit of warm reads",
        }[kind]

        def run(number: int) -> float:
            indices = self.draw(arm, number, batches)
            rows = np.stack([indices, self.data.offsets[indices], self.data.sizes[indices]], 1)
            self.trace.write_bytes(rows.astype("<u8").tobytes())
            (harness.make_cold if cold else harness.make_warm)(self.data.path)
            done = harness.run_json(
                self.program, "read", kind, self.data.path, self.trace, BATCH, DEPTH
            )
            expected = int(self.data.sizes[indices].sum())
            if done["bytes"] != expected:
                raise harness.Unable(f"{arm} read {done['bytes']} bytes, not {expected}")
            return float(done["records"] / done["seconds"])

        return harness.Arm(arm, what, run)

    def fio(self, arm: str, batches: int) -> harness.Arm:
        """Make the arm that fio runs, cold, with the same reads."""

        def run(number: int) -> float:
            indices = self.draw(arm, number, batches)
            self.trace.write_text(fio_log(self.data, indices))
            harness.make_cold(self.data.path)
            options = {
                "name": "read",
                "ioengine": "io_uring",
                "direct": 1,
                "iodepth": DEPTH,
                "read_iolog": self.trace,
                "replay_no_stall": 1,
                "output-format": "json",
            }
            done = harness.run_json(
                self.fio_program, *(f"--{key}={value}" for key, value in options.items())
            )
            read = done["jobs"][0]["read"]
            if read["total_ios"] != len(indices):
                raise harness.Unable(f"fio did {read['total_ios']} reads, not {len(indices)}")
            return float(read["total_ios"] / (read["runtime"] / 1000))

        return harness.Arm(arm, "fio, io_uring, O_DIRECT, same reads, same depth", run)


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare reads of random batches, cold and warm."""
    data = prepare(settings)
    arms = Arms(settings, data)
    cold, warm = (24, 60) if settings.quick else (80, 200)
    limit = len(data.sizes) // BATCH
    cold, warm = min(cold, limit), min(warm, limit)
    parts = [
        arms.fio("cold_fio", cold),
        arms.ours("cold_ours", "direct", True, cold),
        arms.ours("cold_ours_buffered", "buffered", True, cold),
        arms.ours("cold_pread", "pread", True, cold),
        arms.ours("warm_ours", "buffered", False, warm),
        arms.ours("warm_pread", "pread", False, warm),
        arms.ours("warm_checked_pread", "checked-pread", False, warm),
        arms.ours("warm_memcpy", "memcpy", False, warm),
    ]
    # All cold arms of all rounds, then all warm ones: turning the cache over takes time.
    values = harness.interleave(parts[:4], settings.rounds)
    values |= harness.interleave(parts[4:], settings.rounds)
    arms.trace.unlink(missing_ok=True)
    return harness.Outcome(
        unit="images/s",
        arms=parts,
        values=values,
        ratios={
            "cold_images_vs_fio": ("cold_ours", "cold_fio"),
            "cold_images_vs_pread": ("cold_ours", "cold_pread"),
            "cold_buffered_images_vs_pread": ("cold_ours_buffered", "cold_pread"),
            "warm_images_vs_pread": ("warm_ours", "warm_pread"),
            "warm_images_vs_checked_pread": ("warm_ours", "warm_checked_pread"),
            "warm_images_vs_memcpy": ("warm_ours", "warm_memcpy"),
        },
        notes=[
            f"{len(data.sizes):,} records, mean {data.sizes.mean():,.0f} bytes, "
            f"{data.path.stat().st_size / 2**30:.1f} GiB; batch {BATCH}, depth {DEPTH}, "
            f"{cold} cold and {warm} warm batches a round, {settings.rounds} rounds"
        ],
    )
