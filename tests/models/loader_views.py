"""Views of small record files, each beside the list of the numbers that its records hold."""

import atexit
import dataclasses
import functools
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils import data

import ffrecord
from ffrecord._read.records import Records
from ffrecord.errors import CorruptionError
from ffrecord.torch import ConcatDataset, Dataset, Subset
from loader_truth import MixTruth

# Records by file; each holds its own number. Those of "ill" that are damaged hold 503 and 506.
FILES = {"a": range(12), "b": range(100, 107), "c": range(200, 220), "ill": range(500, 511)}
FOLDER = {"one": range(300, 305), "two": range(305, 314)}
BAD = {503, 506}
_TOKENS = 4


@dataclasses.dataclass
class View:
    """Records, and what they must be."""

    records: Records
    labels: list[int]
    mix: MixTruth | None = None
    is_tokens: bool = False

    @property
    def bad(self) -> int:
        """How many records are damaged, in any epoch."""
        parts = [] if self.mix is None else self.mix.parts  # Of which later epochs have others.
        return sum(label in BAD for labels in (self.labels, *parts) for label in labels)

    @property
    def is_bad(self) -> bool:
        """Whether any is."""
        return self.bad > 0


@functools.cache
def folder() -> Path:
    """Make the files, once for each process."""
    made = Path(tempfile.mkdtemp(prefix="ffrecord-model-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    (made / "folder").mkdir()
    for name, labels in FILES.items():
        _write(made / f"{name}.ffr", labels)
    for name, labels in FOLDER.items():
        _write(made / "folder" / f"{name}.ffr", labels)
    content = bytearray((made / "ill.ffr").read_bytes())
    for label in BAD:
        content[content.find(_tokens(label)) + 1] ^= 64
    (made / "ill.ffr").write_bytes(content)
    return made


def _tokens(label: int) -> bytes:
    return np.full(_TOKENS, label, "<u2").tobytes()


def _write(path: Path, labels: range) -> None:
    with ffrecord.Writer(path, {"id": "i64", "t": "bytes"}) as writer:
        for label in labels:
            writer.write({"id": label, "t": _tokens(label)})


def opened(name: str) -> View:
    """Open a file, or the folder of two."""
    if name == "folder":
        labels = [label for labels in FOLDER.values() for label in labels]
        return View(ffrecord.open(folder() / "folder"), labels)
    return View(ffrecord.open(folder() / f"{name}.ffr"), list(FILES[name]))


CHOICES: dict[str, Callable[[int], Any]] = {
    "every other": lambda n: slice(None, None, 2),
    "backwards": lambda n: slice(None, None, -1),
    "all but the ends": lambda n: range(1, n - 1),
    "listed twice": lambda n: [n - 1, 0, 0, n // 2, -1, n // 3],
    "by a mask": list,
}


def chosen(view: View, how: str) -> View:
    """Choose some records."""
    count = len(view.labels)
    if how == "by a mask":
        mask = np.arange(count) % 3 > 0
        records: Records = view.records.filter(mask)
        labels = [view.labels[i] for i in np.flatnonzero(mask)]
    else:
        what = CHOICES[how](count)
        records, labels = view.records.subset(what), _picked(view.labels, what)
    return View(records, labels, is_tokens=view.is_tokens)


def _picked(labels: list[int], what: Any) -> list[int]:  # noqa: ANN401 - of `CHOICES`
    return labels[what] if isinstance(what, slice) else [labels[i] for i in what]


def joined(views: list[View]) -> View:
    """Lay views end to end."""
    labels = [label for view in views for label in view.labels]
    records = ffrecord.concat([view.records for view in views])
    return View(records, labels, is_tokens=views[0].is_tokens)


def mixed(views: list[View], weights: list[int], seed: int) -> View:
    """Mix views."""
    mix = MixTruth([view.labels for view in views], weights, seed)
    count = sum(len(view.labels) for view in views)
    labels = [mix.label(0, place) for place in range(count)]
    records = ffrecord.mix([view.records for view in views], weights, seed)
    return View(records, labels, mix, views[0].is_tokens)


def blocked(view: View) -> View:
    """Cut the tokens of the records into blocks: each record is one."""
    blocks = ffrecord.TokenBlocks(view.records, _TOKENS, dtype="u16", column="t")
    return View(blocks, list(view.labels), is_tokens=True)


def labels_of(batch: Any) -> list[int]:  # noqa: ANN401 - of a loader, a reader or an adapter
    """Return the numbers that the records of a batch hold."""
    if isinstance(batch, dict) and "id" not in batch:
        return [int(row[0]) for row in batch["tokens"]]
    if isinstance(batch, list):
        return [label_of(sample) for sample in batch]
    try:
        return [int(label) for label in batch["id"]]
    except KeyError:
        return [int(row[0]) for row in batch["tokens"]]


def label_of(sample: Any) -> int:  # noqa: ANN401 - of a reader or a dataset
    """Return the number that a record holds."""
    return int(sample["id"]) if "id" in sample else int(sample["tokens"][0])


def check(view: View) -> None:
    """Ask a view in each way that there is."""
    records, labels = view.records, view.labels
    count = len(labels)
    assert len(records) == count
    kept = records.read(range(count), on_corrupt="keep")
    damaged = [label for label, status in zip(labels, kept.status, strict=True) if status]
    assert damaged == [label for label in labels if label in BAD]
    for index in (0, count // 2, -1):
        try:
            found = label_of(records[index]) if count else None
        except CorruptionError:
            assert labels[index] in BAD, f"record {index} holds {labels[index]} and is whole"
        else:
            assert found is None or found == labels[index], f"record {index} is {found}"
    good = [index for index, label in enumerate(labels) if label not in BAD]
    picked = [labels[index] for index in reversed(good)]
    assert labels_of(records.read(good[::-1])) == picked
    negative = [index - count for index in good[::-1]]
    assert labels_of(records.read(negative)) == picked
    assert labels_of(pickle.loads(pickle.dumps(records)).read(good[::-1])) == picked
    skipped = [labels[index] for index in good]
    assert labels_of(records.read(range(count), on_corrupt="skip")) == skipped
    if len(good) == count:
        assert [label for each in records.batches(5) for label in labels_of(each)] == labels
        assert labels_of(records[1:5]) == labels[1:5]


def same(sample: Any) -> Any:  # noqa: ANN401 - any sample
    """Change nothing."""
    return sample


def augmented(sample: Any, generator: np.random.Generator) -> Any:  # noqa: ANN401 - any sample
    """Add a number that chance gives."""
    label = label_of(sample)
    return {"id": label, "draw": int(generator.integers(1 << 62))}


@dataclasses.dataclass
class Data:
    """A dataset, and what it must be."""

    dataset: Any
    labels: list[int]
    mix: MixTruth | None = None


KINDS = (
    *("plain", "transform", "augmented", "torch"),
    *("subset", "torch subset", "concat", "torch concat", "nested", "torch subset of concat"),
    *("augmented concat", "augmented torch concat", "augmented torch subset of concat"),
)
# Their samples have a number that chance gives.
AUGMENTED = ("augmented", *(kind for kind in KINDS if kind.startswith("augmented ")))
# Their samples are made by code of the program.
TRANSFORMED = ("transform", *AUGMENTED)
# Torch asks for their samples one by one, so no policy can make a batch shorter.
ONE_BY_ONE = tuple(
    f"{chance}{kind}"
    for chance in ("", "augmented ")
    for kind in ("torch concat", "torch subset of concat")
)


def dataset_of(view: View, kind: str, policy: Any) -> Data:  # noqa: ANN401 - a Literal
    """Make a dataset of a view, and perhaps views of that."""
    columns = None if view.is_tokens else ["id"]
    transform: Any = same if kind == "transform" else augmented if kind in AUGMENTED else None
    kind = kind.removeprefix("augmented ")
    options = {"transform": transform, "columns": columns, "on_corrupt": policy}
    plain: Any = Dataset(view.records, **options)
    labels, count = view.labels, len(view.labels)
    odd = [*range(1, count, 2), 0]
    if kind == "subset":
        return Data(Subset(plain, odd), _picked(labels, odd))
    if kind == "torch subset":
        return Data(data.Subset(plain, odd), _picked(labels, odd))
    if kind == "concat":
        return Data(ConcatDataset([plain, Subset(plain, odd)]), labels + _picked(labels, odd))
    if kind == "torch concat":
        return Data(data.ConcatDataset([plain, plain]), labels * 2)
    if kind == "torch subset of concat":
        both = data.ConcatDataset([plain, data.Subset(plain, odd)])
        every = range(0, count + len(odd), 2)
        return Data(data.Subset(both, every), _picked(labels + _picked(labels, odd), every))
    if kind == "nested":
        pair = ConcatDataset([plain, plain])
        every = range(0, 2 * count, 2)
        return Data(Subset(pair, every), _picked(labels * 2, every))
    if kind == "torch":
        return Data(plain.with_format("torch"), labels, view.mix)
    return Data(plain, labels, view.mix)


def check_samples(made: Data, kind: str, policy: str) -> None:
    """Ask for samples one by one, and for a list: damage is replaced by the next of the dataset."""
    labels = made.labels
    if kind.endswith("torch concat"):  # Of which each part replaces its own.
        return
    for index, label in enumerate(labels):
        after = [each for each in labels[index:] + labels[:index] if each not in BAD]
        if label in BAD and policy != "replace":
            after = []
        try:
            found = label_of(made.dataset[index])
        except CorruptionError:
            assert not after, f"sample {index} of {labels} is damaged instead of {after[0]}"
        else:
            assert after, f"damaged sample {index} of {labels} is {found}"
            assert found == after[0], f"sample {index} of {labels} is {found}, not {after[0]}"
