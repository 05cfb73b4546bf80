"""Scenes of tables under loaders: batches hold the rows, in one form, whatever makes them."""

import atexit
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st
from torch.utils import data

import ffrecord
from ffrecord.decode import Image, Text
from ffrecord.torch import ConcatDataset, DataLoader, Dataset, Sampler, Subset
from files_paths import Kept, check_column, check_rows, check_table
from files_together import check_apart
from loader_rules import POLICIES, SIZES, scene, several
from loader_runs import MODES as MODES_OF_RUNS
from loader_views import folder, same
from table_values import NULLS, TABLE, Columns, are_laid_out_otherwise, relative

# Types of which an earlier version lost something come more often.
_OFTEN = ("utf8", "i64", "list<i64>", "list<utf8>", "list<struct>", "struct", "png", "bool")
SPELLED = st.sampled_from([f"{name}{null}" for name in (*TABLE, *_OFTEN * 4) for null in "??!"])
_numbers = itertools.count()


@functools.cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="values-", dir=folder())
    atexit.register(made.cleanup)
    return Path(made.name)


@dataclasses.dataclass
class Table:
    """Two files of one schema, and their rows."""

    columns: Columns
    paths: list[Path]
    parts: list[list[Any]]

    @property
    def rows(self) -> list[Any]:
        """Of both."""
        return [row for part in self.parts for row in part]

    def remove(self) -> None:
        """Remove the files."""
        for path in self.paths:
            path.unlink(missing_ok=True)


def written(spelled: Sequence[str], counts: Sequence[int], nulls: str, seed: int) -> Table:
    """Write tables of that schema."""
    columns = Columns(tuple(each.rstrip("!") for each in spelled), is_table=True)
    parts = [columns.rows(count, seed + part, nulls) for part, count in enumerate(counts)]
    paths = [_folder() / f"{next(_numbers)}.ffr" for _ in parts]
    for path, rows in zip(paths, parts, strict=True):
        ffrecord.write_table(columns.table(rows), path)
    return Table(columns, paths, parts)


def _order(count: int) -> list[int]:
    return [*range(1, count, 2), *range(0, count, 2), 0]


def _subset(view: Any, dataset: Any) -> tuple[Any, list[int]]:  # noqa: ANN401 - of torch's or ours
    order = _order(len(dataset))
    return view(dataset, order), order


# Each makes a dataset of the whole and of its parts, and says which rows it has.
WRAPPED: dict[str, Callable[[Any, list[Any]], Any]] = {
    "plain": lambda whole, _: (whole, range(len(whole))),
    "subset": lambda whole, _: _subset(Subset, whole),
    "torch subset": lambda whole, _: _subset(data.Subset, whole),
    "concat": lambda whole, parts: (ConcatDataset(parts), range(len(whole))),
    "torch concat": lambda whole, parts: (data.ConcatDataset(parts), range(len(whole))),
    "nested": lambda _, parts: _subset(Subset, ConcatDataset(parts)),
    "torch subset of concat": lambda _, parts: _subset(data.Subset, data.ConcatDataset(parts)),
    "subset of torch concat": lambda _, parts: _subset(Subset, data.ConcatDataset(parts)),
}


def rebuilt(sample: Any) -> Any:  # noqa: ANN401
    """Return equal values that are other objects."""
    if isinstance(sample, dict):
        return {name: rebuilt(value) for name, value in sample.items()}
    if isinstance(sample, list):
        return [rebuilt(value) for value in sample]
    if isinstance(sample, np.ndarray):
        return sample.copy()
    if isinstance(sample, np.generic):
        return type(sample)(sample)
    if isinstance(sample, str):
        return "".join(["", *sample])
    return sample


def added(sample: dict[str, Any]) -> dict[str, Any]:
    """Add a column; the others stay."""
    return {**sample, "added": 1}


def in_place(sample: Any) -> Any:  # noqa: ANN401
    """Change each array and tensor in its own memory."""
    _change(sample)
    return sample


def _change(value: Any) -> None:  # noqa: ANN401
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _change(each)
    elif isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        value.logical_not_()
    elif isinstance(value, torch.Tensor):
        value.view(_SIGNED.get(value.dtype, value.dtype)).add_(1)
    elif isinstance(value, np.ndarray) and value.dtype == np.bool_:
        np.logical_not(value, out=value)
    elif isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):
            value += 1


# Torch adds no numbers of these types.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def in_place_and_added(sample: dict[str, Any]) -> dict[str, Any]:
    """Change what can be changed in place, and add a column."""
    return added(in_place(sample))


