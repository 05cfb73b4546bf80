"""The inputs of a packing, each opened when it is reached, whole or in cuts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ffrecord._tables.arrow_schema import without_facts
from ffrecord.pack import _places
from ffrecord.pack._kinds import open_one
from ffrecord.pack._source import (
    WHOLE,
    Part,
    Progressed,
    Source,
    SourceOptions,
    stamp_of_files,
)


class Cut(NamedTuple):
    """A part of one input; the other attributes are those of `Part`."""

    input: int
    """Its number among the inputs."""
    begin: int
    end: int
    size_bytes: int
    first: int = 0

    @property
    def part(self) -> Part:
        """Which part it is."""
        return Part(*self[1:])


@runtime_checkable
class Cuttable(Protocol):
    """A source that can be read in parts, any number of times.

    A source whose input is more than a file, or all files in a folder, has a method `stamp`, too,
    which returns a text that changes with the input: names, sizes and times of its files.
    """

    def cuts(self, size_bytes: int) -> list[Part]:
        """Return parts of about this size that make the whole.

        They depend on the content of the input and on `size_bytes` alone.
        """

    def samples_of(self, part: Part, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the samples of a part; add to `skipped` what is left out of it.

        Progress counts from the beginning of the part.
        """


class Input(NamedTuple):
    """An input as it was when it was planned."""

    path: str
    size_bytes: int
    stamp: str


