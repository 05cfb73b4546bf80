"""Goal: nothing is published of an input that another program changes while it is packed.

Method: inputs of many kinds, with old times, are changed in place when the first samples have been
written, or between the first look at their columns and the packing.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from ffrecord.pack import pack
from ffrecord.pack._recognise import open_source
from packing import TFRECORDS

pytestmark = pytest.mark.wrong_data

BEFORE, AFTER = "a", "b"
# Blocks of lines have 4 MiB: the last of these lines are read after the first are written.
LINES, LINE_CHARS = 90_000, 100


def _lines(path: Path, letter: str) -> None:
    path.write_text(f'{{"x": "{letter * LINE_CHARS}"}}\n' * LINES)


def _few_lines(path: Path, letter: str) -> None:
    path.write_text(f'{{"x": "{letter}"}}\n')


def _tfrecords(path: Path, letter: str) -> None:
    path.write_bytes(TFRECORDS if letter == BEFORE else TFRECORDS[: len(TFRECORDS) // 2])


def _table(write: Callable[..., None]) -> Callable[[Path, str], None]:
    return lambda path, letter: write(pa.table({"x": [letter]}), path)


def _numbers(path: Path, letter: str) -> None:
    np.save(path, np.full(3, ord(letter)))


def _coco(path: Path, letter: str) -> None:
    """Annotations of two pictures, which change places."""
    pictures = [{"id": number, "file_name": f"{number}.jpg"} for number in (0, 1)]
    for picture in pictures if letter == BEFORE else ():
        (path.parent / str(picture["file_name"])).write_bytes(b"a picture")
    notes = [{"image_id": number ^ (letter == AFTER)} for number in (0, 1)]
    path.write_text(json.dumps({"images": pictures, "annotations": notes}))


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "x.jsonl": _lines,
    "few.jsonl": _few_lines,
    "x.tfrecord": _tfrecords,
    "x.csv": _table(pyarrow.csv.write_csv),
    "x.parquet": _table(pyarrow.parquet.write_table),
    "x.feather": _table(pyarrow.feather.write_feather),
    "x.npy": _numbers,
    "x.json": _coco,
}


def write(path: Path, letter: str) -> Path:
    """Write an input, a long time ago if it is the first content."""
    WRITERS[path.name](path, letter)
    if letter == BEFORE:
        os.utime(path, ns=(10**18, 10**18))
    return path


def refused(paths: Sequence[Path], changed: Path, destination: Path, when: str) -> None:
    source = open_source([str(path) for path in paths])
    if when == "before":
        write(changed, AFTER)
    with pytest.raises(ValueError, match=f"{changed.name} has changed since packing it began"):
        pack(source, destination, progress=lambda _: write(changed, AFTER) and None)
    assert not destination.exists()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("destination", ["o.ffr", "o"])
@pytest.mark.parametrize("name", WRITERS)
def test_an_input_that_changes_is_refused_by_name(
    name: str, destination: str, when: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, BEFORE)
    refused([path], path, tmp_path / destination, when)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("destination", ["o.ffr", "o"])
@pytest.mark.parametrize("at", [0, 1])
def test_each_of_several_inputs_is_looked_at(
    at: int, destination: str, when: str, tmp_path: Path
) -> None:
    for folder in ("0", "1"):
        (tmp_path / folder).mkdir()
    paths = [write(tmp_path / folder / "few.jsonl", BEFORE) for folder in ("0", "1")]
    refused(paths, paths[at], tmp_path / destination, when)
