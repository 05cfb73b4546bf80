"""A file of each kind that packing cuts within, and some that it must not cut."""

import gzip
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from ffrecord.pack import SourceOptions

Maker = Callable[[Path], Path]
_ROWS = 400


def _rows() -> list[dict[str, Any]]:
    draws = random.Random(3)
    return [
        {
            "id": number,
            "text": "wörd" * draws.randrange(12),
            "score": None if number % 7 == 0 else draws.random(),
            "tags": [str(i) for i in range(number % 4)],
        }
        for number in range(_ROWS)
    ]


def json_lines(folder: Path) -> Path:
    """With blank lines, ends of lines of two kinds, and none at the end."""
    lines = [json.dumps(row).encode() for row in _rows()]
    text = b"".join(line + [b"\n", b"\r\n", b"\n\n"][i % 3] for i, line in enumerate(lines))
    (folder / "a.jsonl").write_bytes(text.rstrip())
    return folder / "a.jsonl"


def gzip_lines(folder: Path) -> Path:
    """The same, compressed."""
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines(folder).read_bytes()))
    return path


def csv(folder: Path) -> Path:
    """With quotes, empty fields, blank lines, and a mark of UTF-8 at the start of a value."""
    rows = [f'{row["id"]},"{row["text"]}",{row["score"] or ""},x' for row in _rows()]
    lines = [f"\ufeff{row}" if i % 50 == 49 else row for i, row in enumerate(rows)]
    (folder / "a.csv").write_text("id,text,score,x\r\n" + "\n\n".join(lines))
    return folder / "a.csv"


def csv_of_long_rows(folder: Path) -> Path:
    """A value has an end of line in it."""
    rows = [f'{row["id"]},"{row["text"]}"' for row in _rows()]
    rows[200] = '200,"one\n201,two\n\n"'
    (folder / "long.csv").write_text("id,text\n" + "\n".join(rows) + "\n")
    return folder / "long.csv"


def csv_of_old_ends(folder: Path) -> Path:
    """Lines end in a carriage return alone, except one: as many rows as lines would be chance."""
    rows = "\r".join(f"{row['id']},{row['text']}" for row in _rows())
    (folder / "old.csv").write_bytes(f"id,text\r{rows}\n".encode())
    return folder / "old.csv"


def framed(payload: bytes) -> bytes:
    """A record of a TFRecord file."""

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + content


def _feature(name: bytes, kind: int, values: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, _field(kind, values)))


def examples() -> list[bytes]:
    """Messages of a text, a number, a vector, and a list of any length."""
    return [
        _field(
            1,
            _feature(b"text", 1, _field(1, row["text"].encode()))
            + _feature(b"id", 3, _field(1, bytes([row["id"] & 127 | 128, row["id"] >> 7])))
            + _feature(b"box", 2, _field(1, struct.pack("<2f", row["id"], 0.5)))
            + _feature(b"tags", 3, _field(1, bytes(range(row["id"] % 4)))),
        )
        for row in _rows()
    ]


def sequences() -> list[bytes]:
    """Messages with a context, and lists of texts, of numbers, and of vectors for each step."""
    made = []
    for row in _rows():
        number = bytes([row["id"] & 127 | 128, row["id"] >> 7])
        context = _feature(b"id", 3, _field(1, number))
        steps = range(row["id"] % 4)
        words = [_field(1, _field(1, _field(1, b"w%d" % step))) for step in steps]
        boxes = [_field(1, _field(2, _field(1, struct.pack("<2f", step, 0.5)))) for step in steps]
        sizes = [_field(1, _field(3, _field(1, bytes(range(step))))) for step in steps]
        lists = [(b"words", words), (b"boxes", boxes), (b"sizes", sizes)]
        entries = [_field(1, _field(1, name) + _field(2, b"".join(each))) for name, each in lists]
        made.append(_field(1, context) + _field(2, b"".join(entries)))
    return made


def sequence_example(folder: Path) -> Path:
    """Its features are those of `sequences`."""
    (folder / "s.tfrecord").write_bytes(b"".join(map(framed, sequences())))
    return folder / "s.tfrecord"


def tfrecord(folder: Path) -> Path:
    """Its features are those of `examples`."""
    (folder / "a.tfrecord").write_bytes(b"".join(map(framed, examples())))
    return folder / "a.tfrecord"


def _tar(path: Path, members: list[tuple[str, bytes]], **options: Any) -> Path:  # noqa: ANN401
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif content.startswith(b"-> "):
                info.type, info.linkname = tarfile.LNKTYPE, content[3:].decode()
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    return path


def _files(name: str) -> list[tuple[str, bytes]]:
    rows = _rows()
    return [(name.format(row["id"]), row["text"].encode() * 20) for row in rows]


def tar(folder: Path) -> Path:
    """Files with long names, hard links to files far before them, folders and hidden files."""
    members = []
    for number, (name, content) in enumerate(_files(f"d/{'long' * 30}/{{}}.txt")):
        members.append((name, content))
        if number % 20 == 0:
            members += [(f"e{number}/", b""), (f"d/._{number}", b"hidden")]
        if number % 50 == 49:
            members.append((f"d/link{number}", f"-> {members[0][0]}".encode()))
    return _tar(folder / "a.tar", members, format=tarfile.GNU_FORMAT)


def web_dataset(folder: Path) -> Path:
    """Samples of several files, hidden ones among them, some without a caption."""
    members = []
    for name, content in _files("{:06}.jpg"):
        stem = name[:-4]
        members += [(name, content), (f"._{stem}.cls", b"x"), (f"{stem}.cls", stem.encode())]
        if not stem.endswith("3"):
            members.append((f"{stem}.txt", b"a caption"))
    return _tar(folder / "wds.tar", members, format=tarfile.PAX_FORMAT)


def tar_with_global_headers(folder: Path) -> Path:
    """A header at its front names the owner of all files after it."""
    options = {"format": tarfile.PAX_FORMAT, "pax_headers": {"uname": "somebody"}}
    return _tar(folder / "global.tar", _files("{}.bin"), **options)


def parquet(folder: Path) -> Path:
    """Several groups of rows."""
    pa, pq = __import__("pyarrow"), __import__("pyarrow.parquet").parquet
    pq.write_table(pa.Table.from_pylist(_rows()), folder / "a.parquet", row_group_size=37)
    return folder / "a.parquet"


def megatron(folder: Path, documents: list[list[list[int]]], dtype: str = "u2") -> Path:
    """A file of tokens with the index that Megatron's `IndexedDataset` has."""
    sequences = [np.array(each, dtype) for document in documents for each in document]
    sizes = np.array([len(each) for each in sequences], "i4")
    begins = (np.cumsum(sizes) - sizes).astype("i8") * np.dtype(dtype).itemsize
    bounds = np.cumsum([0, *map(len, documents)]).astype("i8")
    code = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}[dtype]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sizes), len(bounds))
    arrays = (sizes, begins, bounds)
    (folder / "tokens.idx").write_bytes(head + b"".join(each.tobytes() for each in arrays))
    (folder / "tokens.bin").write_bytes(b"".join(each.tobytes() for each in sequences))
    return folder / "tokens.bin"


def tokens(folder: Path) -> Path:
    """A sequence for each document, some of them empty."""
    return megatron(folder, [[list(range(row["id"] % 50))] for row in _rows()])


def tokens_of_sentences(folder: Path) -> Path:
    """Documents of several sequences, in numbers of 32 bits."""
    rows = _rows()
    documents = [[[row["id"]] * (20 * n) for n in range(row["id"] % 4)] for row in rows]
    return megatron(folder, documents, "i4")


def plain_tokens(folder: Path) -> Path:
    """Documents that end with 7."""
    (folder / "plain.bin").write_bytes((np.arange(9000) % 21).astype("<u4").tobytes())
    return folder / "plain.bin"


# Maker, options, and whether it is cut.
KINDS: dict[str, tuple[Maker, SourceOptions, bool]] = {
    "JSON lines": (json_lines, SourceOptions(), True),
    "JSON lines as they are": (json_lines, SourceOptions(raw=True), True),
    "compressed JSON lines": (gzip_lines, SourceOptions(), False),
    "CSV": (csv, SourceOptions(), True),
    "CSV of rows of several lines": (csv_of_long_rows, SourceOptions(), False),
    "CSV with other ends of lines": (csv_of_old_ends, SourceOptions(), False),
    "TFRecord": (tfrecord, SourceOptions(), True),
    "TFRecord as it is": (tfrecord, SourceOptions(raw=True), True),
    "SequenceExample": (sequence_example, SourceOptions(), True),
    "tar": (tar, SourceOptions(), True),
    "WebDataset": (web_dataset, SourceOptions(), True),
    "WebDataset as it is": (web_dataset, SourceOptions(raw=True), True),
    "tar with headers for all files": (tar_with_global_headers, SourceOptions(), False),
    "Parquet": (parquet, SourceOptions(), True),
    "tokens": (tokens, SourceOptions(), True),
    "tokens of sentences": (tokens_of_sentences, SourceOptions(), True),
    "tokens alone": (plain_tokens, SourceOptions(tokens="u32:7"), True),
}
