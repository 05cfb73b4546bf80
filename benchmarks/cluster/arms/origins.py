"""A cluster before an object store behind a narrow link, for the benchmark `cluster`."""

import contextlib
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import harness
from bed import Bed, Shape, folder_in
from capped import need_namespaces
from faults import RECORD_BYTES, record_file

STORE = "store"
STORE_MBIT, FAST_MBIT = 100, 10_000  # While it is measured, and while it is published.
FIRST_BYTE_MS = 10
RANKS, BATCH = 4, 64
STEPS_QUICK, STEPS = 32, 64  # 128 MiB, 256 MiB: two and four extents at least.
PUBLISH_S = 120
PORT = 9000
HEADER_BYTES = 66  # Ethernet, IPv4, TCP with timestamps.


def run_origin(settings: harness.Settings) -> harness.Outcome:
    """Epochs of the same ranks: from the store, through nodes that fetch it, and that have it."""
    steps = STEPS_QUICK if settings.quick else STEPS
    records = steps * BATCH * RANKS
    file = record_file(settings, records)
    shape = Shape(nodes=3, members=1, more=("--origins", "s3://bucket"), hosts=(STORE,))
    with folder_in(settings.scratch) as folder:
        bed = Bed(settings, folder, shape)
        need_namespaces(bed)
        with variables(bed), bed, served(bed, file) as name:
            outcome = measure(bed, f"s3://bucket/{name}", file, steps)
    return outcome


def measure(bed: Bed, stored: str, file: pathlib.Path, steps: int) -> harness.Outcome:
    """Run the arms; each cold epoch is of a name of its own, of which no node has anything."""
    size = file.stat().st_size
    fetched: list[float] = []

    def publish(name: str) -> str:
        address = f"{bed.address}/{name}"
        bed.network.shape(STORE, FAST_MBIT)
        bed.run_json(bed.program("cluster-arm"), "publish-origin", stored, address, PUBLISH_S)
        bed.network.shape(STORE, STORE_MBIT)
        return address

    def epoch(address: str, seed: int) -> float:
        words = [bed.program("cluster-arm"), "epoch", address, RANKS, steps, BATCH, seed]
        found = bed.run_json(*words)
        count, took = found["records"], found["seconds"]
        assert isinstance(count, int) and isinstance(took, float)
        return count * RECORD_BYTES / took

    def cold(number: int) -> float:
        address = publish(f"cold{number}")
        before = sent_bytes(bed)
        rate = epoch(address, number)
        fetched.append((sent_bytes(bed) - before) / size)
        return rate

    warm = publish("warm")
    epoch(warm, 0)
    arms = [
        harness.Arm("origin_cold", "through nodes that have nothing of it", cold),
        harness.Arm("origin_cached", "through nodes that have it", lambda n: epoch(warm, n)),
        harness.Arm("origin_direct", "from the store", lambda n: epoch(stored, n)),
    ]
    values = harness.interleave(arms, bed.settings.rounds)
    ratios = {
        "origin_vs_direct": ("origin_cold", "origin_direct"),
        "origin_cached_vs_direct": ("origin_cached", "origin_direct"),
    }
    note = (
        f"origin: an epoch of {RANKS} ranks, batches of {BATCH} records of {RECORD_BYTES} B in "
        f"random order, of an object of {size / 1e6:.0f} MB; the store's link has {STORE_MBIT} "
        f"Mbit/s, its first byte comes after {FIRST_BYTE_MS} ms; 3 nodes; opening is timed too; "
        "the fetch ratio is what the store has sent in a cold epoch by the size of the object"
    )
    return harness.Outcome("bytes/s", arms, values, ratios, {"origin_fetch_ratio": fetched}, [note])


def sent_bytes(bed: Bed) -> int:
    """Bytes that the store has sent since its start, without the headers of packets."""
    with bed.network.hosts[STORE].inside():
        lines = pathlib.Path("/proc/thread-self/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
    size, packets = int(fields[8]), int(fields[9])
    return size - packets * HEADER_BYTES


@contextlib.contextmanager
def variables(bed: Bed) -> Iterator[None]:
    """The environment that leads daemons and clients to the store."""
    wanted = {
        "AWS_ENDPOINT_URL": f"http://{bed.network.hosts[STORE].address}:{PORT}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "no_proxy": "*",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def served(bed: Bed, file: pathlib.Path) -> Iterator[str]:
    """The store, with the file as an object of the bucket; gives its key."""
    bucket = bed.folder / "store" / "bucket"
    bucket.mkdir(parents=True)
    (bucket / file.name).symlink_to(file)
    host = bed.network.hosts[STORE]
    words = [bed.program("range-server"), str(bucket.parent), str(FIRST_BYTE_MS), host.address]
    with host.inside():
        process = subprocess.Popen(
            [*words, str(PORT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["port"] == PORT
        yield file.name
    finally:
        process.stdin.close()
        process.wait()
