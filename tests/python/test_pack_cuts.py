"""Goal: one large file is packed by many, and each value is where one process puts it.

Method: a table over the kinds of files (cuttable.py). Parts of any size are compared with the
whole, folders that one, two and five workers made byte by byte, also after workers were killed.
"""

import os
import random
import signal
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cuttable
import ffrecord
from ffrecord import _ffrecord
from ffrecord.pack import SourceOptions, open_source, pack
from ffrecord.pack._example import parse_example
from ffrecord.pack._inputs import Cuttable
from packing import begun, contents, plain, records, units_done, wait_for

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

KINDS = pytest.mark.parametrize("kind", cuttable.KINDS)
CUT = [kind for kind, (_, _, is_cut) in cuttable.KINDS.items() if is_cut]


def opened(kind: str, folder: Path) -> Any:  # noqa: ANN401
    maker, options, _ = cuttable.KINDS[kind]
    return open_source(maker(folder), options)


@KINDS
@pytest.mark.parametrize("size_bytes", [1, 300, 5000, 1 << 30])
def test_parts_of_any_size_make_the_whole(kind: str, size_bytes: int, tmp_path: Path) -> None:
    source = opened(kind, tmp_path)
    whole = plain(source.samples())
    assert isinstance(source, Cuttable)
    found, skipped = [], Counter[str]()
    for part in source.cuts(size_bytes):
        assert part.first == len(found)
        found += plain(source.samples_of(part, skipped))

    assert found == whole
    assert skipped == source.skipped
    is_cut = len(source.cuts(size_bytes)) > 1
    assert is_cut == (cuttable.KINDS[kind][2] and size_bytes < 1 << 30)


@KINDS
def test_any_number_of_workers_makes_the_same_files(kind: str, tmp_path: Path) -> None:
    """The kind has no part in which worker takes which part: five workers pack two kinds."""
    maker, options, is_cut = cuttable.KINDS[kind]
    path = maker(tmp_path)
    size_bytes = path.stat().st_size // 12
    counts = (1, 2, 5) if kind in ("JSON lines", "tar") else (1, 2)
    summaries = []
    for workers in counts:
        source, folder = open_source(path, options), tmp_path / str(workers)
        summaries.append(pack(source, folder, workers=workers, part_size_bytes=size_bytes))
    pack(open_source(path, options), tmp_path / "x.ffr")

    for workers, summary in zip(counts, summaries, strict=True):
        assert contents(tmp_path / str(workers)) == contents(tmp_path / "1")
        assert summary == summaries[0]
    assert records(tmp_path / "1") == records(tmp_path / "x.ffr")
    if is_cut:
        assert summaries[0].file_count > 5


@pytest.mark.parametrize("kind", CUT)
def test_workers_that_are_killed_change_nothing(kind: str, tmp_path: Path, seed: int) -> None:
    maker, options, _ = cuttable.KINDS[kind]
    path = maker(tmp_path)
    size_bytes = path.stat().st_size // 10
    pack(open_source(path, options), tmp_path / "whole", part_size_bytes=size_bytes)
    arguments = ["--part-size", f"{size_bytes}B", *(["--raw"] if options.raw else [])]
    arguments += ["--tokens", options.tokens] if options.tokens else []
    draws = random.Random(seed)
    for done in (1, 4):
        workers = str(draws.choice((1, 2)))
        process = begun(path, tmp_path / "x", *arguments, "--workers", workers)
        wait_for(units_done(tmp_path / "x", done), process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
            os.utime(lease, (0, 0))  # As if a minute had passed.

    process = begun(path, tmp_path / "x", *arguments)
    said = process.communicate()[1]

    assert process.returncode == 0, said
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")


def test_an_error_in_a_later_part_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"label": 1}'] * 900 + ['{"label": "x"}']
    path.write_text("\n".join(lines))
    source = open_source(path, SourceOptions(label_field="label"))

    with pytest.raises(ValueError, match="line 901: the field 'label'"):
        pack(source, tmp_path / "x", part_size_bytes=1000)


