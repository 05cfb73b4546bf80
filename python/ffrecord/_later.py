"""Names that a package imports at their first use, since most programs do not need them."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def later(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of `package`; `homes` has the module below it that each name is in."""

    def imported(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported
