"""Sizes as people read and write them: 64MiB."""

import re

import click

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_size(size_bytes: float) -> str:
    """For people: 0 B, 17 KiB, 1.5 GiB."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    digits = 1 if unit != "B" and size_bytes < 10 else 0
    return f"{size_bytes:.{digits}f} {unit}"


class Size(click.ParamType[int]):
    """A size in bytes, with or without a unit: 1048576, 64MiB, 1.5 GiB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse; at least one byte."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]i?)?B?", str(value), re.IGNORECASE)
        power = "KMGTP".index(match[2][0].upper()) + 1 if match and match[2] else 0
        size = int(float(match[1]) * 1024**power) if match else 0
        if size < 1:
            self.fail(f"{value!r} is no size; write 64MiB", param, ctx)
        return size
