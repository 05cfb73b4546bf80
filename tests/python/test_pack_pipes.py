"""Goal: a tar that is piped into packing becomes what the same tar in a file becomes.

Method: tars of every kind, in pieces of any size, through a real pipe, compared with the file; and
pipes that end early, that carry something else, or that are given beside other sources.
"""

import bz2
import gzip
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cuttable
from packing import contents, records

pytestmark = pytest.mark.wrong_data

TARS: dict[str, Callable[[Path], Path]] = {
    "files": lambda folder: cuttable.tar_with_global_headers(folder),
    "WebDataset": cuttable.web_dataset,
}


def piped(data: bytes, *arguments: str | Path) -> "subprocess.CompletedProcess[bytes]":
    """Pack what a pipe carries."""
    command = [sys.executable, "-m", "ffrecord._cli.pack", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, check=False)


@pytest.mark.parametrize("compressed", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("kind", TARS)
def test_a_piped_tar_is_packed_as_a_file_is(
    kind: str, compressed: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = TARS[kind](tmp_path)
    data = compressed(path.read_bytes())
    (tmp_path / "in.tar").write_bytes(data)

    for source, name in (("-", "x.ffr"), (tmp_path / "in.tar", "y.ffr"), ("-", "parts")):
        done = piped(data, source, tmp_path / name)
        assert done.returncode == 0, done.stderr

    assert records(tmp_path / "x.ffr") == records(tmp_path / "y.ffr") == records(tmp_path / "parts")
    assert sorted(contents(tmp_path / "parts")) == ["PART_00000.ffr"]


@pytest.mark.parametrize(
    ("arguments", "cut", "code", "said"),
    [
        (["-"], 20_000, 3, b"standard input is damaged or truncated"),
        (["-"], 700, 3, b"standard input is damaged or truncated"),
        (["-"], 0, 3, b"standard input is damaged or truncated"),
        (["-", "-"], None, 2, b"one of several sources"),
        (["-", "--workers", "2"], None, 2, b"several workers pack from paths"),
    ],
)
def test_a_pipe_that_is_no_whole_tar_is_refused(
    arguments: list[str], cut: int | None, code: int, said: bytes, tmp_path: Path
) -> None:
    data = cuttable.tar_with_global_headers(tmp_path).read_bytes()
    done = piped(data[:cut], *arguments, tmp_path / "x")
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "x").exists()


def test_a_hard_link_in_a_pipe_is_refused(tmp_path: Path) -> None:
    done = piped(cuttable.tar(tmp_path).read_bytes(), "-", tmp_path / "x.ffr")
    assert done.returncode == 2
    assert b"is a hard link to" in done.stderr
