"""`tools/test --steady` finds the tests that a change edits, and sees one failure among many runs.

Method: a git repository of its own, with tests of GoogleTest and pytest that are edited; and a
small project of pytest whose tests fail once.
"""

import pathlib
import subprocess
import sys
import types

import pytest

from test_tools import ROOT, load
from test_unsteady import tools  # noqa: F401  (a fixture)

CPP = """#include <gtest/gtest.h>
int Helper() { return 1; }
TEST(Keys, AreFound) {
  EXPECT_EQ(Helper(), 1);
}

// Of many sizes.
TEST_P(Sizes, AreKept) {
  EXPECT_EQ(Helper(), 1);
}
"""
PYTHON = """import pytest

def helper():
    return 1

@pytest.mark.parametrize("x", [1])
def test_first(x):
    assert helper()

class TestMany:
    def test_second(self):
        assert helper()
"""
PROGRAMS = {"tests/unit/base/keys_test.cpp": "base/keys"}
SIZES = "Sizes.AreKept:*/Sizes.AreKept/*:Sizes/*.AreKept"


@pytest.fixture
def steadiness(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    rooms = load("tools/dev/rooms.py", monkeypatch)
    monkeypatch.setitem(sys.modules, "rooms", rooms)
    module = load("tools/dev/steadiness.py", monkeypatch)
    monkeypatch.setitem(sys.modules, "steadiness", module)
    return module


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository with a test of each language, and an older commit named main."""
    for path, text in (("unit/base/keys_test.cpp", CPP), ("python/test_it.py", PYTHON)):
        file = tmp_path / "tests" / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*name, "commit", "-qm", "it")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def edit(tree: pathlib.Path, path: str, old: str, new: str) -> None:
    file = tree / "tests" / path
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "cases"),
    [
        ("TEST_P(Sizes, AreKept) {\n", "TEST_P(Sizes, AreKept) {\n  int more = 1;\n", SIZES),
        ("return 1", "return 2 - 1", ""),  # A helper: all of the program.
    ],
)
def test_an_edited_case_of_a_program_is_found(
    steadiness: types.ModuleType, tree: pathlib.Path, old: str, new: str, cases: str
) -> None:
    edit(tree, "unit/base/keys_test.cpp", old, new)

    assert steadiness.differing(tree, PROGRAMS).programs == {"base/keys": cases}


@pytest.mark.parametrize(
    ("old", "new", "nodes"),
    [
        ('"x", [1]', '"x", [1, 2]', ("::test_first",)),
        (
            "self):\n        assert",
            "self):\n        x = 1\n        assert",
            ("::TestMany::test_second",),
        ),
        ("return 1", "return 2", ("",)),
        ("def helper", "# More.\ndef helper", ()),
    ],
)
def test_an_edited_test_of_pytest_is_found(
    steadiness: types.ModuleType,
    tree: pathlib.Path,
    old: str,
    new: str,
    nodes: tuple[str, ...],
) -> None:
    edit(tree, "python/test_it.py", old, new)

    chosen = steadiness.differing(tree, PROGRAMS)

    assert chosen.nodes == tuple(f"tests/python/test_it.py{node}" for node in nodes)
    assert not chosen.programs


def test_a_new_file_is_run_whole_and_a_helper_is_told(
    steadiness: types.ModuleType, tree: pathlib.Path
) -> None:
    (tree / "tests" / "python" / "test_new.py").write_text(PYTHON)
    (tree / "tests" / "python" / "order.py").write_text("x = 1\n")

    chosen = steadiness.differing(tree, PROGRAMS)

    assert chosen.by_folder() == {"tests/python": ["test_new.py"]}
    assert chosen.lines() == [
        "tests/python/test_new.py",
        "tests/python/order.py is no test: name those that it serves",
    ]


def test_a_test_that_is_named_wrongly_is_refused(
    steadiness: types.ModuleType, tree: pathlib.Path
) -> None:
    words = ["base/keys Keys.*", "tests/python/test_it.py::test_first"]
    assert steadiness.named(tree, words, ["base/keys"]).programs == {"base/keys": "Keys.*"}
    with pytest.raises(ValueError, match="base/kays"):
        steadiness.named(tree, ["base/kays"], ["base/keys"])


def test_one_failure_of_many_runs_is_seen(
    tools: types.SimpleNamespace,  # noqa: F811
    tmp_path: pathlib.Path,
) -> None:
    folder = tmp_path / "tests" / "python"
    folder.mkdir(parents=True)
    (folder.parent / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_it.py").write_text(
        "ran = []\ndef test_once(tmp_path):\n    ran.append(1)\n    assert len(ran) != 7\n"
    )

    counts = tools.run_tests.pytest_suite(
        "tests/python", {}, "--times", "20", python=pathlib.Path(sys.executable)
    )

    assert str(counts) == "19 passed, 1 failed, 0 skipped"
    assert counts.failures[0].name.endswith("test_once[6]")
