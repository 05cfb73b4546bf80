"""Goal: the hand-written face of the extension says what the extension has.

Method: mypy's stubtest compares the two, in both directions.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy compares the stub with the module")

# Patterns of names, each matched whole, whose difference is none.
ALLOWED = r"""
ffrecord\._ffrecord\.[A-Z]\w*  # pybind11 has a metaclass of its own.
ffrecord\._ffrecord\.PrefetchHint\.__init__  # Made by functions, as are these:
ffrecord\._ffrecord\.NativeDecoder\.__init__
ffrecord\._ffrecord\.(Batch|IndexWriter|RecordReader|RecordWriter|ServedFiles|StoredFile\w*|V1Writer)\.__init__
"""


def test_the_stub_is_the_modules_face(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed.txt"
    allowed.write_text(ALLOWED)
    command = ["-m", "mypy.stubtest", "ffrecord._ffrecord", "--allowlist", str(allowed)]

    done = subprocess.run(
        [sys.executable, *command, "--ignore-unused-allowlist"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout + done.stderr
