"""Run the tests that a change adds or edits many times, beside a load that takes all processors.

    tools/test --steady                                   the tests that differ from main
    tools/test --steady net/endpoint tests/python/test_x.py::test_y    these

A test that fails once in fifty runs here fails a landing of many tests on a slow day. A change to
the product names the tests of what it changed, since this finds only edited tests.
"""

import ast
import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

import rooms

TIMES = 50
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
CASE = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)")
# Ends with its parent, also when that is killed.
BUSY = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
while True: pass
"""


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Which tests to run."""

    nodes: tuple[str, ...] = ()  # Arguments of pytest: files, or FILE::TEST.
    programs: dict[str, str] = dataclasses.field(default_factory=dict)  # Program -> gtest filter.
    helpers: tuple[str, ...] = ()  # Edited files below tests/ that are no tests.

    def by_folder(self) -> dict[str, list[str]]:
        """Return the tests of pytest by their folder; names begin below it."""
        found: dict[str, list[str]] = {}
        for node in self.nodes:
            tests, folder, rest = node.split("/", 2)
            found.setdefault(f"{tests}/{folder}", []).append(rest)
        return found

    def lines(self) -> list[str]:
        """Say what is chosen."""
        tests = [f"{program} {cases}".rstrip() for program, cases in self.programs.items()]
        unclear = [f"{path} is no test: name those that it serves" for path in self.helpers]
        return [*tests, *self.nodes, *unclear] or ["no test differs from main"]


def edited_lines(root: pathlib.Path, path: str, base: str) -> set[int] | None:
    """Return the lines of a file that differ from where this branch left `base`; None: all."""
    words = ("git", "diff", "-U0", "--merge-base", base, "--", path)
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    if not done.stdout:
        return None  # Git does not know the file yet.
    lines: set[int] = set()
    for hunk in filter(None, map(HUNK.match, done.stdout.splitlines())):
        first, count = int(hunk[1]), int(hunk[2] or 1)
        lines.update(range(first, first + max(count, 1)))
    return lines


def python_tests(path: str, text: str, lines: set[int] | None) -> list[str]:
    """Return the tests of a Python file that have those lines; the whole file for other lines."""
    if lines is None:
        return [path]
    left, found = set(lines), []
    for outer in ast.parse(text).body:
        inner = outer.body if isinstance(outer, ast.ClassDef) else [outer]
        prefix = f"{path}::{outer.name}" if isinstance(outer, ast.ClassDef) else path
        for one in inner:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                first = min([one.lineno, *(word.lineno for word in one.decorator_list)])
                own = set(range(first, (one.end_lineno or first) + 1))
                if left & own:
                    found.append(f"{prefix}::{one.name}")
                left -= own
    return [path] if has_code(text, left, "#") else found


def cpp_cases(text: str, lines: set[int] | None) -> str:
    """Return a GoogleTest filter of the cases that have those lines; empty: all of the program."""
    if lines is None:
        return ""
    left, found, case = set(lines), [], ""
    for number, line in enumerate(text.splitlines(), 1):
        begins = CASE.match(line)
        if begins:
            case = f"{begins[1]}.{begins[2]}"
        if case and number in left:
            left.discard(number)
            if case not in found:
                found.append(case)
        if line.startswith("}"):
            case = ""
    if has_code(text, left, "//"):
        return ""
    # The second form is that of tests with parameters, the third of those with types.
    suites = [name.partition(".") for name in found]
    forms = [
        (f"{suite}.{test}", f"*/{suite}.{test}/*", f"{suite}/*.{test}") for suite, _, test in suites
    ]
    return ":".join(form for one in forms for form in one)


def has_code(text: str, lines: set[int], comment: str) -> bool:
    """Whether one of those lines has more than a comment."""
    every = text.splitlines()
    said = [every[number - 1].strip() for number in lines if number <= len(every)]
    return any(line and not line.startswith(comment) for line in said)


def differing(root: pathlib.Path, programs: dict[str, str], base: str = "main") -> Chosen:
    """Return the tests that differ from `base`. `programs`: the source of each -> its name."""
    chosen = Chosen()
    nodes, helpers = [], []
    for path in rooms.changed(root, base):
        file = root / path
        if not path.startswith("tests/") or not file.exists():
            continue
        name = file.name
        if path in programs:
            lines = edited_lines(root, path, base)
            chosen.programs[programs[path]] = cpp_cases(file.read_text(), lines)
        elif name.startswith("test_") and name.endswith(".py"):
            nodes += python_tests(path, file.read_text(), edited_lines(root, path, base))
        elif file.suffix in (".py", ".cpp", ".h"):
            helpers.append(path)
    return dataclasses.replace(chosen, nodes=tuple(nodes), helpers=tuple(helpers))


def named(root: pathlib.Path, words: Iterable[str], programs: Iterable[str]) -> Chosen:
    """Return the tests that somebody names: paths of pytest, programs of Meson with their case."""
    known, chosen, nodes, unknown = set(programs), Chosen(), [], []
    for word in words:
        program, _, case = word.partition(" ")
        if program in known:
            chosen.programs[program] = case
        elif (root / word.partition("::")[0]).is_file():
            nodes.append(word)
        else:
            unknown.append(word)
    if unknown:
        raise ValueError(f"no test of pytest and no program of Meson: {', '.join(unknown)}")
    return dataclasses.replace(chosen, nodes=tuple(nodes))


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Keep all processors busy."""
    command = [sys.executable, "-c", BUSY]
    busy = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
