"""Tables spread over a folder as Hugging Face's hub lays them out, with other things beside them.

Each row is in one file. A pack that succeeds has the whole split that was asked for; a folder
in which something may be data, and is not packed, is refused by its name.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import ffrecord
from files_commands import run
from files_paths import demand

Rows = dict[str, list[int]]
"""The rows in each file of the split, by name, in the order in which they are packed."""

SUFFIXES = (".jsonl", ".csv")


def _numbered(count: int, suffix: str) -> list[str]:
    return [f"train-{number:05}-of-{count:05}{suffix}" for number in range(count)]


LAYOUTS: dict[str, Callable[[int, str], list[str]]] = {
    "numbered": _numbered,
    "numbered in data": lambda count, suffix: [f"data/{n}" for n in _numbered(count, suffix)],
    "a folder": lambda count, suffix: [f"train/{number}{suffix}" for number in range(count)],
    "a folder in data": lambda count, suffix: [f"data/train/{n}{suffix}" for n in range(count)],
    "one file": lambda _, suffix: [f"train{suffix}"],
}

# What a folder may have beside its files, which is no data of the split.
HARMLESS = (
    *("README.md", "figure.png", ".gitattributes", "train.py", "data/README.md", "data/LICENSE"),
    *("train/dataset_info.json", "train/SHA256SUMS", "data/train/README.md", ".git/a"),
)
# Files that are data, or may be, wherever the files of the split are.
LOST = (
    *("data/1.png", "data/1.wav", "data/more/1.jsonl", "data/train.jsonl.zst", "train.json"),
    *("train.parquet.xz", "train.JSONL", "more.jsonl", "data/more.csv", "train.zip"),
)
# The same in the folder of the split.
LOST_IN_SPLIT = ("1.png", "1.txt", "deep/1.jsonl", "1.zip", "1.JSONL", "1.json")


def check_layout(layout: str, seed: int, work: Path) -> None:
    """Pack a folder, and compare it with the rows of its files."""
    chance = random.Random(f"{layout} {seed}")
    shutil.rmtree(work, ignore_errors=True)
    folder = work / "set"
    files = _written(folder, LAYOUTS[layout](chance.choice((1, 2, 11)), chance.choice(SUFFIXES)))
    is_folder = layout in ("a folder", "a folder in data")
    parent = (folder / next(iter(files))).parent
    for name in chance.sample(HARMLESS, 3):
        at = folder / name
        if at.parent.exists() or at.parent.name.startswith("."):
            _beside(at)
    lost = chance.choice((None, None, *LOST, *(LOST_IN_SPLIT if is_folder else ())))
    if lost is not None:
        at = (parent if lost in LOST_IN_SPLIT else folder) / lost
        if at.exists():
            return
        _beside(at)
    has_test = chance.random() < 0.3
    if has_test:
        _beside(folder / "test.jsonl", b'{"row": -1}\n')
    words = ("--split", "train") if has_test and lost not in ("more.jsonl", "data/more.csv") else ()
    code, _, err = run("ffrecord-pack", *words, folder, work / "o.ffr")
    what = f"{layout}, {len(files)} files, {lost or 'nothing else'}"
    if lost is not None or (has_test and not words):
        demand(code == 2, f"{what}: exit code {code}: a part is left out without a word")
        return
    demand(code == 0, f"{what}: exit code {code}: {err.strip()[-300:]}")
    rows = [row for each in files.values() for row in each]
    found = ffrecord.read_table(work / "o.ffr")["row"].to_pylist()
    demand(found == rows, f"{what}: the rows {found}, not {rows}")


def _written(folder: Path, names: list[str]) -> Rows:
    files: Rows = {}
    for number, name in enumerate(names):
        files[name] = [3 * number, 3 * number + 1, 3 * number + 2]
        lines = [json.dumps({"row": row}) for row in files[name]]
        if name.endswith(".csv"):
            lines = ["row", *map(str, files[name])]
        _beside(folder / name, "".join(f"{line}\n" for line in lines).encode())
    return files


def _beside(path: Path, data: bytes = b"x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
