"""Sizes as people read and write them: 64MiB."""

import math
import re
from typing import TYPE_CHECKING, Any

import click

# click 8.1 to 8.3, which will do, have no ParamType[int]; mypy knows the newest only.
if TYPE_CHECKING:
    _AnyType = click.ParamType[Any]
    _IntType = click.ParamType[int]
else:
    _AnyType = _IntType = click.ParamType

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_size(size_bytes: float) -> str:
    """For people: 0 B, 17 KiB, 1.5 GiB."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    digits = 1 if unit != "B" and size_bytes < 10 else 0
    return f"{size_bytes:.{digits}f} {unit}"


# The largest number of 64 bits with a sign, as sizes of files are.
_SIZE_MAX = (1 << 63) - 1


class _Checked(_AnyType):
    """Wraps a type of click's, and checks the values that it has accepted."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click says
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401
        """Parse, and check."""
        parsed = super().convert(value, param, ctx)
        if problem := self.problem(parsed):
            self.fail(problem, param, ctx)
        return parsed

    def problem(self, value: Any) -> str | None:  # noqa: ANN401
        """The problem with a value; None if there is none."""
        raise NotImplementedError


class Name(_Checked, click.types.StringParamType):
    """An address: text that is UTF-8, as names there are, unlike those of files."""

    def problem(self, value: str) -> str | None:
        """Whether it is UTF-8."""
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{value!a} is not UTF-8; rename it"
        return None


class Target(Name):
    """A target of checkpoints: an address, or a folder with a name of any bytes."""

    def problem(self, value: str) -> str | None:
        """As of a name, if it is an address."""
        return super().problem(value) if "://" in value else None


class Size(_IntType):
    """A size in bytes, with or without a unit: 1048576, 64MiB, 1.5 GiB."""

    name = "size"

    def __init__(self, least: int = 1, most: int = _SIZE_MAX) -> None:
        """Accept sizes from `least` to `most`, both included."""
        self._least = least
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse, and check the bounds."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]i?)?B?", str(value), re.IGNORECASE)
        power = "KMGTP".index(match[2][0].upper()) + 1 if match and match[2] else 0
        size = float(match[1]) * 1024**power if match else 0
        if match is None or (size < 1 and self._least > 0):
            self.fail(f"{value!r} is not a size; write one such as 64MiB", param, ctx)
        if not self._least <= size <= self._most:
            bounds = f"{show_size(self._least)} to {show_size(self._most)}"
            self.fail(f"{value!r} is out of range: {bounds}", param, ctx)
        return int(size)


class Number(_Checked, click.FloatRange):
    """A finite number in a range: click's own lets nan and inf pass."""

    def problem(self, value: float) -> str | None:
        """Whether it is finite."""
        return None if math.isfinite(value) else f"{value} is not a finite number"


class Timeout(Number):
    """A time limit in seconds, above 0; at most a year."""

    def __init__(self) -> None:
        """Accept all of them."""
        super().__init__(0, 366 * 24 * 3600, min_open=True)
