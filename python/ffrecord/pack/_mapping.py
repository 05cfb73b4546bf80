"""A user's function over samples: how it is named, loaded, identified and called."""

import ast
import copy
import hashlib
import importlib
import inspect
import os
import pickle
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ffrecord._tables.values import may_be_masked, unmasked
from ffrecord.pack._source import Keyed, Lacking, Sample
from ffrecord.pack._user_code import called

# Gets a sample: a dict of its columns, or the bytes of a record without columns. Returns None to
# leave it out, a dict, or an iterable of dicts (a generator, for example).
Function = Callable[[Any], Any]
Row = Mapping[str, Any]
# Functions that come with this package.
_MAPS = "ffrecord.pack.maps"


class MixedRowsError(ValueError):
    """A function failed when rows of several samples were mixed, so that none can be left out."""


@dataclass(frozen=True)
class UserMap:
    """A function, or a class whose objects are called: one is made in each process."""

    function: Any

    @property
    def name(self) -> str:
        """The name in errors and plans."""
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
        found.update(pickle.dumps(self.function, protocol=4))  # With a method's object.
        for inner in getattr(self.function, "functions", ()):
            found.update(UserMap(inner).identity.encode())
        return found.hexdigest()

    @property
    def code(self) -> dict[str, str]:
        """A hash of the file of each module that it is of, by name; none of the main program."""
        name = _unwrapped(self.function).__module__
        path = getattr(sys.modules[name], "__file__", None)
        found = {}
        if name != "__main__" and path is not None and os.path.isfile(path):
            found[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for inner in getattr(self.function, "functions", ()):
            found.update(UserMap(inner).code)
        return found

    @property
    def schema(self) -> Any:  # noqa: ANN401 - a mapping, or a schema of pyarrow
        """The columns that it says it returns (an attribute `schema`), or None."""
        return getattr(self.function, "schema", None)

    @property
    def makes_objects(self) -> bool:
        """Whether it is a class, or several functions with one, whose objects may remember."""
        inner = getattr(self.function, "functions", ())
        return inspect.isclass(self.function) or any(UserMap(each).makes_objects for each in inner)

    def made(self) -> Function:
        """Return the function for this process; of a class, a new object.

        One of `ffrecord.pack.maps` is copied, since it may gather samples.
        """
        function: Any = self.function
        if hasattr(function, "looks"):
            return cast(Function, copy.deepcopy(function))
        return cast(
            Function, called(function, self.name) if inspect.isclass(function) else function
        )

    def columns(self, source: Any) -> Any:  # noqa: ANN401
        """The columns that it says it makes of those of a source, or None."""
        function: Any = self.function
        return function.columns(source) if hasattr(function, "columns") else None

    def look(self, inputs: Any) -> None:  # noqa: ANN401 - `Inputs`, which cannot be imported here
        """Let it look at all samples of some inputs, if it has to.

        Raises:
            ValueError: an input has changed meanwhile.
        """
        function: Any = self.function
        if not getattr(function, "looks", False):
            return
        function.look(
            (number, place, _plain_sample(sample))
            for number in range(len(inputs.paths))
            for place, (sample, _) in enumerate(inputs.whole(number, Counter()))
        )


def mapping_of(map_: Any) -> UserMap | None:  # noqa: ANN401 - see `pack`
    """Take what the user gave: a function, a class, or `module:name`.

    Raises:
        ValueError: the name has no colon, or the module has no such name.
        ImportError: there is no such module.
        TypeError: it cannot be called, or not be sent to another process.
    """
    if map_ is None:
        return None
    found = UserMap(_made_of(map_))
    if not callable(found.function):
        raise TypeError(f"map is {map_!r}, which cannot be called")
    try:
        pickle.dumps(found.function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"map is {map_!r}, which cannot be sent to another process: define it at the top of a "
            f"module, with functools.partial for arguments ({error})"
        ) from None
    if not hasattr(found.function, "looks"):
        return found
    # Findings about this source must not stay in the user's object.
    is_class = inspect.isclass(found.function)
    return UserMap(found.function() if is_class else copy.deepcopy(found.function))


def _made_of(map_: Any) -> Any:  # noqa: ANN401 - see `pack`
    """The function; of several, given as a list, all of them as one."""
    if isinstance(map_, list | tuple):
        if len(map_) != 1:
            return importlib.import_module(_MAPS).chain(*map(_made_of, map_))
        (map_,) = map_
    return _named(map_) if isinstance(map_, str) else map_


def _named(text: str) -> Any:  # noqa: ANN401 - whatever the module has
    """The object of `module:name`, or `module:name(arguments)` called; ours without a module."""
    name, bracket, _ = text.partition("(")
    found = _in_module(text, name if ":" in name else f"{_MAPS}:{name}" if bracket else name)
    if not bracket:
        return found
    try:
        call = ast.parse(f"f{text[len(name) :]}", mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        values = [ast.literal_eval(each) for each in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise ValueError(
            f"map is {text!r}; arguments are numbers and quoted text, such as resize(256, "
            f"column='image') ({error})"
        ) from None
    return found(*values, **named)


def _in_module(text: str, full: str) -> Any:  # noqa: ANN401 - whatever the module has
    module, colon, name = full.partition(":")
    if not (module and colon and name):
        raise ValueError(
            f"map is {text!r}; it must be module:function, such as mine:resize, or one of "
            f"{_MAPS} with its arguments, such as resize(256)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # A command does not have it, as `python -m` would.
    found: Any = called(lambda: importlib.import_module(module), f"the module {module}")
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


def rows_of(
    function: Function, sample: Sample, place: tuple[int, int] = (0, 0)
) -> list[Row] | None:
    """Call the function; return the rows that it makes of a sample.

    `place` is the number of its input, and its number in that.

    None if it leaves the sample out; a function that gathers may take it and return no rows.

    Raises:
        TypeError: it returned something else than None, a dict or an iterable of dicts.
        Exception: what the function raised.
    """
    plain = _plain_sample(sample)
    # A copy, since the function may change its sample, which may be needed again.
    if isinstance(plain, Mapping):
        plain = copy.deepcopy(dict(plain))
    is_numbered = getattr(function, "numbered", False)
    return called(lambda: rows_from(function, plain, place if is_numbered else ()))


def _plain_sample(sample: Sample) -> Any:  # noqa: ANN401 - of any source
    return sample.sample if isinstance(sample, Keyed | Lacking) else sample


def rows_from(
    function: Callable[..., Any],
    sample: Any,  # noqa: ANN401 - see `pack`
    place: tuple[Any, ...],
) -> list[Row] | None:
    """Call the function; see `rows_of`."""
    rows = _rows(function(sample, *place))
    return rows or (rows if getattr(function, "gathers", False) else None)


def _rows(made: Any) -> list[Row] | None:  # noqa: ANN401 - whatever a function returned
    if made is None:
        return None
    if isinstance(made, Mapping):
        return [without_masks(made)]
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
        yield without_masks(copy.deepcopy(dict(row)))


def without_masks(row: Row) -> Row:
    """The row with None for what is masked; see `unmasked`."""
    if not any(map(may_be_masked, row.values())):
        return row
    return {name: unmasked(value) for name, value in row.items()}
