"""One peer of the benchmark `objects`: reads ranges of an object, or a dataset, from a store.

    object_arm.py KIND BUCKET KEY BATCH
    object_arm.py convert FOLDER TRACE FILE

KIND is boto3, s3fs, s3torchconnector, streaming, or ours through fsspec; AWS_ENDPOINT_URL is the
store. Prints `ready`, then answers each line of input, the name of a trace, with the bytes and the
seconds that its records took. A trace is an array of offsets, sizes and indices. `convert` writes
its records as MDS.
"""

# ruff: noqa: ANN401 - what peers return is theirs

import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "loader" / "arms"))

THREADS = 32
BATCHES_IN_FLIGHT = 4
Trace = npt.NDArray[np.int64]  # Rows of offset, size and index.
Read = Callable[[Trace], int]  # Returns how many bytes it got.


def threaded(read_one: Callable[[int, int], int]) -> Read:
    """Reads the ranges in so many threads, none of which waits for a batch to be complete."""
    pool = ThreadPoolExecutor(THREADS)

    def read(trace: Trace) -> int:
        return sum(pool.map(read_one, trace[:, 0].tolist(), trace[:, 1].tolist()))

    return read


def boto3(bucket: str, key: str, _: int) -> Read:
    """Range reads of one client."""
    import boto3
    from botocore.config import Config

    config = Config(max_pool_connections=THREADS, s3={"addressing_style": "path"})
    client = boto3.client("s3", config=config)

    def read_one(offset: int, size: int) -> int:
        found = client.get_object(
            Bucket=bucket, Key=key, Range=f"bytes={offset}-{offset + size - 1}"
        )
        return len(found["Body"].read())

    return threaded(read_one)


def s3fs_options(batch: int) -> dict[str, Any]:
    """The settings of s3fs, alone and below ours."""
    return {
        "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
        "config_kwargs": {"s3": {"addressing_style": "path"}, "max_pool_connections": batch},
    }


def s3fs(bucket: str, key: str, batch: int) -> Read:
    """All ranges of a batch at once, as its documentation advises."""
    import s3fs

    store = s3fs.S3FileSystem(**s3fs_options(batch))

    def read(trace: Trace) -> int:
        size = 0
        for first in range(0, len(trace), batch):
            part = trace[first : first + batch]
            starts, ends = part[:, 0].tolist(), part[:, :2].sum(axis=1).tolist()
            found = store.cat_ranges(
                [f"{bucket}/{key}"] * len(part), starts, ends, batch_size=batch
            )
            size += sum(len(one) for one in found)
        return size

    return read


def s3torchconnector(bucket: str, key: str, _: int) -> Read:
    """Its reader of ranges, one in each thread."""
    from s3torchconnector import S3ClientConfig, S3ReaderConstructor
    from s3torchconnector._s3client import S3Client

    client = S3Client(
        "us-east-1",
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    own = threading.local()

    def reader() -> Any:
        if not hasattr(own, "reader"):
            ranges = S3ReaderConstructor.range_based(buffer_size=0)
            own.reader = client.get_object(bucket, key, reader_constructor=ranges)
        return own.reader

    def read_one(offset: int, size: int) -> int:
        reader().seek(offset)
        return len(reader().read(size))

    return threaded(read_one)


def streaming(bucket: str, key: str, batch: int) -> Read:
    """Shuffled samples of an empty local folder, as many as the trace has."""
    import standins

    standins.install()
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    def read(trace: Trace) -> int:
        clean_stale_shared_memory()
        with tempfile.TemporaryDirectory(prefix="objects-") as folder:
            dataset = StreamingDataset(
                remote=f"s3://{bucket}/{key}",
                local=folder,
                shuffle=True,
                batch_size=batch,
                shuffle_seed=int(trace[0, 0]),
            )
            size = 0
            for number, sample in enumerate(dataset):
                size += len(sample["data"])
                if number + 1 == len(trace):
                    break
            return size

    return read


def ours_fsspec(bucket: str, key: str, batch: int) -> Read:
    """Ours over s3fs: one batch at a time."""
    import ffrecord

    reader = ffrecord.open(f"s3://{bucket}/{key}", storage_options=s3fs_options(batch))

    def read(trace: Trace) -> int:
        starts = range(0, len(trace), batch)
        return sum(reader.read(trace[first : first + batch, 2]).data.nbytes for first in starts)

    return read


def ours_fsspec_queue(bucket: str, key: str, batch: int) -> Read:
    """Ours over s3fs: several batches in flight."""
    import ffrecord

    reader = ffrecord.open(f"s3://{bucket}/{key}", storage_options=s3fs_options(batch))

    def read(trace: Trace) -> int:
        size = 0
        with reader.open_queue(batches_in_flight=BATCHES_IN_FLIGHT) as queue:
            for token, first in enumerate(range(0, len(trace), batch)):
                queue.submit(trace[first : first + batch, 2], token=token)
            while (done := queue.poll()) is not None:
                size += done.result().data.nbytes
        return size

    return read


KINDS = {
    each.__name__: each
    for each in (boto3, s3fs, s3torchconnector, streaming, ours_fsspec, ours_fsspec_queue)
}


def convert(folder: str, trace: str, source: str) -> None:
    """Write the records of a trace as MDS."""
    import standins

    standins.install()
    from streaming import MDSWriter

    with (
        open(source, "rb") as file,
        MDSWriter(out=folder, columns={"data": "bytes"}) as writer,
    ):
        for offset, size, _ in np.load(trace).tolist():
            writer.write({"data": os.pread(file.fileno(), size, offset)})


def main() -> None:
    """Serve traces until the input ends."""
    if sys.argv[1] == "convert":
        return convert(*sys.argv[2:])
    kind, bucket, key, batch = sys.argv[1:]
    read = KINDS[kind](bucket, key, int(batch))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        trace = np.load(line.strip())
        start = time.perf_counter()
        size = read(trace)
        print(json.dumps({"bytes": size, "seconds": time.perf_counter() - start}), flush=True)
    return None


if __name__ == "__main__":
    main()
