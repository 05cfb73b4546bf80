"""What checkpoints hold, as plain values: states, steps, and which of their files are damaged."""

import dataclasses
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner

import ffrecord.checkpoint as ckpt
from ffrecord._cli.checkpoint import checkpoint
from ffrecord.checkpoint import Named
from torn_steps import tear

# Two slices of an incremental save, and a bit.
TABLE_ROWS = 600
_STRIPE = 70
_STEP = re.compile(r"(?:step-|\.aside-)(\d+)(?:-[0-9a-f]+)?")
# Damage that a look at manifests and sizes shows; the rest shows when bytes are read.
VISIBLE = ("part", "root", "cut", "gone")
FILES = {
    "segment": "part-*/seg-*",
    "cut": "part-*/seg-*",
    "gone": "part-*/seg-*",
    "part": "part-*.manifest",
    "root": "root.manifest",
    "torn": "part-00000.manifest",  # Its step's tensors are not those that were saved.
}


@dataclasses.dataclass(frozen=True)
class Content:
    """A state, named by the seeds of its tensors."""

    table: int  # Large; the same for many steps.
    head: int  # Small; another one for each step.

    def arrays(self) -> dict[str, Any]:
        """Return the tensors, made anew."""
        chance = np.random.default_rng(self.table)
        return {
            "table": chance.integers(0, 256, (TABLE_ROWS, 4096), np.uint8),
            "head": np.random.default_rng(self.head).random(257, np.float32),
            "nothing": np.zeros((0, 3), np.int16),
        }

    def state(self) -> dict[str, Any]:
        """Return tensors and small values."""
        words = {
            "step": self.head,
            "list": [1, 2.5, "x", None, b"y"],
            "pair": (True, -1, 2j),
            "set": {self.head, "z", (None, frozenset({0.5}))},
            "named": Named("enum", "color.Color", "RED"),
        }
        arrays = self.arrays()
        return {**arrays, "again": arrays["head"], "words": words, "position": Position(self.head)}

    def stored(self) -> dict[str, Any]:
        """Return what a load without a state gives."""
        return {**self.state(), "position": {"at": self.head}}


class Scattered(torch.Tensor):
    """A tensor that ranks hold together: each has some stripes of its rows, as it tells itself."""

    def set_rows(self, rank: int, rows: np.ndarray[Any, Any], *, is_filled: bool) -> Any:  # noqa: ANN401
        """Take every second stripe of `rows`, or room for it."""
        self.shape_of_all = rows.shape
        self.stripes = []
        for begin in range(rank * _STRIPE, len(rows), 2 * _STRIPE):
            stripe = torch.from_numpy(rows[begin : begin + _STRIPE].copy())
            self.stripes.append((begin, stripe if is_filled else torch.zeros_like(stripe)))
        return self

    def local_shards(self) -> list[Any]:
        """As a ShardedTensor has it."""
        return [
            SimpleNamespace(
                tensor=stripe,
                metadata=SimpleNamespace(shard_offsets=[begin, 0], shard_sizes=stripe.shape),
            )
            for begin, stripe in self.stripes
        ]

    def metadata(self) -> Any:  # noqa: ANN401
        """As a ShardedTensor has it."""
        dtype = self.stripes[0][1].dtype
        return SimpleNamespace(
            size=self.shape_of_all, tensor_properties=SimpleNamespace(dtype=dtype)
        )


def scattered(rank: int, rows: np.ndarray[Any, Any], *, is_filled: bool = True) -> Scattered:
    """This rank's side of `rows`."""
    made: Any = torch.zeros(0).as_subclass(Scattered)
    return made.set_rows(rank, rows, is_filled=is_filled)  # type: ignore[no-any-return]


class Position:
    """An object of the user: it may refuse to be set back."""

    def __init__(self, at: int, *, refuses: bool = False) -> None:
        self.at, self.refuses = at, refuses

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self.at == other.at

    def __hash__(self) -> int:
        return hash(self.at)

    def state_dict(self) -> dict[str, int]:
        """As torch's objects have it."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """As torch's objects have it."""
        if self.refuses:
            raise ValueError("this position belongs to another dataset")
        self.at = state["at"]