@pytest.mark.parametrize(
    ("name", "first", "line"), [("a.csv", "n\n", "{}\n"), ("a.jsonl", "", '{{"n": {}}}\n')]
)
def test_a_cast_that_fails_in_a_later_part_names_the_rows(
    name: str, first: str, line: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(first + "".join(line.format(n) for n in [*range(100, 256), 256]))
    source = open_source(path, SourceOptions(cast=(("n", "u8"),)))
    size_bytes = len(line.format(100)) * 50

    with pytest.raises(ValueError, match=r"in one of the rows from 15[0-5] to 156"):
        pack(source, tmp_path / "x", part_size_bytes=size_bytes)


def test_a_sample_that_fails_in_a_later_part_has_its_number(tmp_path: Path) -> None:
    path = cuttable.tfrecord(tmp_path)
    summary = pack(
        path, tmp_path / "x", map=fails_at_300, max_failures=1, part_size_bytes=2000, workers=2
    )

    assert [failure["sample"] for failure in summary.failures] == [300]


def fails_at_300(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 300:
        raise ValueError("three hundred")
    return {"id": sample["id"]}


def test_a_file_that_is_damaged_after_its_first_part_is_refused(tmp_path: Path) -> None:
    for maker in (cuttable.tfrecord, cuttable.tar):
        path = maker(tmp_path)
        content = path.read_bytes()
        for share in (1 / 3, 2 / 3):
            path.write_bytes(content[: int(len(content) * share) + 5])
            with pytest.raises(ffrecord.CorruptionError, match=str(path)):
                pack(path, tmp_path / "x", part_size_bytes=5000)


def test_examples_are_read_as_protocol_buffers_say_or_left_to_python(seed: int) -> None:
    """Forged bytes anywhere in a message."""
    folder_of = {"bytes": 1, "f32": 2, "i64": 3}
    columns = [("text", 1, 1), ("id", 3, 1), ("box", 2, 2), ("tags", 3, -1)]
    draws = random.Random(seed)
    good = cuttable.examples()
    read = left = 0
    for _ in range(3000):
        message = bytearray(draws.choice(good))
        for _ in range(draws.randrange(3)):
            message[draws.randrange(len(message))] = draws.randrange(256)
        if draws.random() < 0.2:
            del message[draws.randrange(len(message)) :]
        found = _ffrecord.read_examples([bytes(message)], columns, True)
        if found is None:
            left += 1
            continue
        read += 1
        wanted = parse_example(bytes(message))
        for (name, kind, _), (data, ends) in zip(columns, found, strict=True):
            values = wanted.get(name, [])
            if kind == folder_of["bytes"]:
                assert data == b"".join(values)
            else:
                code = "<i8" if kind == folder_of["i64"] else "<f4"
                assert data == values.astype(code).tobytes() if len(values) else data == b""
            assert struct.unpack("<2i", ends)[1] == (len(data) if kind == 1 else len(values))

    assert min(read, left) > 300


def test_blank_rows_of_one_column_do_not_hide_rows_of_several_lines(tmp_path: Path) -> None:
    """As many lines without blank ones as rows: still, not each row is a line."""
    pytest.importorskip("pyarrow")
    rows: list[str | None] = [f"v{i}" for i in range(40)]
    rows[10], rows[20] = None, "x\ny"
    text = "".join(f"{row or ''}\n" if row != "x\ny" else '"x\ny"\n' for row in rows)
    (tmp_path / "a.csv").write_text(f"a\n{text}")
    for size_bytes in (1, 4, 100):
        pack(tmp_path / "a.csv", tmp_path / f"{size_bytes}", part_size_bytes=size_bytes)
        assert ffrecord.read_table(tmp_path / f"{size_bytes}").column("a").to_pylist() == rows
