"""Several functions, one after the other."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ffrecord.pack._mapping import MixedRowsError, rows_from
from ffrecord.pack.maps._base import Map, Sample


class chain(Map):
    """Calls functions one after the other: each gets the rows of the one before it.

    Args:
        functions: of `ffrecord.pack.maps`, or of a user; of a class an object is made.

    Raises:
        ValueError: one that looks at all samples, such as `deduplicate`, is not the first.
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        """Keep the functions."""
        self.functions = tuple(
            each() if inspect.isclass(each) and issubclass(each, Map) else each
            for each in functions
        )
        if not functions:
            raise ValueError("chain has no functions")
        for each in self.functions[1:]:
            if isinstance(each, Map) and each.looks:
                raise ValueError(f"{type(each).__name__} must be the first of several functions")
        self.gathers = any(map(_gathers, self.functions))
        self.numbered = bool(getattr(self.functions[0], "numbered", False))

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
        first, *others = self._made()
        rows = rows_from(first, sample, place if self.numbered else ())
        return None if rows is None else self._through(rows, others, is_mixed=_gathers(first))

    def rest(self) -> Iterator[Sample]:
        """Return what each has left, as those behind it see it."""
        made = self._made()
        for number, each in enumerate(made):
            if isinstance(each, Map):
                behind = made[number + 1 :]
                yield from self._through(list(each.rest()), behind, is_mixed=True) or ()

    def _made(self) -> Sequence[Callable[..., Any]]:
        """The functions; of a class of a user an object, one in each process."""
        if "_objects" not in vars(self):
            self._objects: list[Any] = [
                each() if inspect.isclass(each) else each for each in self.functions
            ]
        return self._objects

    def _through(
        self, rows: Iterable[Sample], functions: Sequence[Callable[..., Any]], *, is_mixed: bool
    ) -> list[Sample] | None:
        """The rows; None if there were some, and a function has left out all of them.

        `is_mixed` says that other samples may be in the rows, or this one in later rows.
        """
        for each in functions:
            made = []
            for row in rows:
                try:
                    made.append(rows_from(each, row, ()))
                except (Exception, SystemExit) as error:
                    if is_mixed:
                        raise MixedRowsError(f"{type(error).__name__}: {error}") from error
                    raise
                is_mixed = is_mixed or _gathers(each)
            if made and all(one is None for one in made):
                return None
            rows = [row for one in made for row in one or ()]
        return list(rows)


def _gathers(function: Any) -> bool:  # noqa: ANN401
    return bool(getattr(function, "gathers", False))
