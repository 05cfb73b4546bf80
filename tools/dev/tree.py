"""Which files of the tree the house rules speak about. Shared by the checks in this folder."""

import pathlib
from collections.abc import Iterator

SKIP = ("build", ".", "dist", "subprojects")


def files(root: pathlib.Path, *suffixes: str) -> Iterator[pathlib.Path]:
    """Every file below `root` with one of `suffixes` (any, if none is given), sorted by name.

    Build folders, hidden folders but for `.ci`, caches, links and test data are left out.
    """
    for top in sorted(root.iterdir()):
        if top.is_symlink():
            continue
        if top.is_file():
            if top.name != ".git" and (not suffixes or top.suffix in suffixes):
                yield top
        elif top.name == ".ci" or not top.name.startswith(SKIP):
            for path in sorted(top.rglob("*")):
                parts = path.relative_to(root).parts
                if "__pycache__" in parts or parts[:2] == ("tests", "data"):
                    continue
                if any(part.startswith(".") for part in parts[1:-1]):  # Hypothesis keeps one.
                    continue
                if path.is_file() and (not suffixes or path.suffix in suffixes):
                    yield path
