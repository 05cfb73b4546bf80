"""Names that a package imports at their first use, since most programs do not need them."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module


def later(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], object]:
    """The `__getattr__` of `package`.

    Args:
        package: its name.
        homes: the module below it that has each name.
        modules: modules below it that are attributes of it without an import of theirs.
    """

    def imported(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported
