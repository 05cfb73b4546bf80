"""Goal: a source of unusual form becomes, in place, what `ffrecord-pack` makes of it, or fails.

Method: tables of such sources, each indexed and packed: tars whose files have two headers for their
name, samples without a file, lines at the borders of what is read at once, columns whose names the
library uses itself, and shards that come one after the other.
"""

import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok
from ffrecord.pack import SourceOptions, _in_place_kinds, open_source, pack
from test_in_place import plain, write_tar

pytestmark = pytest.mark.wrong_data


def assert_as_packed(source: Path | Sequence[Path], folder: Path, *, raw: bool = False) -> None:
    given = str(source) if isinstance(source, Path) else [str(path) for path in source]
    pack(open_source(given, SourceOptions(raw=raw)), folder / "packed.ffr")
    expected = plain(list(ffrecord.open(folder / "packed.ffr")))
    assert expected
    assert plain(list(ffrecord.open(source))) == expected


# --- Tars -----------------------------------------------------------------------------------------


def entry(kind: bytes, content: bytes, name: str = "x") -> bytes:
    """A header and what follows it."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return header + content + bytes(-len(content) % 512)


def by_pax(name: str) -> bytes:
    value = f" path={name}\n".encode()
    return entry(b"x", b"%d" % (len(value) + 2) + value)


def by_gnu(name: str) -> bytes:
    return entry(b"L", name.encode() + b"\0")


Named = Callable[[str], bytes]


@pytest.mark.parametrize("inner", [by_pax, by_gnu])
@pytest.mark.parametrize("outer", [by_pax, by_gnu])
def test_the_first_of_two_headers_names_a_file(tmp_path: Path, outer: Named, inner: Named) -> None:
    tar = b"".join(
        outer(f"{key}/outer.{kind}") + inner(f"{key}/inner.zip") + entry(b"0", kind.encode())
        for key in ("first-one", "second-one")
        for kind in ("jpg", "txt")
    )
    (tmp_path / "x.tar").write_bytes(tar + bytes(1024))
    ffrecord.index(tmp_path / "x.tar")

    assert_as_packed(tmp_path / "x.tar", tmp_path)
    assert ffrecord.open(tmp_path / "x.tar")[1]["name"] == "second-one/outer"


def test_a_label_without_a_file_is_no_sample(tmp_path: Path) -> None:
    files = {"a.jpg": b"1", "a.txt": b"2", "b.cls": b"3"}
    path = write_tar(tmp_path / "x.tar", files)
    with pytest.raises(ValueError, match="label without a file"):
        pack(open_source(str(path)), tmp_path / "packed.ffr")

    with pytest.raises(ValueError, match="label without a file"):
        ffrecord.index(path)


WIDE = {"a.jpg": b"1", "a.txt": b"2", "a.cls": b"3"}


@pytest.mark.parametrize(
    "second", [{"b.jpg": b"1"}, {"b.jpg": b"1", "b.txt": b"2"}, {"b.jpg": b"", "b.cls": b"5"}]
)
@pytest.mark.parametrize("first_time", [[], ["0.tar"], ["1.tar"], ["0.tar", "1.tar"]])
def test_a_shard_has_the_columns_of_the_first_whenever_it_is_indexed(
    tmp_path: Path, first_time: list[str], second: Mapping[str, bytes]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_tar(folder / "0.tar", WIDE)
    write_tar(folder / "1.tar", second)
    for name in first_time:
        ffrecord.index(folder / name)

    ffrecord.index(folder)

    assert_as_packed([folder / "0.tar", folder / "1.tar"], tmp_path)
    assert ffrecord.index(folder).indexed == ()


# --- Lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(
    "content",
    [
        b"\n1",
        b"\n\n\n1\n\n\n22\n",
        b"1\r\n\r\n22\r\n",
        b"\r\n1\r\r\n 2 \n \n",
        b'{"a": "bcdefg"}\n\n',
    ],
)
def test_lines_are_those_of_the_packed_file_however_they_are_read(
    tmp_path: Path, content: bytes, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_in_place_kinds, "_PIECE_BYTES", at_once)
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    ffrecord.index(path)

    assert_as_packed(path, tmp_path, raw=True)


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\n")
    assert ffrecord.index(tmp_path / "x.jsonl").record_count == 0


def test_lines_that_are_cut_off_meanwhile_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"12345\n" * 1000)
    monkeypatch.setattr(_in_place_kinds.os, "pread", lambda fd, size, at: b"")

    with pytest.raises(ffrecord.ConflictError, match=r"x\.jsonl.*while it was indexed"):
        ffrecord.index(path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize("new", [b"1\n22\n" * 50, b"111\n11\n" * 10])
def test_a_file_that_is_replaced_meanwhile_is_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bytes
) -> None:
    """Not even if its size and time are the same."""
    path, other = tmp_path / "x.jsonl", tmp_path / "other"
    path.write_bytes(b"111111\n" * 10)
    other.write_bytes(new)
    time_ns = path.stat().st_mtime_ns
    os.utime(other, ns=(time_ns, time_ns))
    samples = _in_place_kinds._Lines.samples

    def replaced(lines: _in_place_kinds._Lines) -> Iterator[_in_place_kinds.Extents]:
        os.replace(other, path)
        yield from samples(lines)

    monkeypatch.setattr(_in_place_kinds._Lines, "samples", replaced)
    with pytest.raises((ffrecord.ConflictError, ValueError), match=r"x\.jsonl"):
        ffrecord.index(path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.jsonl"]


# --- MDS ------------------------------------------------------------------------------------------


def text_shard(folder: Path, columns: Sequence[str], samples: Sequence[Sequence[bytes]]) -> Path:
    """A folder of one shard whose columns are text, or bytes if they are lists."""
    folder.mkdir()
    stored = [
        b"".join(struct.pack("<I", len(value)) for value in sample) + b"".join(sample)
        for sample in samples
    ]
    begins = np.cumsum([8 + 4 * len(stored), *map(len, stored)]).astype("<u4")
    shard = struct.pack("<I", len(stored)) + begins.tobytes() + b"".join(stored)
    (folder / "shard.00000.mds").write_bytes(shard)
    described = {
        "format": "mds",
        "version": 2,
        "column_names": columns,
        "column_encodings": ["bytes" if "[]" in name else "str" for name in columns],
        "column_sizes": [None] * len(columns),
        "samples": len(samples),
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
        "zip_data": None,
        "compression": None,
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [described]}))
    return folder


def test_a_column_of_text_may_be_called_as_a_mark(tmp_path: Path) -> None:
    source = text_shard(tmp_path / "in", ["a:valid", "a"], [[b"", b"x"], [b"t", b""]])
    ffrecord.index(source)

    assert_as_packed(source, tmp_path)


def test_a_column_that_would_be_read_as_a_part_of_another_is_refused(tmp_path: Path) -> None:
    source = text_shard(tmp_path / "in", ["tokens[]:u8"], [[b"abc"], [b""]])
    with pytest.raises(ValueError, match="would be read as a part"):
        pack(open_source(str(source)), tmp_path / "packed.ffr")

    with pytest.raises(ValueError, match="would be read as a part"):
        ffrecord.index(source)


@pytest.mark.parametrize("name", ["{:04}.tar", "train.tar-{:05}-of-00003"])
def test_a_folder_is_not_read_by_half(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / name.format(number) for number in range(3)]
    for number, path in enumerate(paths):
        write_tar(path, {f"{number}.txt": b"x"})
    (tmp_path / "README.md").write_text("not one of them")
    ffrecord.index(paths[:2])

    with pytest.raises(FileNotFoundError, match=r"has no index \(1 such\), and 2 files beside it"):
        len(ffrecord.open(tmp_path))
    assert len(ffrecord.open(paths[:2])) == 2
    ffrecord.index(paths)
    assert len(ffrecord.open(tmp_path)) == 3


# --- Files that describe others ------------------------------------------------------------------


def described(folder: Path, kind: str) -> tuple[Path, Path]:
    """A source, and the file that describes it."""
    if kind == "mds":
        source = text_shard(folder / "in", ["a", "b"], [[b"1", b"2"], [b"3", b""]])
        return source, source / "index.json"
    (folder / "in").mkdir()
    path = folder / "in" / "x.bin"
    path.write_bytes(np.arange(5, dtype="<u2").tobytes())
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 1) + struct.pack("<iiqqq", 3, 2, 0, 6, 0)
    )
    return path, path.with_suffix(".idx")


def touch(path: Path) -> None:
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, now + 1))


each_described = pytest.mark.parametrize("kind", ["mds", "megatron"])


@each_described
def test_a_source_whose_description_changed_is_refused_until_it_is_indexed(
    tmp_path: Path, kind: str
) -> None:
    source, description = described(tmp_path, kind)
    ffrecord.index(source)
    before = plain(list(ffrecord.open(source)))
    touch(description)

    with pytest.raises(ffrecord.ConflictError, match="describes it, was changed") as error:
        ffrecord.open(source)[0]
    assert description.name in str(error.value)
    # Nothing that it says of the source is new.
    assert ffrecord.index(source).indexed == ()
    assert plain(list(ffrecord.open(source))) == before


def test_sequences_are_those_of_the_new_idx(tmp_path: Path) -> None:
    source, description = described(tmp_path, "megatron")
    ffrecord.index(source)
    data = description.read_bytes()
    old, new = struct.pack("<iiqq", 3, 2, 0, 6), struct.pack("<iiqq", 1, 4, 0, 2)
    description.write_bytes(data.replace(old, new))
    touch(description)

    assert ffrecord.index(source).indexed == (str(source),)
    assert [row["tokens"].tolist() for row in ffrecord.open(source)] == [[0], [1, 2, 3, 4]]


@each_described
def test_a_description_that_is_gone_contradicts_nothing(tmp_path: Path, kind: str) -> None:
    source, description = described(tmp_path, kind)
    ffrecord.index(source)
    before = plain(list(ffrecord.open(source)))
    description.unlink()

    assert plain(list(ffrecord.open(source))) == before


def test_a_shard_keeps_its_index_when_index_json_learns_of_others(tmp_path: Path) -> None:
    source, description = described(tmp_path, "mds")
    ffrecord.index(source)
    index = source / "shard.00000.mds.ffindex"
    pages = index.read_bytes()[4096:]
    shards = json.loads(description.read_text())
    other = json.loads(json.dumps(shards["shards"][0]).replace("shard.00000", "shard.00001"))
    (source / "shard.00001.mds").write_bytes((source / "shard.00000.mds").read_bytes())
    description.write_text(json.dumps({"version": 2, "shards": [*shards["shards"], other]}))

    assert ffrecord.index(source).indexed == (str(source / "shard.00001.mds"),)
    assert index.read_bytes()[4096:] == pages
    assert len(ffrecord.open(source)) == 4


def test_what_describes_a_source_may_not_change_while_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, description = described(tmp_path, "megatron")
    samples = _in_place_kinds._Megatron.samples

    def touched(file: _in_place_kinds._Megatron) -> Iterator[_in_place_kinds.Extents]:
        touch(description)
        yield from samples(file)

    monkeypatch.setattr(_in_place_kinds._Megatron, "samples", touched)
    with pytest.raises(ffrecord.ConflictError, match=r"x\.idx"):
        ffrecord.index(source)
    assert not list(source.parent.glob("*.ffindex"))


def test_an_index_of_another_source_is_not_replaced_although_that_one_changed(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_text(f'"{name}"\n')
    ffrecord.index(tmp_path / "a", index_dir=tmp_path / "indexes")
    touch(tmp_path / "a" / "x.jsonl")

    with pytest.raises(ffrecord.ConflictError, match="another --index-dir"):
        ffrecord.index(tmp_path / "b", index_dir=tmp_path / "indexes")


# --- Folders --------------------------------------------------------------------------------------

ABOUT = ["README.md", "readme", "LICENSE.txt", "Notes.md", "CITATION", "dataset_info.json"]
ABOUT += ["00000_stats.json", "a.idx", "SHA256SUMS", "md5sums.txt", "a.jsonl.sha256", "card.yaml"]


@pytest.mark.parametrize("name", ABOUT)
def test_files_about_the_data_are_left_out_of_a_folder_and_named(name: str, tmp_path: Path) -> None:
    """Another file that cannot be read in place is refused: it may be data."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"i": 1}\n' * 3)
    (folder / "README.jsonl").write_text('{"i": 2}\n' * 2)
    (folder / name).write_text("what is here")
    made = ffrecord.index(folder)
    assert (made.record_count, made.left_out) == (5, (str(folder / name),))
    assert f"left out {folder / name}" in ok("ffrecord", "index", folder)
    assert len(ffrecord.open(folder)) == 5

    for other in ("data.txt", "c.parquet"):
        (folder / other).write_text("what is here")
        with pytest.raises(ValueError, match=f"{other} cannot be read in place"):
            ffrecord.index(folder)
        (folder / other).unlink()
