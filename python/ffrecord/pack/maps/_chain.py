"""Several functions, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ffrecord.pack._mapping import rows_from
from ffrecord.pack.maps._base import Map, Sample


class chain(Map):
    """Calls functions one after the other: each gets the rows of the one before it.

    Args:
        functions: of `ffrecord.pack.maps`, or of a user.

    Raises:
        ValueError: one that looks at all samples, such as `deduplicate`, is not the first.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        """Keep the functions."""
        self.functions = functions
        if not functions:
            raise ValueError("chain has no functions")
        for each in functions[1:]:
            if isinstance(each, Map) and each.looks:
                raise ValueError(f"{type(each).__name__} must be the first of several functions")
        self.gathers = any(getattr(each, "gathers", False) for each in functions)
        self.numbered = bool(getattr(functions[0], "numbered", False))

    @property
    def looks(self) -> bool:
        """Whether the first one does."""
        return bool(getattr(self.functions[0], "looks", False))

    def look(self, samples: Iterator[tuple[int, int, Any]]) -> None:
        """Let the first one look."""
        self.functions[0].look(samples)

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return the columns of the last one, if all say theirs."""
        for each in self.functions:
            if isinstance(each, Map):
                source = each.columns(source)
            else:
                source = getattr(each, "schema", None)
        return source

    def begin(self) -> None:
        """Let all forget what they have gathered."""
        for each in self.functions:
            if isinstance(each, Map):
                each.begin()

    def __call__(self, sample: Any, *place: Any) -> Any:  # noqa: ANN401
        """Return the rows of the last one; None if one of them has left the sample out."""
        first, *others = self.functions
        rows = rows_from(first, sample, place if self.numbered else ())
        return None if rows is None else self._through(rows, others)

    def rest(self) -> Iterator[Sample]:
        """Return what each has left, as those behind it see it."""
        for number, each in enumerate(self.functions):
            if isinstance(each, Map):
                behind = self.functions[number + 1 :]
                yield from self._through(list(each.rest()), behind) or ()

    def _through(
        self, rows: Iterable[Sample], functions: Sequence[Callable[..., Any]]
    ) -> list[Sample] | None:
        """The rows; None if there were some, and a function has left out all of them."""
        for each in functions:
            made = [rows_from(each, row, ()) for row in rows]
            if made and all(one is None for one in made):
                return None
            rows = [row for one in made for row in one or ()]
        return list(rows)
