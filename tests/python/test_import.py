"""Goal: `import ffrecord` is quick, and lacks no name for it.

Method: a new process lists the modules that the import adds to NumPy's; all public names are looked
up, each in a process that has used no other.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import ffrecord

# Each takes milliseconds, and no read of a file needs one.
SLOW = (
    "asyncio",
    "click",
    "concurrent.futures",
    "ffrecord._read.queue",
    "ffrecord.compat",
    "ffrecord.decode",
    "hashlib",
    "json",
    "logging",
    "multiprocessing",
    "rich",
    "socket",
    "torch",
)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_import_adds_no_slow_module() -> None:
    program = """
import contextlib
import sys
import numpy
before = set(sys.modules)
import ffrecord
with contextlib.suppress(FileNotFoundError):
    ffrecord.open("x.ffr")
print(*sorted(set(sys.modules) - before))
"""
    added = set(run(program).split())

    assert "ffrecord._read.reader" in added
    assert not added & set(SLOW)


def test_all_public_names_are_found_one_by_one_and_listed() -> None:
    program = """
import ffrecord
before = set(vars(ffrecord))
listed = set(dir(ffrecord))
for name in ffrecord.__all__:
    value = getattr(ffrecord, name)
    assert getattr(ffrecord, name) is value, name
print(*sorted(set(ffrecord.__all__) - listed), "of", len(set(ffrecord.__all__) - before))
"""
    missing, of, later = run(program).rpartition("of")
    assert (missing.strip(), of) == ("", "of")
    assert int(later) >= 15  # Which are found, since they are not there at once.


@pytest.mark.parametrize("name", ["compat", "decode"])
def test_modules_below_are_attributes_without_an_import_of_theirs(name: str) -> None:
    assert run(f"import ffrecord; print(ffrecord.{name}.__name__)").strip() == f"ffrecord.{name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ffrecord' has no attribute 'opne'"):
        ffrecord.opne  # noqa: B018


def test_all_names_can_be_imported_by_a_star() -> None:
    run("from ffrecord import *; Writer, TokenBlocks, FileReader, verify")


def test_a_reader_that_opens_in_a_spawned_child_sees_the_data_of_its_parent(tmp_path: Path) -> None:
    # `multiprocessing` is imported after the reader was made: the pickle still knows of the child.
    program = """
import tempfile, pathlib
import ffrecord

def count(reader):
    print(len(reader), reader._expected == wanted(reader))

def wanted(reader):
    return reader.fingerprint

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "a.ffr")
        with ffrecord.Writer(path) as writer:
            writer.write(b"x")
        reader = ffrecord.open(path)
        len(reader)
        import multiprocessing
        child = multiprocessing.get_context("spawn").Process(target=count, args=(reader,))
        child.start()
        child.join(60)
        assert child.exitcode == 0, child.exitcode
"""
    script = tmp_path / "program.py"
    script.write_text(program)

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1 True"


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("fsspec", "fsspec"),
        ("grain", "numpy"),
        ("huggingface", "datasets"),
        ("ray", "ray"),
        ("tensorflow", "numpy"),
        ("torch.checkpoint", "torch"),
    ],
)
def test_what_a_public_module_has_names_it_in_messages_and_pickles(name: str, needed: str) -> None:
    pytest.importorskip(needed)
    module = importlib.import_module(f"ffrecord.{name}")

    assert {getattr(module, each).__module__ for each in module.__all__} == {f"ffrecord.{name}"}
