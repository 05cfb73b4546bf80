"""Folders that Hugging Face's `Dataset.save_to_disk` makes: Arrow streams, and what they are."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord.pack._ipc import IpcSource
from ffrecord.pack._source import Progressed, Source, SourceOptions, check_key

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved(path: str) -> bool:
    """Whether it is a folder with the files that describe a dataset, or its splits."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (_STATE, _SPLITS))


class SavedSource(Source):
    """The rows of all streams, in their order, with the names of classes."""

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read what describes it; see `open_source` for arguments and errors."""
        options.allow(path, "a saved dataset", "columns", "drop", "cast")
        self.skipped = Counter()
        paths = self._streams(path)
        self._options = options._replace(together=tuple(paths))
        first = IpcSource(paths[0], self._options)
        self._sources = [first]
        self._sources += [IpcSource(each, options._replace(like=first)) for each in paths[1:]]
        self.schema, self.classes = first.schema, first.classes
        self.size_bytes = sum(source.size_bytes for source in self._sources)

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return self._sources[0]._arrow_fields

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
        splits = os.path.join(path, _SPLITS)
        if os.path.isfile(splits):
            names = _read(splits).get("splits")
            known = [str(name) for name in names] if isinstance(names, list) else []
            one = os.path.join(path, known[0]) if known else "one"
            raise ValueError(
                f"{path} has the splits {', '.join(known)}: pack each on its own, such as {one}"
            )
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


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} describes no dataset")
    return found
