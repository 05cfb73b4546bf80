"""Fail if ruff or mypy finds fault with the Python files. Exit 77 (skip) without either.

Usage: check_python.py SOURCE_ROOT
"""

import importlib.util
import pathlib
import subprocess
import sys

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
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