class Inputs:
    """Sources of one kind, in the order of their paths; the first defines the columns."""

    def __init__(
        self,
        paths: Sequence[str],
        options: SourceOptions,
        names: Sequence[str] = (),
        planned: Sequence[Input] = (),
    ) -> None:
        """Open the first, and check that the others exist.

        `names` is what plans call them, if that is not their paths; `planned` is what they were
        when columns were looked for, if that was in another process.

        Raises:
            ValueError: one of several paths is a folder; see also `open_source`.
        """
        _places.remember(filter(_places.is_address, paths))
        if len(paths) > 1:
            refuse_folders(paths)
        self.paths = tuple(paths)
        self.names = tuple(names) or self.paths
        self.options = options
        # Opening the first may look for columns in all: later changes count from here.
        before = self._files_as_now()
        self.first = open_one(paths[0], options._replace(together=tuple(paths)))
        self._planned = self._first_seen(before)
        self._planned.update(enumerate(planned))
        self._first_is_new = True
        self._last: tuple[int, Source] | None = None
        self._gives_values = self._gives_files = False

    def _files_as_now(self) -> dict[int, Input]:
        return {
            number: Input(self.names[number], _places.size_of(path), stamp_of(path))
            for number, path in enumerate(self.paths)
            if _places.is_file(path)
        }

    def _first_seen(self, before: dict[int, Input]) -> dict[int, Input]:
        """Inputs as they were when they were first looked at, as far as that is known now.

        `before` is what those were that are files. A source with a stamp is more than its file, and
        tells what it is once it is open; what it was before may differ only in other files, which
        it compares with what it has listed.
        """
        if not hasattr(self.first, "stamp"):
            return before
        now = self._files_as_now()
        for number, found in before.items():
            if now.get(number) != found:
                raise _changed(found)
        if self.first._is_sealed:
            return {}
        return {0: Input(self.names[0], self.first.size_bytes, self.first.stamp())}

    @property
    def size_bytes(self) -> int:
        """The sum over all inputs."""
        return sum(_size_of(path, self.first) for path in self.paths)

    def list_all(self) -> list[Input]:
        """Return all inputs as they were when they were first looked at."""
        return [self.planned(number) for number in range(len(self.paths))]

    def planned(self, number: int) -> Input:
        """An input as it was when it was first looked at."""
        if number not in self._planned:
            self._planned[number] = self.as_now(number)
        return self._planned[number]

    def cuts(self, size_bytes: int) -> Iterator[Cut]:
        """Yield parts of all inputs of about this size, as far as the source can be cut."""
        for number, path in enumerate(self.paths):
            if isinstance(self.first, Cuttable):
                source = self._source(number)
                assert isinstance(source, Cuttable)
                yield from (Cut(number, *cut) for cut in source.cuts(size_bytes))
            else:
                yield Cut(number, 0, WHOLE, _size_of(path, self.first))

    def give_files(self) -> None:
        """Let sources that can do so leave it to the writer to read files; see `InFiles`."""
        self._gives_files = True
        self._last = None  # It does not do so yet.

    def give_values(self) -> None:
        """Let samples have the user's columns, not those that are stored."""
        self._gives_values = True
        self._last = None  # It does not do so yet.

    def all_samples(self, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the samples of all inputs, with the bytes of all that are behind; see `whole`."""
        behind_bytes = 0
        for number, path in enumerate(self.paths):
            for sample, done_bytes in self.whole(number, skipped):
                yield sample, behind_bytes + done_bytes
            behind_bytes += _size_of(path, self.first)

    def whole(self, number: int, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the samples of one input; add to `skipped` what the source leaves out."""
        size_bytes = _size_of(self.paths[number], self.first)
        yield from self.samples_of(Cut(number, 0, WHOLE, size_bytes), skipped)

    def samples_of(self, cut: Cut, skipped: Counter[str]) -> Iterator[Progressed]:
        """Yield the samples of a cut; add to `skipped` what the source leaves out of it.

        Raises:
            ValueError: the input is not what it was when it was first looked at. This may be known
                only after the last sample.
        """
        self._check_unchanged(cut.input)
        source = self._source(cut.input)
        if isinstance(source, Cuttable):
            yield from source.samples_of(cut.part, skipped)
        else:
            assert cut.part.is_whole
            yield from source.samples()
            skipped.update(source.skipped)
        self._check_unchanged(cut.input)

    def _check_unchanged(self, number: int) -> None:
        if self.first._is_sealed and number not in self._planned:
            return  # It is what it was when it was opened.
        planned = self.planned(number)
        if self.as_now(number) != planned:
            raise _changed(planned)

    def as_now(self, number: int) -> Input:
        """An input as it is at this moment."""
        if hasattr(self.first, "stamp"):
            source: Any = self._source(number)
            return Input(self.names[number], source.size_bytes, source.stamp())
        path, name = self.paths[number], self.names[number]
        return Input(name, _size_of(path, self.first), stamp_of(path))

    def _source(self, number: int) -> Source:
        """The source of that number: the one that was used last, if it can be used again."""
        if isinstance(self.first, Cuttable) and self._last and self._last[0] == number:
            return self._last[1]
        if number == 0 and (self._first_is_new or isinstance(self.first, Cuttable)):
            self._first_is_new = False
            source = self.first
        elif number == 0:
            source = open_one(self.paths[0], self.options._replace(like=self.first))
        else:
            source = like_the_first(self.paths[number], self.options, self.paths[0], self.first)
        if self._gives_values and hasattr(source, "give_values"):
            source.give_values()
        if self._gives_files and hasattr(source, "give_files"):
            source.give_files()
        self._last = (number, source)
        return source


def _changed(planned: Input) -> ValueError:
    return ValueError(
        f"{planned.path} has changed since packing it began: pack it when nothing writes to it any "
        "more, from the start (into a folder with --restart)"
    )


def _size_of(path: str, source: Source) -> int:
    return _places.size_of(path) if _places.is_file(path) else source.size_bytes


def stamp_of(path: str) -> str:
    """Size and time of a file, or of all files right in a folder."""
    if not _places.is_dir(path):
        return stamp_of_files([path])
    return stamp_of_files(sorted(entry.path for entry in _places.scan(path) if entry.is_file()))


def refuse_folders(paths: Sequence[str]) -> None:
    """Raise a ValueError if one of several sources is a folder."""
    for path in paths:
        if _places.is_dir(path):
            raise ValueError(f"{path} is a folder, and one of several sources: pack it separately")


def like_the_first(path: str, options: SourceOptions, first_path: str, first: Source) -> Source:
    """Open one of several sources.

    Raises:
        ValueError: it has other columns, types or classes than the first.
    """
    source = open_one(path, options._replace(like=first))
    for what, here, there in (
        ("columns", source.schema, first.schema),
        ("types", source.types, first.types),
        ("classes", source.classes, first.classes),
        ("metadata", without_facts(source.metadata), without_facts(first.metadata)),
        ("keys", (str(source.key),), (str(first.key),)),
    ):
        if here != there:
            raise ValueError(
                f"{path} has other {what} than {first_path}: {_said(here)}, not {_said(there)}; "
                "pack them separately, or only what both have (--column)"
            )
    return source


def _said(names: Mapping[str, str] | Iterable[str]) -> str:
    if isinstance(names, Mapping):
        names = (f"{name}: {kind}" for name, kind in names.items())
    return "(" + ", ".join(names) + ")"