TREATMENTS: dict[str, Any] = {
    "none": None,
    "same": same,
    "rebuilt": rebuilt,
    "added": added,
    "in place": in_place,
    "in place, added": in_place_and_added,
}
_IN_PLACE = ("in place", "in place, added")
_NO_TREATMENT_OF_ARROW = ("rebuilt", "added", *_IN_PLACE)


def _there(values: Any, marks: Any) -> Any:  # noqa: ANN401 - lists, or one of each
    if isinstance(marks, list):
        return [_there(*pair) for pair in zip(values, marks, strict=True)]
    return values if marks else None


def values_of(batch: Any) -> Any:  # noqa: ANN401 - a batch
    """Its values, whatever form they have: None where there is none."""
    if isinstance(batch, dict) and batch.keys() == {"values", "valid"}:
        return _there(values_of(batch["values"]), values_of(batch["valid"]))
    if isinstance(batch, dict):
        return {name: values_of(each) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return [values_of(each) for each in batch]
    return batch.tolist() if isinstance(batch, torch.Tensor | np.ndarray) else batch


def alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - batches
    """Whether two batches are of one form and hold the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, torch.Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        if one.is_floating_point():
            one, other = one.double().nan_to_num(12.5), other.double().nan_to_num(12.5)
        return torch.equal(one, other)
    if isinstance(one, pa.Table):
        return bool(
            one.schema.equals(other.schema) and repr(one.to_pylist()) == repr(other.to_pylist())
        )
    return repr(one) == repr(other)


def shape_of(batch: Any) -> Any:  # noqa: ANN401 - a batch
    """The form of a batch, which is not a matter of its values."""
    if isinstance(batch, dict):
        return {name: shape_of(each) for name, each in batch.items()}
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), *batch.shape[1:]
    return type(batch)


@scene(
    spelled=st.lists(SPELLED, min_size=1, max_size=3),
    nulls=st.sampled_from([*NULLS, "some", "first", "first"]),
    counts=several(st.integers(1, 9), 2),
    seed=st.integers(0, 99),
    form=st.sampled_from(["numpy"] * 4 + ["torch", "bytes", "arrow"]),
    decodes=st.booleans(),
    kind=st.sampled_from(sorted(WRAPPED)),
    treatment=st.sampled_from([*sorted(TREATMENTS), "rebuilt", "rebuilt"]),
    policy=POLICIES,
    mode=st.sampled_from(["caller", "threads", "auto"] * 8 + ["workers"]),
    size=SIZES,
    is_plain=st.booleans(),
)
def values(
    spelled: list[str],
    nulls: str,
    counts: list[int],
    seed: int,
    form: str,
    decodes: bool,
    kind: str,
    treatment: str,
    policy: Any,  # noqa: ANN401 - a Literal
    mode: str,
    size: int,
    is_plain: bool,
) -> None:
    """Load a table: the values are those of the rows, in the form that they have without a view."""
    if form == "arrow" and treatment in _NO_TREATMENT_OF_ARROW:
        treatment = "same"
    table = written(spelled, counts, nulls, seed)
    try:
        _check_values(
            table,
            {"on_corrupt": policy, "decode": _decoders(table.columns) if decodes else None},
            *(form, kind, treatment, mode, size, is_plain),
        )
    finally:
        table.remove()


def _decoders(columns: Columns) -> dict[str, Any] | None:
    known = {"png": Image(2), "utf8": Text(), "large utf8": Text()}
    pairs = zip(columns.names, columns.spelled, strict=True)
    return {n: known[s.rstrip("?")] for n, s in pairs if s.rstrip("?") in known} or None


def _check_values(
    table: Table,
    options: dict[str, Any],
    form: str,
    kind: str,
    treatment: str,
    mode: str,
    size: int,
    is_plain: bool,
) -> None:
    def made(paths: Any, transform: Any) -> Any:  # noqa: ANN401
        return Dataset(paths, transform=transform, **options).with_format(form)

    transform = TREATMENTS[treatment]
    parts = [made(path, transform) for path in table.paths]
    dataset, order = WRAPPED[kind](made(table.paths, transform), parts)
    is_changed = treatment in _IN_PLACE
    plain = made(table.paths, in_place if is_changed else None)
    given: dict[str, Any] = {"batch_size": size}
    if not is_plain:
        given = {"batch_sampler": Sampler(dataset, size, last="short", shuffle=False)}
    loader = DataLoader(dataset, **given, **MODES_OF_RUNS[mode])
    at, forms = 0, []
    try:
        for batch in loader:
            rows = list(order[at : at + size])
            known = next(iter(DataLoader(data.Subset(plain, rows), len(rows))))
            where = f"{kind}, {treatment}, {form}, {loader.stats()['engine']}, rows {rows}"
            if is_changed:
                batch = {name: batch[name] for name in known}
                one, other = repr(values_of(batch)), repr(values_of(known))
                assert one == other, f"{where}: {one} instead of {other}"
                at += len(rows)
                continue
            _check_batch(table, options["decode"] or {}, batch, rows, where, treatment)
            if treatment == "added":
                batch = {name: batch[name] for name in known}
            if treatment != "rebuilt":
                assert alike(batch, known), f"{where}: {batch} instead of {known}"
            forms.append(shape_of(known))
            at += len(rows)
        assert at == len(order)
        assert all(each == forms[0] for each in forms), f"the form varies: {forms}"
        assert not loader.stats()["damaged"], "missing values count as damage"
    finally:
        loader.close()


def _check_batch(
    table: Table,
    decode: dict[str, Any],
    batch: Any,  # noqa: ANN401
    rows: list[int],
    where: str,
    treatment: str,
) -> None:
    whole = table.rows
    truth = [whole[row] for row in rows]
    columns = table.columns
    if isinstance(batch, pa.Table) and not decode:
        check_table(Kept(table.paths[0], columns, truth), batch, truth, where)
        return
    for name, kind in columns.kinds.items():
        if isinstance(decode.get(name), Image):
            column = batch[name]
            found = [value is None for value in getattr(column, "to_pylist", column.__iter__)()]
            assert found == [row[name] is None for row in truth], f"{where}, pictures: {found}"
        # Lists that a transform has made are torch's to collate.
        elif treatment != "rebuilt" or not pa.types.is_nested(kind.arrow):
            check_column(kind, batch[name], [row[name] for row in truth], f"{where}, {name}")


@scene(
    spelled=SPELLED,
    step=st.integers(1, 5),
    counts=several(st.integers(1, 4), 2),
    seed=st.integers(0, 9),
)
def units(spelled: str, step: int, counts: list[int], seed: int) -> None:
    """Read two tables as one dataset: of other types, they are refused."""
    spelled = spelled.rstrip("!?")
    tables = [
        written([name], [count], "no", seed)
        for name, count in zip((spelled, relative(spelled, step)), counts, strict=True)
    ]
    first, second = (Kept(each.paths[0], each.columns, each.rows) for each in tables)
    try:
        if not are_laid_out_otherwise(spelled, relative(spelled, step)):
            check_apart(first, second, _folder())
    finally:
        for each in tables:
            each.remove()


@functools.cache
def _datasets() -> Any:  # noqa: ANN401 - Hugging Face's, if it is installed
    try:
        import datasets
    except ImportError:
        return None
    datasets.disable_progress_bars()
    return datasets


@scene(
    spelled=st.lists(SPELLED, min_size=1, max_size=2),
    nulls=st.sampled_from(NULLS),
    count=st.integers(1, 5),
    seed=st.integers(0, 9),
    is_labelled=st.booleans(),
    streaming=st.booleans(),
)
def huggingface(
    spelled: list[str], nulls: str, count: int, seed: int, is_labelled: bool, streaming: bool
) -> None:
    """Give a table to Hugging Face's datasets, if these are installed: its features and rows."""
    datasets = _datasets()
    if datasets is None:
        return
    from ffrecord.huggingface import to_huggingface

    spelled = [each for each in spelled if each.rstrip("?!") not in ("map", "dictionary")]
    columns = Columns(tuple(each.rstrip("!") for each in spelled), is_table=True)
    rows = columns.rows(count, seed, nulls)
    there = columns.table(rows)
    if is_labelled:
        there = there.append_column("label", pa.array([i % 2 for i in range(count)]))
    features = datasets.Features.from_arrow_schema(there.schema)
    if is_labelled:
        features["label"] = datasets.ClassLabel(names=["no", "yes"])
    if not features:
        return
    path = _folder() / f"{next(_numbers)}.ffr"
    try:
        one = datasets.Dataset(there).cast(features)
        ffrecord.write_table(one.with_format("arrow")[:], path)
        again = to_huggingface(path, streaming=streaming)
        assert again.features == features, f"the features are {again.features}, not {features}"
        if columns.spelled:
            known = Columns(columns.spelled, is_table=False)
            seen = [{name: row[name] for name in known.names} for row in again]
            check_rows(known, seen, rows, "to_huggingface")
    finally:
        path.unlink(missing_ok=True)