class Holder:
    """An object of the user that may have no tensor yet."""

    def __init__(self, tensor: Any) -> None:  # noqa: ANN401
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:
        """As torch's objects have it."""
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As torch's objects have it."""
        self.tensor = state["tensor"]


@dataclasses.dataclass
class Step:
    """A committed checkpoint: what it holds, and what was done to its files."""

    content: Content
    attempt: str  # Of the save; copies have the same.
    flat: bool = False  # Saved by torch's planner: tensors alone.
    damage: set[str] = dataclasses.field(default_factory=set)
    since: int = 0  # The turn in which it came to its run.

    @property
    def is_whole(self) -> bool:
        """Whether every byte is as it was written."""
        return not self.damage

    @property
    def is_readable(self) -> bool:
        """Whether every block is as it was written: a load compares no digests of tensors."""
        return self.damage <= {"torn"}

    @property
    def looks_whole(self) -> bool:
        """Whether manifests and sizes are right: `latest` and `list` read no more."""
        return not self.damage.intersection(VISIBLE)


def has_same(there: Step | None, here: Step) -> bool:
    """Whether a place has the save that is here, as far as manifests and sizes show."""
    return there is not None and there.attempt == here.attempt and there.looks_whole


def gives_way(there: Step | None, here: Step) -> bool:
    """Whether a copy of what is here may take its place."""
    return there is None or there.attempt == here.attempt or "root" in there.damage


def copies_of(near: Step | None, far: Step | None) -> list[Step]:
    """The copies of the save that a step is; a damaged root does not say whose it is."""
    named = [each for each in (near, far) if each is not None and "root" not in each.damage]
    return [each for each in named if each.attempt == named[0].attempt]


def prune(run: Path, keep_last: int, *, verify: bool, dry_run: bool) -> set[int]:
    """Prune a run; return the steps that it says."""
    removed = ckpt.prune(run, keep_last=keep_last, verify=verify, dry_run=dry_run)
    return {commit.step for commit in removed}


def prune_by_command(run: Path, keep_last: int, *, verify: bool, dry_run: bool) -> set[int]:
    """Prune a run as a person does; return the steps that it says."""
    words = ["prune", str(run), "--keep-last", str(keep_last), "--json", "--yes"]
    words += ([] if verify else ["--no-verify"]) + (["--dry-run"] if dry_run else [])
    ended = CliRunner().invoke(checkpoint, words, catch_exceptions=False)
    return set(json.loads(ended.stdout)["would_remove" if dry_run else "removed"])


def compare_digests(target: Path | str, steps: dict[int, Step]) -> None:
    """Compare the newest two whole steps by their digests, however they were saved."""
    whole = sorted(number for number, each in steps.items() if each.is_whole)[-2:]
    if len(whole) == 2:
        old, new = (steps[number].content for number in whole)
        names = ("table", "head")
        changed = {name for name in names if getattr(old, name) != getattr(new, name)}
        messages = ckpt.verify(target, whole[1], against=whole[0])
        told = {message.split()[1] for message in messages} - {"again"}  # "head" by another name.
        assert told == changed, messages


def files(run: Path, step: int, kind: str) -> list[Path]:
    """Return the files of a step that a kind of damage is for."""
    folder = run / f"step-{step:09}"
    if not folder.exists():  # Until the next save, after a kill.
        folder = next(run.glob(f".aside-{step}-*"), folder)
    return sorted(folder.glob(FILES[kind]))


def steps_of(run: Path) -> set[int]:
    """Return the steps whose folders are there."""
    found = [_STEP.fullmatch(path.name) for path in run.glob("*")]
    return {int(match[1]) for match in found if match}


def harm(path: Path, kind: str, turn: int) -> None:
    """Damage a file; each `turn` in another place, so that no harm undoes another."""
    size = path.stat().st_size
    if kind == "torn":
        tear(path.parent, turn)
    elif kind == "gone":
        path.unlink()
    elif kind == "cut":
        os.truncate(path, size - min(size, 4096))
    else:
        # Beyond the first bytes of a manifest, which say what it is; within the data of a segment.
        offset = (40 + 8 * turn) % max(1, min(size, 4096) - 40)
        with path.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << turn % 8]))
