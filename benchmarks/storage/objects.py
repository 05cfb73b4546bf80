"""Random batches of 110 KB records from an object store, and from its cache on the local disk.

The store is a range server of ours on loopback (support/range_server.cpp), which sends the first
byte of each answer 20 ms after the request. Every arm but streaming reads the same records of the
same object in an order of the round; ours verifies every record's checksum, the others none. boto3
and s3torchconnector read in 32 threads that never wait for a batch; mosaicml-streaming downloads
whole shards of the same records into an empty folder and shuffles within its window. `bare` is the
server's own limit: requests over plain sockets, whose answers are thrown away.

`ours_fsspec` is ours with s3fs below it, in a process of its own as the peers: beside s3fs alone it
tells what order, index and checksums cost there.

`cached` is ours with a cache that a first epoch has filled, `local` the same file on the local
disk: both in the page cache, or both out of it (`_cold`).
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import harness
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "loader" / "arms"))

import environment
import read as storage

import ffrecord

HERE = pathlib.Path(__file__).resolve().parent

Trace = npt.NDArray[np.int64]  # Rows of offset, size and index.

COUNT, COUNT_QUICK = 16_000, 4_000
BATCH = 128
BATCHES_IN_FLIGHT = 4
FIRST_BYTE_MS = 20
BARE_CONNECTIONS = 256
KEY = "images.ffr"
ARM = HERE / "arms" / "object_arm.py"
PINS = HERE / "object_peers.txt"
START_S, ANSWER_S = 60.0, 120.0
PEERS = {
    "boto3": "boto3, get_object of a range in 32 threads",
    "s3fs": "s3fs, cat_ranges of a batch",
    "s3torchconnector": "s3torchconnector, range-based readers in 32 threads",
    "streaming": "mosaicml-streaming, shuffle=True, empty local folder",
}
OURS_FSSPEC = {
    "ours_fsspec": "ours over s3fs, one batch at a time",
    "ours_fsspec_queue": f"ours over s3fs, {BATCHES_IN_FLIGHT} batches in flight",
}
PARTS = ["stores", "cache"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take --part and --peers."""
    parser.add_argument("--part", choices=PARTS, help="Run only this part; both by default.")
    parser.add_argument("--peers", help="Compare with these only, separated by commas.")


