"""Fail if clang-format 14 would change a C++ file. Exit 77 (skip) where it is not installed.

Usage: check_format.py SOURCE_ROOT [--fix]
"""

import pathlib
import shutil
import subprocess
import sys

import tree

SKIP = 77


def clang_format() -> str | None:
    """The program, if it is of the one version whose output the tree follows."""
    for name in ("clang-format-14", "clang-format"):
        if program := shutil.which(name):
            version = subprocess.run(
                [program, "--version"], capture_output=True, text=True, check=True
            )
            if "version 14." in version.stdout:
                return program
    return None


def main(root: pathlib.Path, fix: bool) -> int:
    """Check or format every C++ file; return the exit code."""
    program = clang_format()
    if program is None:
        print("skipped: clang-format 14 is not installed (package clang-format-14)")
        return SKIP
    sources = [str(path) for path in tree.files(root, ".h", ".cpp")]
    mode = ["-i"] if fix else ["--dry-run", "--Werror"]
    return subprocess.run([program, "--style=file", *mode, *sources], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), "--fix" in sys.argv[2:]))
