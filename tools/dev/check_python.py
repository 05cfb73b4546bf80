"""Fail if ruff or mypy finds fault with the Python files. Exit 77 (skip) without either.

Ruff asks for no docstrings in modules that begin with an underscore; this does.

Usage: check_python.py SOURCE_ROOT
"""

import ast
import importlib.util
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import tree

SKIP = 77


def python_files(root: pathlib.Path) -> list[str]:
    """Python modules, and scripts that have no suffix but say python in their first line."""
    modules = [str(path) for path in tree.files(root, ".py", ".pyi")]
    scripts = []
    for path in tree.files(root, ""):
        with path.open("rb") as file:
            first = file.readline(80)
        if first.startswith(b"#!") and b"python" in first:
            scripts.append(str(path))
    return modules + scripts


def without_docstring(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Classes and functions with public names, within classes too, that say nothing of theirs."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") and node.name != "__init__":
                continue
            decorators = {ast.unparse(each) for each in node.decorator_list}
            if ast.get_docstring(node) is None and "overload" not in decorators:
                yield node
            if isinstance(node, ast.ClassDef):
                yield from without_docstring(node.body)


def missing_docstrings(root: pathlib.Path) -> Iterator[str]:
    """One line for each docstring that is missing in the package."""
    for path in sorted((root / "python" / "ffrecord").rglob("*.py")):
        module = ast.parse(path.read_text())
        lines = [node.lineno for node in without_docstring(module.body)]
        if ast.get_docstring(module) is None:
            lines.append(1)
        yield from (f"{path.relative_to(root)}:{line}: no docstring" for line in lines)


def main(root: pathlib.Path) -> int:
    """Run what is installed; return the worst exit code."""
    checks = []
    files = python_files(root)
    if importlib.util.find_spec("ruff"):
        checks += [["ruff", "check", "--no-cache", *files]]
        checks += [["ruff", "format", "--no-cache", "--check", *files]]
    package = root / "python" / "ffrecord"
    if importlib.util.find_spec("mypy") and package.is_dir():
        checks += [["mypy", "--strict", str(package)]]
    if not checks or not (root / "pyproject.toml").exists():
        print("skipped: neither ruff nor mypy is installed, or pyproject.toml is not there")
        return SKIP
    codes = [
        subprocess.run([sys.executable, "-m", *check], cwd=root, check=False).returncode
        for check in checks
    ]
    silent = list(missing_docstrings(root))
    print("\n".join(silent), end="\n" if silent else "")
    return max(*codes, bool(silent))


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
