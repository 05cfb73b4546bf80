"""Several sources of one kind - shards - one after the other."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ffrecord._tables.arrow_schema import (
    NULLS,
    TYPES,
    facts_of,
    joined_facts,
    joined_types,
    without_facts,
)
from ffrecord.pack._inputs import Inputs
from ffrecord.pack._kinds import open_one
from ffrecord.pack._source import Progressed, Source


class SeveralSources(Source):
    """The samples of all, in the order of their paths; the first defines the columns."""

    def __init__(self, inputs: Inputs) -> None:
        """Take what the first has; each of the others is opened when it is reached.

        Raises:
            ValueError: record files differ in the types of their values.
        """
        first = inputs.first
        self._inputs = inputs
        self.schema, self.types, self.key = first.schema, first.types, first.key
        self.takes_empty_keys = first.takes_empty_keys
        self.classes, self.metadata = first.classes, first.metadata
        self._names_are_stored = first._names_are_stored
        self._first = first
        if first._states_facts and (NULLS in self.metadata or TYPES in self.metadata):
            self.metadata = self._metadata_of_all()
        self.skipped = Counter()
        self.size_bytes = inputs.size_bytes

    def give_files(self) -> None:
        """Let the writer read files; see `InFiles`."""
        self._inputs.give_files()

    def give_values(self) -> None:
        """Let samples have the user's columns."""
        self._inputs.give_values()

    @property
    def _arrow_fields(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        return self._first._arrow_fields

    def samples(self) -> Iterator[Progressed]:
        """Yield the samples of each.

        Raises:
            ValueError: one has other columns, types or classes than the first.
        """
        yield from self._inputs.all_samples(self.skipped)

    def _metadata_of_all(self) -> dict[str, bytes]:
        """The table of record files: nulls and types are those of all of them."""
        paths, options = self._inputs.paths, self._inputs.options
        others = (open_one(path, options) for path in paths[1:])
        each = [self._inputs.first.metadata, *(source.metadata for source in others)]
        joined_types([facts_of(metadata).types for metadata in each], paths.__getitem__)
        return without_facts(each[0]) | joined_facts(each)
