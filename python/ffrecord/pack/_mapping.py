"""A user's function over samples: how it is named, loaded, identified and called."""

import copy
import hashlib
import importlib
import inspect
import os
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, cast

import numpy as np

from ffrecord.pack._source import Keyed, Lacking, Sample

# Gets a sample: a dict of its columns, or the bytes of a record without columns. Returns None to
# leave it out, a dict, or an iterable of dicts (a generator, for example).
Function = Callable[[Any], Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class UserMap:
    """A function, or a class whose objects are called: one is made in each process."""

    function: Any

    @property
    def name(self) -> str:
        """What errors and plans call it."""
        inner = _unwrapped(self.function)
        return f"{inner.__module__}:{inner.__qualname__}"

    @property
    def identity(self) -> str:
        """A hash of the code in its file, and of what is bound to it.

        An edit of its file counts as another function, since helpers in the file decide the result
        as much as the function does. A function that was defined in a notebook or an interactive
        session has no file, and always counts as another function.
        """
        found = hashlib.sha256(self.name.encode())
        found.update(_code_of(sys.modules[_unwrapped(self.function).__module__]))
        found.update(pickle.dumps(self.function, protocol=4))  # What a method is bound to.
        return found.hexdigest()

    @property
    def schema(self) -> Any:  # noqa: ANN401 - a mapping, or a schema of pyarrow
        """The columns that it says it returns (an attribute `schema`), or None."""
        return getattr(self.function, "schema", None)

    def made(self) -> Function:
        """Return the function for this process; of a class, a new object."""
        function: Any = self.function
        return cast(Function, function() if inspect.isclass(function) else function)


def mapping_of(map_: Any) -> UserMap | None:  # noqa: ANN401 - see `pack`
    """Take what the user gave: a function, a class, or `module:name`.

    Raises:
        ValueError: the name has no colon, or the module has no such name.
        ImportError: there is no such module.
        TypeError: it cannot be called, or not be sent to another process.
    """
    if map_ is None:
        return None
    found = UserMap(_named(map_) if isinstance(map_, str) else map_)
    if not callable(found.function):
        raise TypeError(f"map is {map_!r}, which cannot be called")
    try:
        pickle.dumps(found.function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"map is {map_!r}, which cannot be sent to another process: define it at the top of a "
            f"module, with functools.partial for arguments ({error})"
        ) from None
    return found


def _named(text: str) -> Any:  # noqa: ANN401 - whatever the module has
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError(f"map is {text!r}; it must be module:function, such as mine:resize")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # A command does not have it, as `python -m` would.
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"map is {text!r}, and {module} has no {name}")
        found = getattr(found, part)
    return found


def _unwrapped(function: Any) -> Any:  # noqa: ANN401
    """The function or class that has a name."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


def _code_of(module: ModuleType) -> bytes:
    path = getattr(module, "__file__", None)
    if path is None or not os.path.isfile(path):
        return secrets.token_bytes(16)
    with open(path, "rb") as file:
        return file.read()


def rows_of(function: Function, sample: Sample) -> list[Row]:
    """Call the function; return the rows that it makes of the sample.

    Raises:
        TypeError: it returned something else than None, a dict or an iterable of dicts.
        Exception: what the function raised.
    """
    plain = sample.sample if isinstance(sample, Keyed | Lacking) else sample
    # A copy, since the function may change its sample, which may be needed again.
    try:
        return _rows(function(copy.deepcopy(dict(plain)) if isinstance(plain, Mapping) else plain))
    except SystemExit as error:  # Else this process would end, with the status of success.
        raise RuntimeError(f"it ended the process (sys.exit, status {error.code})") from error


def _rows(made: Any) -> list[Row]:  # noqa: ANN401 - whatever a function returned
    if made is None:
        return []
    if isinstance(made, Mapping):
        return [_plain(made)]
    if isinstance(made, str | bytes) or not hasattr(made, "__iter__"):
        raise TypeError(
            f"it returned {type(made).__name__}, not None, a dict or an iterable of dicts"
        )
    return list(_checked(iter(made)))


def _checked(rows: Iterator[Any]) -> Iterator[Row]:
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"it returned an iterable of {type(row).__name__}, not of dicts")
        # A generator may yield the same object again, with other values in it.
        yield _plain(copy.deepcopy(dict(row)))


def _plain(row: Row) -> Row:
    """The row with None for what is masked, as the nulls in lists of record files are."""
    if not any(isinstance(value, np.ma.MaskedArray) for value in row.values()):
        return row
    return {name: _unmasked(value) for name, value in row.items()}


def _unmasked(value: Any) -> Any:  # noqa: ANN401 - whatever a function returned
    if not isinstance(value, np.ma.MaskedArray):
        return value
    if not np.ma.getmaskarray(value).any():
        return value.data
    if value.ndim == 0:
        return None
    rows = zip(value, np.ma.getmaskarray(value), strict=True)
    return [_unmasked(each) if value.ndim > 1 else None if gone else each for each, gone in rows]
