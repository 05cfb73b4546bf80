"""Methods that functions of samples may have to do more than map one sample."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Sample = Mapping[str, Any]


class Map:
    """A function of one sample, with what `pack` asks of it beside a call.

    It returns None to leave a sample out, a row, or an iterable of rows.
    """

    gathers = False
    """Whether a sample may become part of rows that are returned later. Then an empty list means
    that the sample was taken, and `rest` returns what was not returned yet."""
    numbered = False
    """Whether it is called with the number of the input, and that of the sample in it, too."""
    functions: tuple[Any, ...] = ()
    """Functions of a user that it calls; an edit of one counts as another function."""

    def columns(self, source: Any) -> Any:  # noqa: ANN401 - a mapping, or a schema of pyarrow
        """Return the columns of the rows, from those of the source; None: of the first rows."""
        return source

    def begin(self) -> None:
        """Forget what is gathered: a part begins."""

    def rest(self) -> Iterable[Sample]:
        """Return the rows that are left at the end of a part."""
        return ()

    def look(self, samples: Iterator[tuple[int, int, Any]]) -> None:
        """Look at all samples, with the same numbers, before the first of them is packed."""

    @property
    def looks(self) -> bool:
        """Whether `look` has to be called if the source can be read twice."""
        return False

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401 - see `pack`
        """Return what becomes of a sample."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """The attributes that decide the result; others begin with `_` and are made again."""
        return {name: value for name, value in vars(self).items() if name[0] != "_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what decides the result."""
        vars(self).update(state)
        self.begin()


def column_in(source: Any, names: tuple[str, ...], what: str, option: str) -> str:  # noqa: ANN401
    """The one of these columns that there is.

    Raises:
        ValueError: there is none, or several.
    """
    known = list(getattr(source, "names", None) or source or ())
    found = [name for name in names if name in known]
    if len(found) != 1:
        raise ValueError(
            f"{what} takes the column {' or '.join(names)}; the columns are "
            f"{', '.join(known) or 'not known'}: say which with {option}="
        )
    return found[0]


def value_of(sample: Any, column: str, what: str) -> Any:  # noqa: ANN401
    """The value of a column.

    Raises:
        ValueError: the sample has no such column.
    """
    if not isinstance(sample, Mapping) or column not in sample:
        names = ", ".join(sample) if isinstance(sample, Mapping) else "none"
        raise ValueError(f"{what}: there is no column '{column}'; columns: {names}")
    return sample[column]


__all__ = ["Map", "Sample", "column_in", "value_of"]
