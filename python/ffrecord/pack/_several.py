"""Several sources of one kind - shards - one after the other."""

import os
from collections import Counter
from collections.abc import Iterator

from ffrecord.pack._inputs import Inputs
from ffrecord.pack._source import Progressed, Source


class SeveralSources(Source):
    """The samples of all, in the order of their paths; the first defines the columns."""

    def __init__(self, inputs: Inputs) -> None:
        """Take what the first has; each of the others is opened when it is reached."""
        first = inputs.first
        self.inputs = inputs
        self.schema, self.types, self.key = first.schema, first.types, first.key
        self.takes_empty_keys = first.takes_empty_keys
        self.classes, self.metadata = first.classes, first.metadata
        self.skipped = Counter()
        self._sizes = [os.stat(path).st_size for path in inputs.paths]
        self.size_bytes = sum(self._sizes)

    def give_values(self) -> None:
        """Let samples have the user's columns."""
        self.inputs.give_values()

    def samples(self) -> Iterator[Progressed]:
        """Yield the samples of each.

        Raises:
            ValueError: one has other columns, types or classes than the first.
        """
        behind_bytes = 0
        for number, size_bytes in enumerate(self._sizes):
            for sample, done_bytes in self.inputs.whole(number, self.skipped):
                yield sample, behind_bytes + done_bytes
            behind_bytes += size_bytes
