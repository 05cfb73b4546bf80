"""Several sources of one kind - shards - one after the other."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ffrecord._arrow_schema import NULLS, TYPES, facts_of, joined_facts, joined_types, without_facts
from ffrecord.pack._source import Progressed, Source, SourceOptions


class SeveralSources(Source):
    """The samples of all, in the order of their paths; the first defines the columns."""

    def __init__(
        self,
        paths: Sequence[str],
        options: SourceOptions,
        open_one: Callable[[str, SourceOptions], Source],
    ) -> None:
        """Open the first, and check that the others exist; each is opened when it is reached.

        Raises:
            ValueError: one of the paths is a folder.
        """
        for path in paths:
            if os.path.isdir(path):
                raise ValueError(
                    f"{path} is a folder, and one of several sources: pack it separately"
                )
        self._paths = paths
        self._open_one = open_one
        self._first = open_one(paths[0], options)
        self._options = options._replace(like=self._first)
        self.schema = self._first.schema
        self.key = self._first.key
        self.takes_empty_keys = self._first.takes_empty_keys
        self.types = self._first.types
        self.classes = self._first.classes
        self.metadata = self._first.metadata
        if NULLS in self.metadata or TYPES in self.metadata:
            self.metadata = self._metadata_of_all()
        self.skipped = Counter()
        self._sizes = [os.stat(path).st_size for path in paths]
        self.size_bytes = sum(self._sizes)

    def samples(self) -> Iterator[Progressed]:
        """Yield the samples of each.

        Raises:
            ValueError: one has other columns, types or classes than the first.
        """
        behind_bytes = 0
        for number, (path, size_bytes) in enumerate(zip(self._paths, self._sizes, strict=True)):
            source = self._first if number == 0 else self._like_the_first(path)
            for sample, done_bytes in source.samples():
                yield sample, behind_bytes + done_bytes
            self.skipped += source.skipped
            behind_bytes += size_bytes

    def _metadata_of_all(self) -> dict[str, bytes]:
        """Of record files: nulls and types are those of all of them."""
        others = (self._open_one(path, self._options) for path in self._paths[1:])
        each = [self._first.metadata, *(source.metadata for source in others)]
        joined_types([facts_of(metadata).types for metadata in each], self._paths.__getitem__)
        return without_facts(each[0]) | joined_facts(each)

    def _like_the_first(self, path: str) -> Source:
        source = self._open_one(path, self._options)
        for what, here, first in (
            ("columns", source.schema, self.schema),
            ("types", source.types, self._first.types),
            ("classes", source.classes, self.classes),
            ("metadata", without_facts(source.metadata), without_facts(self.metadata)),
            ("keys", (str(source.key),), (str(self.key),)),
        ):
            if here != first:
                raise ValueError(
                    f"{path} has other {what} than {self._paths[0]}: {_said(here)}, not "
                    f"{_said(first)}; pack them separately, or only what both have (--column)"
                )
        return source


def _said(names: Mapping[str, str] | Iterable[str]) -> str:
    if isinstance(names, Mapping):
        names = (f"{name}: {kind}" for name, kind in names.items())
    return "(" + ", ".join(names) + ")"