@contextlib.contextmanager
def served(settings: harness.Settings, folder: pathlib.Path) -> Iterator[str]:
    """A store with the folder's own folders as buckets; gives its address."""
    process = subprocess.Popen(
        [harness.program(settings, "range-server"), folder, str(FIRST_BYTE_MS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.stdin.close()
        process.wait()


def variables(address: str) -> dict[str, str]:
    """The environment that leads every client to the store."""
    return {
        "AWS_ENDPOINT_URL": address,
        "S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "no_proxy": "*",
    }


def install(settings: harness.Settings) -> tuple[pathlib.Path, dict[str, str]]:
    """The Python of the peers, and its variables."""
    python = environment.install(settings.scratch)
    extra = settings.scratch / "object-peers"
    stamp = extra / "pins"
    if not stamp.exists() or stamp.read_text() != PINS.read_text():
        shutil.rmtree(extra, ignore_errors=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, "--no-deps", "--target", extra, "-r", PINS],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise harness.Unable(f"peers are not installed: {done.stderr.strip()[-300:]}")
        stamp.write_text(PINS.read_text())
    found = environment.variables(settings.scratch)
    return python, {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{extra}"}


class Peer:
    """A client of others, in a process that stays."""

    def __init__(self, command: list[object], variables: dict[str, str]) -> None:
        """Start it, and wait until it is ready."""
        self._errors = open(os.devnull, "w")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=variables,
            text=True,
        )
        self._answer(START_S)

    def rate(self, trace: pathlib.Path, records: int, size: int | None) -> float:
        """Read the records of a trace; `size` is what they must be."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{trace}\n")
            self._process.stdin.flush()
        found = self._answer(ANSWER_S)
        if size is not None and found["bytes"] != size:
            raise harness.Unable(f"{found['bytes']} bytes were read instead of {size}")
        return records / float(found["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _answer(self, within_s: float) -> dict[str, float]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(within_s) else ""
        if not line:
            raise harness.Lost(f"ended, or gave no answer within {within_s:.0f} s")
        found = json.loads(line)
        return found if isinstance(found, dict) else {}


def bare(address: str, trace: Trace) -> float:
    """Ask for the ranges over plain sockets, each as soon as it is free; return records/s."""
    host, port = address.removeprefix("http://").split(":")
    wanted = iter(trace.tolist())
    left: dict[socket.socket, int] = {}
    memory = bytearray(1 << 20)

    def ask(one: socket.socket) -> bool:
        for offset, size, _ in wanted:
            head = (
                f"GET /bucket/{KEY} HTTP/1.1\r\nRange: bytes={offset}-{offset + size - 1}\r\n\r\n"
            )
            one.sendall(head.encode())
            left[one] = -size  # The head of the answer is not known yet.
            return True
        return False

    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        sockets = [socket.create_connection((host, int(port))) for _ in range(BARE_CONNECTIONS)]
        for one in sockets:
            stack.enter_context(one)
            selector.register(one, selectors.EVENT_READ)
        start = time.perf_counter()
        busy = sum(ask(one) for one in sockets)
        while busy:
            for key, _ in selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                got = one.recv_into(memory)
                if left[one] < 0:
                    got -= memory.index(b"\r\n\r\n", 0, got) + 4
                    left[one] = -left[one]
                left[one] -= got
                if left[one] == 0 and not ask(one):
                    busy -= 1
        return len(trace) / (time.perf_counter() - start)


@dataclasses.dataclass
class Work:
    """The input of the arms, and in which orders they read it."""

    path: pathlib.Path
    count: int
    where: Trace
    orders: list[npt.NDArray[np.int64]]
    traces: list[pathlib.Path]
    cache: pathlib.Path

    @property
    def window(self) -> int:
        """Records of an arm in a round."""
        return self.count // 2

    def files(self) -> list[pathlib.Path]:
        """The local file, and the files of the cache."""
        return [self.path, *self.cache.rglob("*.blocks")]

    def batches(self, number: int, records: int) -> list[npt.NDArray[np.int64]]:
        """The first records of an order."""
        order = self.orders[number][:records]
        return [order[first : first + BATCH] for first in range(0, records, BATCH)]

    def read(self, reader: ffrecord.Reader, number: int, records: int) -> float:
        """One batch after the other."""
        start = time.perf_counter()
        for indices in self.batches(number, records):
            reader.read(indices)
        return records / (time.perf_counter() - start)

    def read_in_queue(self, reader: ffrecord.Reader, number: int) -> float:
        """Several batches in flight."""
        start = time.perf_counter()
        with reader.open_queue(batches_in_flight=BATCHES_IN_FLIGHT) as queue:
            for token, indices in enumerate(self.batches(number, self.window)):
                queue.submit(indices, token=token)
            while (done := queue.poll()) is not None:
                done.result()
        return self.window / (time.perf_counter() - start)

    def warm(self, reader: ffrecord.Reader, number: int) -> float:
        """A whole epoch in the page cache; one before it maps the pages."""
        for file in self.files():
            harness.make_warm(file)
        self.read(reader, number, self.count)
        return self.read(reader, number, self.count)

    def cold(self, number: int, where: object, **options: object) -> float:
        """A new reader, with nothing in the page cache."""
        for file in self.files():
            harness.make_cold(file)
        with ffrecord.open(where, **options) as reader:
            len(reader)  # Opens it.
            return self.read(reader, number, self.window)


def prepare(settings: harness.Settings, python: pathlib.Path, environ: dict[str, str]) -> Work:
    """Make the object and its shards, or take those of the last run."""
    count = COUNT_QUICK if settings.quick else COUNT
    bucket = settings.scratch / "objects" / "bucket"
    path = bucket / KEY
    if not path.exists() or len(ffrecord.open(path)) != count:
        shutil.rmtree(bucket, ignore_errors=True)
        bucket.mkdir(parents=True)
        words = (path, count, storage.MEAN_BYTES, storage.SIGMA, storage.SEED)
        harness.run_json(harness.program(settings, "read-arm"), "make", *words)
    where = np.stack((*storage.locate(path, count), np.arange(count)), axis=1)
    orders = [np.random.default_rng(number).permutation(count) for number in range(settings.rounds)]
    cache = settings.scratch / "objects-cache"
    shutil.rmtree(cache, ignore_errors=True)
    work = Work(path, count, where, orders, [], cache)
    for number, order in enumerate(orders):
        work.traces.append(settings.scratch / f"objects-{number}.npy")
        np.save(work.traces[-1], where[order[: work.window]])
    if not (bucket / "mds").exists():
        whole = settings.scratch / "objects-all.npy"
        np.save(whole, where)
        words = (python, ARM, "convert", bucket / "mds", whole, path)
        subprocess.run([str(word) for word in words], env=environ, check=True, capture_output=True)
        whole.unlink()
    harness.make_warm(path)
    return work


def peer(
    name: str,
    work: Work,
    command: list[object],
    environ: dict[str, str],
    ends: contextlib.ExitStack,
) -> harness.Arm:
    """The arm of a client of others, which starts when it is first its turn."""
    running: list[Peer] = []
    key = "mds" if name == "streaming" else KEY

    def run(number: int) -> float:
        trace = work.traces[number]
        if not running:
            running.append(Peer([*command, name, "bucket", key, BATCH], environ))
            ends.callback(running[0].close)
            running[0].rate(trace, work.window, None)  # Connections are made.
        size = None if name == "streaming" else int(np.load(trace)[:, 1].sum())
        return running[0].rate(trace, work.window, size)

    return harness.Arm(name, {**PEERS, **OURS_FSSPEC}[name], run)


def wanted_peers(settings: harness.Settings) -> list[str]:
    """Those that the command line leaves."""
    chosen = settings.options.peers.split(",") if settings.options.peers else list(PEERS)
    if unknown := sorted(set(chosen) - set(PEERS)):
        raise harness.Unable(f"--peers {unknown[0]}: there are {', '.join(PEERS)}")
    return chosen


def run(outcome: harness.Outcome, arms: list[harness.Arm], rounds: int) -> None:
    """Let arms take turns; what was lost on the way is noted."""
    values = harness.interleave(arms, rounds)
    outcome.arms += [arm for arm in arms if arm.name in values]
    outcome.values |= values
    outcome.notes += [f"not run: {arm.name}" for arm in arms if arm.name not in values]


def compare_stores(
    settings: harness.Settings,
    work: Work,
    server: str,
    others: list[harness.Arm],
    outcome: harness.Outcome,
) -> None:
    """Clients of the store, of which `others` are processes of their own."""
    with ffrecord.open(f"s3://bucket/{KEY}") as remote:
        ours = harness.Arm(
            "ours", "one batch at a time", lambda n: work.read(remote, n, work.window)
        )
        ours_queue = harness.Arm(
            "ours_queue",
            f"{BATCHES_IN_FLIGHT} batches in flight",
            lambda n: work.read_in_queue(remote, n),
        )
        bare_arm = harness.Arm(
            "bare",
            f"{BARE_CONNECTIONS} plain sockets: the server's limit",
            lambda n: bare(server, np.load(work.traces[n])),
        )
        run(outcome, [ours, ours_queue, *others, bare_arm], settings.rounds)
    values = outcome.values
    medians = {name: statistics.median(values[name]) for name in PEERS if name in values}
    if not medians:
        raise harness.Unable("none of the peers could be run")
    best = max(medians, key=lambda name: medians[name])
    outcome.notes.append(f"the best peer is {best}")
    outcome.ratios |= {
        "s3_vs_best": ("ours", best),
        "s3_queue_vs_best": ("ours_queue", best),
        **{f"s3_vs_{name}": ("ours", name) for name in medians},
        "s3_vs_bare": ("ours", "bare"),
        "s3_queue_vs_bare": ("ours_queue", "bare"),
    }
    for name in [name for name in OURS_FSSPEC if name in values]:
        key = name.removeprefix("ours_")
        outcome.ratios |= {f"{key}_vs_{other}": (name, other) for other in medians}
        outcome.ratios[f"{key}_vs_best"] = (name, best)


def compare_cache(settings: harness.Settings, work: Work, outcome: harness.Outcome) -> None:
    """Ours from a cache that is full, with the local file."""
    address = f"s3://bucket/{KEY}"
    cached = ffrecord.open(address, cache=work.cache)
    local = ffrecord.open(work.path)
    first_epoch = work.read(cached, 0, work.count)
    outcome.notes.append(f"the first epoch, which fills the cache: {first_epoch:,.0f} records/s")
    warm = [
        harness.Arm("cached", "ours from a full cache, warm", lambda n: work.warm(cached, n)),
        harness.Arm("local", "the local file, warm", lambda n: work.warm(local, n)),
    ]
    run(outcome, warm, settings.rounds)
    cached.close()  # Mapped pages stay in the page cache.
    local.close()
    cold = [
        harness.Arm(
            "cached_cold",
            "ours from a full cache, cold",
            lambda n: work.cold(n, address, cache=work.cache),
        ),
        harness.Arm("local_cold", "the local file, cold", lambda n: work.cold(n, work.path)),
    ]
    run(outcome, cold, settings.rounds)
    outcome.ratios["s3_cached_vs_local"] = ("cached", "local")
    outcome.ratios["s3_cached_cold_vs_local"] = ("cached_cold", "local_cold")


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare clients of the store, then the cache with a local file."""
    names = [*wanted_peers(settings), *OURS_FSSPEC]
    part = settings.options.part
    python, environ = install(settings)
    work = prepare(settings, python, environ)
    outcome = harness.Outcome("records/s", [], {}, {})
    outcome.notes.append(
        f"{work.count:,} records, batches of {BATCH}, {FIRST_BYTE_MS} ms to the first byte"
    )
    with served(settings, work.path.parents[1]) as server, contextlib.ExitStack() as ends:
        os.environ.update(variables(server))
        environ |= variables(server)
        if part in (None, "stores"):
            others = [peer(name, work, [python, ARM], environ, ends) for name in names]
            compare_stores(settings, work, server, others, outcome)
        if part in (None, "cache"):
            compare_cache(settings, work, outcome)
    shutil.rmtree(work.cache, ignore_errors=True)
    for trace in work.traces:
        trace.unlink()
    return outcome
