"""A landing run forgives a test that time explains, and nothing else.

Method: small projects of Meson and of pytest, whose tests fail in each way there is, are run by the
functions of tools/dev that run ours; a counter on the disk lets a test pass from its second run on.
"""

import dataclasses
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from test_tools import ROOT, load

# A program as GoogleTest makes them. Its name says what becomes of it; it may pass when it is run
# again, and then only that case is asked for.
PROGRAM = """#!{python}
import os, pathlib, sys, time
name = os.path.basename(sys.argv[0])
ran = pathlib.Path(__file__).with_name(name + ".ran")
first = not ran.exists()
with ran.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if name == "slow" and first:
    time.sleep(100)
if name == "crash" and first:
    os.kill(os.getpid(), 11)
if name == "sanitizer" and first:
    print("x.cpp:1:2: runtime error: signed integer overflow", flush=True)
bad = name == "always" or first and name not in ("passes", "slow")
said = "<failure message='late'/>" if bad and name != "leak" else ""
with open([word for word in sys.argv if "=xml:" in word][0].partition("=xml:")[2], "w") as report:
    report.write("<testsuites><testsuite name='Suite'><testcase name='Case' classname='Suite'>"
                 + said + "</testcase></testsuite></testsuites>")
sys.exit(bad)
"""
NAMES = ("passes", "late", "slow", "always", "crash", "sanitizer", "leak", "data")
PROJECT = f"""project('p')
foreach name : {list(NAMES)}
  test(name, configure_file(input : 'program', output : name, copy : true), protocol : 'gtest',
    suite : ['unit', name == 'data' ? 'wrong-data' : []], timeout : name == 'slow' ? 2 : 30)
endforeach
test('other', find_program('true'), suite : 'unit')
"""
PYTEST = """
import pathlib, subprocess, sys
import pytest

def first(name):
    ran = pathlib.Path(__file__).with_name(name)
    before = ran.exists()
    ran.write_text("")
    return not before

def test_passes(): pass
@pytest.mark.parametrize("word", ["a-b", "c[d]", "e/f"])
def test_late(word): assert not first("late" + str(len(word)) + word[0])
def test_always(): assert False
@pytest.mark.wrong_data
def test_data(): assert not first("data")
@pytest.mark.leak
def test_leak(): assert not first("leak")
def test_crash():
    assert not first("crash"), "Fatal Python error: Segmentation fault"
"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> types.SimpleNamespace:
    """The modules of tools/dev, with a tree of their own."""
    found = types.SimpleNamespace()
    for name in ("counts", "builds", "rooms", "steadiness", "unsteady", "run_tests"):
        module = load(f"tools/dev/{name}.py", monkeypatch)
        monkeypatch.setitem(sys.modules, name, module)  # For those that import it.
        setattr(found, name, module)
    for module in (found.builds, found.run_tests):
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr(module, "BIN", pathlib.Path(sys.executable).parent)
    return found


def judged(tools: Any, counts: Any, page: pathlib.Path) -> tuple[set[str], set[str]]:  # noqa: ANN401
    """Names that are unsteady, and names that stay failures."""
    found = tools.unsteady.judge(counts, page)
    assert counts.failed == len(counts.failures)
    return {one.failure.test for one in found}, {one.name for one in counts.failures}


def test_programs_that_are_late_are_unsteady_and_faults_are_never_run_again(
    tools: types.SimpleNamespace, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "meson.build").write_text(PROJECT)
    (tmp_path / "program").write_text(PROGRAM.format(python=sys.executable))
    (tmp_path / "program").chmod(0o755)
    build = tools.builds.Build("build")
    assert build.make()
    page = tmp_path / "unsteady.md"

    counts = build.meson_test("unit")
    assert counts.failed == len(NAMES) - 1
    unsteady, failed = judged(tools, counts, page)

    assert unsteady == {"late Suite.Case", "slow"}
    assert {name.rpartition(":")[2] for name in failed} == {"Suite.Case", "crash", "leak"}
    assert str(counts) == "5 passed, 5 failed, 0 skipped"  # The program that leaks has a good case.
    ran = {name: (tmp_path / "build" / f"{name}.ran").read_text().splitlines() for name in NAMES}
    assert {name: len(lines) for name, lines in ran.items()} == {
        **{"passes": 1, "late": 3, "slow": 3, "always": 2},
        **{"crash": 1, "sanitizer": 1, "leak": 1, "data": 1},
    }
    assert "--gtest_filter=Suite.Case" in ran["late"][1]
    assert "--gtest_filter" not in ran["slow"][1]
    assert tools.unsteady.listed(page) == unsteady
    assert "within its time limit" in page.read_text()


def test_a_test_of_pytest_is_run_again_by_its_node(
    tools: types.SimpleNamespace, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "tests" / "python"
    folder.mkdir(parents=True)
    (folder.parent / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "test_it.py").write_text(PYTEST)
    page = tmp_path / "unsteady.md"
    python = pathlib.Path(sys.executable)

    counts = tools.run_tests.pytest_suite(
        "tests/python", {}, *tools.run_tests.IN_PROCESSES, python=python
    )
    assert str(counts) == "1 passed, 7 failed, 0 skipped"
    unsteady, failed = judged(tools, counts, page)

    node = "tests/python/test_it.py::"
    assert unsteady == {f"{node}test_late[{word}]" for word in ("a-b", "c[d]", "e/f")}
    names = {name.rpartition(".")[2] for name in failed}
    assert names == {"test_always", "test_data", "test_leak", "test_crash"}


def failing(tools: Any, test: str, again: Callable[[], Any] | None) -> Any:  # noqa: ANN401
    """Counts of one failure that can be run again."""
    counts = tools.counts.failure(test, "late", test)
    counts.failures = [dataclasses.replace(counts.failures[0], again=again)]
    return counts


def test_a_test_that_is_listed_is_not_forgiven_again(
    tools: types.SimpleNamespace, tmp_path: pathlib.Path
) -> None:
    page = tmp_path / "unsteady.md"
    good = tools.counts.Counts(passed=1)
    assert judged(tools, failing(tools, "a", lambda: good), page) == ({"a"}, set())

    assert judged(tools, failing(tools, "a", lambda: good), page) == (set(), {"a"})
    assert judged(tools, failing(tools, "b", lambda: good), page) == ({"b"}, set())

    assert tools.unsteady.listed(page) == {"a", "b"}


def test_a_test_must_pass_both_times_and_be_found_at_all(
    tools: types.SimpleNamespace, tmp_path: pathlib.Path
) -> None:
    page = tmp_path / "unsteady.md"
    good, bad = tools.counts.Counts(passed=1), tools.counts.failure("a", "late", "a")
    for ends in ([good, bad], [bad, good], [tools.counts.Counts()]):
        turns = iter(ends)
        assert judged(tools, failing(tools, "a", lambda t=turns: next(t)), page)[1] == {"a"}
    assert judged(tools, failing(tools, "a", None), page)[1] == {"a"}

    assert not page.exists()


def test_many_failures_are_a_fault(tools: types.SimpleNamespace, tmp_path: pathlib.Path) -> None:
    ran: list[int] = []
    counts = tools.counts.Counts()
    for number in range(tools.unsteady.TESTS_MAX + 1):
        again = lambda n=number: ran.append(n) or tools.counts.Counts(passed=1)  # noqa: E731
        counts.add(failing(tools, str(number), again))

    assert not judged(tools, counts, tmp_path / "unsteady.md")[0]

    assert not ran
