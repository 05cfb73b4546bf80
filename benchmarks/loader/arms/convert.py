"""Writes the records in one form: `convert.py FORM WORKLOAD COUNT TARGET`, run by loader.py."""

import io
import pathlib
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import standins
from workloads import WORKLOADS, payloads

_TAR_RECORDS = 500
_CHUNK_BYTES = 64 << 20
_ROWS = 1024


def ffr(workload: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    import ffrecord

    size = WORKLOADS[workload].size if WORKLOADS[workload].fixed else None
    schema = {"row": f"u8[{size}]"} if size else None
    with ffrecord.Writer(target / "data.ffr", schema, replace=True) as writer:
        for record in records:
            row = np.frombuffer(record, np.uint8)
            writer.write({"row": row} if size else row)


def files(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    for number, record in enumerate(records):
        (target / f"{number:07d}").write_bytes(record)


def flat(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    with (target / "data.bin").open("wb") as out:
        out.writelines(records)


def tar(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    shard: tarfile.TarFile | None = None
    for number, record in enumerate(records):
        if number % _TAR_RECORDS == 0:
            if shard:
                shard.close()
            shard = tarfile.open(target / f"{number // _TAR_RECORDS:05d}.tar", "w")  # noqa: SIM115
        member = tarfile.TarInfo(f"{number:09d}.bin")
        member.size = len(record)
        assert shard is not None
        shard.addfile(member, io.BytesIO(record))
    if shard:
        shard.close()


def array_record(records: Iterator[bytes], target: pathlib.Path, options: str) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(target / "data.array_record"), options)
    for record in records:
        writer.write(record)
    writer.close()


def mds(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    standins.install()
    from streaming import MDSWriter

    with MDSWriter(out=str(target / "mds"), columns={"data": "bytes"}) as writer:
        for record in records:
            writer.write({"data": record})


def litdata(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(target), chunk_bytes=_CHUNK_BYTES)
    for number, record in enumerate(records):
        writer.add_item(number, record)
    writer.done()
    writer.merge()


def _tables(records: Iterator[bytes]) -> Iterator[Any]:
    import pyarrow as pa

    rows: list[bytes] = []
    for record in records:
        rows.append(record)
        if len(rows) == _ROWS:
            yield pa.record_batch({"data": pa.array(rows, pa.binary())})
            rows = []
    if rows:
        yield pa.record_batch({"data": pa.array(rows, pa.binary())})


def arrow(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    import pyarrow as pa

    schema = pa.schema({"data": pa.binary()})
    with (
        pa.OSFile(str(target / "data.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as out,
    ):
        for table in _tables(records):
            out.write_batch(table)


def lance(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    import lance as lance_format
    import pyarrow as pa

    schema = pa.schema({"data": pa.binary()})
    reader = pa.RecordBatchReader.from_batches(schema, _tables(records))
    lance_format.write_dataset(reader, str(target / "data.lance"), mode="overwrite")


def tfrecord(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    from tfrecord.tools.tfrecord2idx import create_index
    from tfrecord.writer import TFRecordWriter

    path = str(target / "data.tfrecord")
    writer = TFRecordWriter(path)
    for record in records:
        writer.write({"data": (record, "byte")})
    writer.close()
    create_index(path, str(target / "data.tfindex"))


def beton(_: str, records: Iterator[bytes], target: pathlib.Path) -> None:
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    rows = [(np.frombuffer(record, np.uint8), len(record)) for record in records]
    fields = {"data": BytesField(), "size": IntField()}
    DatasetWriter(str(target / "data.beton"), fields, num_workers=1).from_indexed_dataset(rows)


FORMS: dict[str, Callable[[str, Iterator[bytes], pathlib.Path], None]] = {
    "ffr": ffr,
    "files": files,
    "flat": flat,
    "tar": tar,
    "array_record": lambda _, records, target: array_record(records, target, ""),
    "array_record_1": lambda _, records, target: array_record(records, target, "group_size:1"),
    "mds": mds,
    "litdata": litdata,
    "arrow": arrow,
    "lance": lance,
    "tfrecord": tfrecord,
    "beton": beton,
}


def main() -> None:
    """Write one form."""
    form, workload, count, target = sys.argv[1:]
    FORMS[form](workload, payloads(workload, int(count)), pathlib.Path(target))


if __name__ == "__main__":
    main()
