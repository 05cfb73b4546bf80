"""Folders that Hugging Face's `Dataset.save_to_disk` makes: Arrow streams, and what they are."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord.pack import _places
from ffrecord.pack._ipc import IpcSource
from ffrecord.pack._source import (
    Progressed,
    Source,
    SourceOptions,
    check_key,
    split_of,
    stamp_of_files,
)

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved(path: str) -> bool:
    """Whether it is a folder with the files that describe a dataset, or its splits."""
    return any(_places.is_file(os.path.join(path, name)) for name in (_STATE, _SPLITS))


class SavedSource(Source):
    """The rows of all streams, in their order, with the names of classes."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read what describes it; see `open_source` for arguments and errors."""
        options.allow(path, "a saved dataset", "columns", "drop", "cast", "split")
        self.skipped = Counter()
        self._options = options
        paths = self._streams(path)
        self._options = options = options._replace(together=tuple(paths), split=None)
        self._paths = paths
        first = IpcSource(paths[0], self._options)
        self._sources = [first]
        self._sources += [IpcSource(each, options._replace(like=first)) for each in paths[1:]]
        self.schema, self.classes = first.schema, first.classes
        self.size_bytes = sum(source.size_bytes for source in self._sources)

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return self._sources[0]._arrow_fields

    def stamp(self) -> str:
        """Return a text that changes with the streams."""
        return stamp_of_files(self._paths)

    def give_values(self) -> None:
        """Let samples be dicts of plain values."""
        for source in self._sources:
            source.give_values()

    def samples(self) -> Iterator[Progressed]:
        """Yield tables of rows; or rows, after `give_values`."""
        behind = 0
        for source in self._sources:
            yield from ((sample, behind + done) for sample, done in source.samples())
            behind += source.size_bytes

    def _streams(self, path: str) -> list[str]:
        path = _folder(path, self._options.split)
        state = _read(os.path.join(path, _STATE))
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise ValueError(
                f"{path} is a selection of the rows in its files: save flatten_indices() of it"
            )
        files = state.get("_data_files")
        try:
            names = [each["filename"] for each in files]  # type: ignore[union-attr]
            paths = [os.path.join(path, check_key(name)) for name in names]
        except (TypeError, KeyError, AttributeError):
            raise ValueError(f"{path}: {_STATE} names no files") from None
        if not paths:
            raise ValueError(f"{path} has no rows: there is nothing to pack")
        return paths


def _folder(path: str, asked: str | None) -> str:
    """The folder of the split, or that of a dataset without splits."""
    splits = os.path.join(path, _SPLITS)
    if not _places.is_file(splits):
        return os.path.join(path, split_of([""], asked, path))
    names = _read(splits).get("splits")
    if not isinstance(names, list) or not names:
        raise ValueError(f"{splits} names no splits")
    return os.path.join(path, check_key(split_of([str(name) for name in names], asked, path)))


def _read(path: str) -> dict[str, Any]:
    try:
        with _places.open_input(path) as file:
            found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} describes no dataset")
    return found
