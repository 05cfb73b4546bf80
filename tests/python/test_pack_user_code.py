"""Goal: a function can end, double or break its process, and nobody takes that for the result.

Method: functions that exit, fork and close descriptors, with one worker and with two, into a folder
and into one file.
"""

import os
from pathlib import Path

import pytest

import packing_functions
from cli import run
from ffrecord.pack import FailedSamplesError, pack
from packing import PART, begun, records, write_classes

pytestmark = pytest.mark.wrong_data

# Said of a process that ended without Python knowing it.
NO_WORD = ", as _exit of C and exec do"

each_way = pytest.mark.parametrize(
    ("destination", "workers"), [("x", 1), ("x", 2), ("x.ffr", 1)], ids=str
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of a hundred files."""
    return write_classes(tmp_path_factory.mktemp("classes"))


@each_way
@pytest.mark.parametrize("function", ["quits_at_5", "leaves_at_5"])
def test_a_function_that_ends_its_process_has_failed(
    files: Path, tmp_path: Path, destination: str, workers: int, function: str
) -> None:
    map_ = getattr(packing_functions, function)
    place = r"sample \d+ \(b/005\) failed .* at .*packing_functions\.py:\d+: .* status 0"
    with pytest.raises(FailedSamplesError, match=place):
        pack(files, tmp_path / destination, map=map_, workers=workers, part_size_bytes=PART)

    assert not (tmp_path / destination).exists()


@each_way
def test_a_child_that_comes_back_from_a_function_packs_nothing(
    files: Path, tmp_path: Path, destination: str, workers: int
) -> None:
    path, map_ = tmp_path / destination, packing_functions.forks_at_5
    pack(files, path, map=map_, workers=workers, part_size_bytes=PART)

    assert len(records(path)) == 300
    assert os.listdir(tmp_path) == [destination]


@pytest.mark.parametrize(
    ("destination", "workers", "code", "said"),
    [
        ("x", 1, 2, "sample 105: it closed descriptors of the process"),
        ("x.ffr", 1, 2, ": it closed descriptors of the process"),
        ("x", 2, 4, "3 processes that packed"),  # Its pipe is closed, too.
    ],
)
def test_a_function_that_closes_what_is_not_its_own_ends_the_run(
    files: Path, tmp_path: Path, destination: str, workers: int, code: int, said: str
) -> None:
    function = ("--map", "packing_functions:closes_at_5", "--workers", str(workers))
    process = begun(*function, str(files), str(tmp_path / destination))
    assert process.stderr is not None
    text = process.stderr.read().decode()

    assert process.wait() == code, text
    assert said in text
    assert not (tmp_path / destination).exists()


def test_pipes_to_workers_that_a_function_closed_do_not_hold_up_the_end(
    files: Path, tmp_path: Path
) -> None:
    """It is called for the first samples before workers get their task."""
    function = ("--map", "packing_functions:closes_at_once", "--workers", "2")
    process = begun(*function, str(files), str(tmp_path / "x"))
    assert process.stderr is not None
    text = process.stderr.read().decode()

    assert process.wait() == 2, text
    assert "sample 0: it closed descriptors of the process" in text


def test_a_module_that_ends_the_process_is_no_success(files: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    arguments = ("--map", "script:f", files, tmp_path / "x")
    done = run("ffrecord-pack", *arguments, env={"PYTHONPATH": path})

    assert done.returncode == 4, done.stderr
    assert "the module script ended the process, with status 0" in done.stderr


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("ctypes.CDLL(None).exit(0)", " with exit() of C"),
        ("ctypes.CDLL(None).quick_exit(0)", " with quick_exit() of C"),
        ("ThreadPoolExecutor().submit(ctypes.CDLL(None).exit, 0).result()", " with exit() of C"),
        ("ThreadPoolExecutor().submit(os._exit, 0).result()", " with os._exit in a thread"),
        ("ctypes.CDLL(None)._exit(0)", NO_WORD),
        ("os.execv('/bin/true', ['true'])", NO_WORD),
    ],
)
@pytest.mark.parametrize(
    ("name", "workers", "code", "said"),
    [
        ("a/000", 1, 1, "ended the process{}"),  # Looked at.
        ("b/005", 1, 1, "ended the process{}"),
        ("b/005", 2, 4, "3 processes that packed"),
    ],
)
def test_a_library_that_ends_the_process_is_no_success(
    files: Path, tmp_path: Path, end: str, how: str, name: str, workers: int, code: int, said: str
) -> None:
    (tmp_path / "script.py").write_text(
        "import ctypes, os\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def f(sample):\n"
        f"    if sample['name'] == '{name}':\n"
        f"        {end}\n"
        "    return sample\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    arguments = ("--map", "script:f", "--workers", str(workers), files, tmp_path / "x")
    done = run("ffrecord-pack", *arguments, env={"PYTHONPATH": path})

    assert done.returncode == code, done.stderr
    assert said.format(how) in done.stderr
    assert not (tmp_path / "x").exists()
