"""Fail if modules of the Python package import each other in a circle, or what they should not.

A folder is a room, as in C++: MAY_IMPORT lists the rooms that each room may import, at its head,
inside a function or for types. A room names only rooms above it in the table, so the arrows between
rooms have one direction. Circles of modules are refused too; imports for types do not count there.

The core is everything outside of ffrecord/torch and ffrecord/distributed: it works with NumPy
alone, and imports torch nowhere but inside a function. WITH_TORCH are modules of the core that are
themselves imported inside functions only, where the program has torch.

A module is public and listed below, or private: it, or a folder that it is in, begins with an
underscore. A private one lies in a room. Outside of the package and of the tests nobody names it.

Usage: check_imports.py SOURCE_ROOT
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import tree

PACKAGE = "ffrecord"
EXTENSION = f"{PACKAGE}._ffrecord"
TORCH_PACKAGES = (f"{PACKAGE}.torch.", f"{PACKAGE}.distributed.")
PUBLIC = {
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("archive", "catalogue", "checkpoint", "compat", "decode")),
    f"{PACKAGE}.distributed",
    *(f"{PACKAGE}.{name}" for name in ("errors", "fsspec", "grain", "huggingface", "ray")),
    *(f"{PACKAGE}.{name}" for name in ("pack", "pack.maps", "runtime")),
    *(f"{PACKAGE}.{name}" for name in ("tensorflow", "topology", "torch", "utils", "weights")),
    *(f"{PACKAGE}.distributed.{name}" for name in ("backend", "net_check")),
    *(f"{PACKAGE}.torch.{name}" for name in ("checkpoint", "huggingface", "lightning")),
    *(f"{PACKAGE}.torch.{name}" for name in ("torch_checkpointing", "torchft", "vllm")),
}
# Each room may import the extension, ffrecord.errors, and these rooms; the package itself and the
# public modules beside it are the doors to all rooms, and only the commands go in by them.
DOORS = "the doors"
MAY_IMPORT: dict[str, set[str]] = {
    "_base": set(),
    "_tables": set(),
    "topology": set(),
    "_profile": {"_base"},
    "_order": {"_base"},
    "decode": {"_base", "_tables", "_order"},
    "_read": {"_base", "_tables", "_order", "decode"},
    "_write": {"_base", "_tables", "_read"},
    "compat": {"_base", "_tables", "_read"},
    "pack": {"_base", "_tables", "_read", "_write"},
    "checkpoint": {"_base"},
    "weights": {"_base", "checkpoint"},
    "_store": {"_base", "_read", "checkpoint"},
    "_integrations": {"_base", "_tables", "_order", "decode", "_read", "_write"},
    "runtime": {"_base"},
    "distributed": {"_base"},
    "torch": {"_base", "_tables", "_order", "decode", "_read", "compat", "checkpoint"}
    | {"weights"},
    DOORS: {"_base", "_profile", "_read", "_write", "compat", "pack", "_store", "_integrations"},
    "_cli": {"_base", "_tables", "topology", "_order", "_read", "_write", "pack", "checkpoint"}
    | {"_store", "_profile", "distributed", "torch", "weights", DOORS},
}
WITH_TORCH = {f"{PACKAGE}.checkpoint.{name}" for name in ("_torch_group", "_waiting")} | {
    f"{PACKAGE}.runtime.{name}" for name in ("_collectives", "_methods")
}
# These may name private modules: pages made of the commands, and figures of one part of a save.
INSIDERS = ("python", "tests", "docs/reference/cli.md", "benchmarks/checkpoint")
PRIVATE = re.compile(
    rf"(?<![\w./])({PACKAGE}(?:\.\w+)*\._(?!_)\w+)"
    rf"|from ({PACKAGE}(?:\.\w+)*) import (?:\([^)]*|[^(\n]*)\b_(?!_)\w+"
)


def is_for_types(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


class Import(NamedTuple):
    """One import of a module."""

    line: int
    module: str
    names: tuple[str, ...]
    is_late: bool
    """Whether it is inside a function."""
    is_for_types: bool


def imports(node: ast.AST, is_late: bool = False, for_types: bool = False) -> Iterator[Import]:
    """The imports in a part of a module."""
    for child in ast.iter_child_nodes(node):
        late = is_late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        types = for_types or is_for_types(child)
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(child.lineno, alias.name, (), late, types)
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            names = tuple(alias.name for alias in child.names)
            yield Import(child.lineno, child.module, names, late, types)
        else:
            yield from imports(child, late, types)


def module_of(path: pathlib.Path, root: pathlib.Path) -> str:
    """The dotted name of a file."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def circle_from(start: str, graph: dict[str, set[str]]) -> list[str]:
    """A way along imports from a module back to it; empty if there is none."""
    ways, seen = [[start]], {start}
    for way in ways:  # Grows while it is walked.
        for following in sorted(graph.get(way[-1], ())):
            if following == start:
                return [*way, start]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def is_public(module: str) -> bool:
    """Whether no part of its name begins with an underscore."""
    return not any(part.startswith("_") for part in module.split("."))


def strangers(root: pathlib.Path) -> Iterator[str]:
    """One line for each private module that is named outside of the package."""
    for path in tree.files(root, ".md", ".py", ""):
        name = path.relative_to(root).as_posix()
        if not f"{name}/".startswith(tuple(f"{insider}/" for insider in INSIDERS)):
            text = path.read_text(errors="replace")
            for match in PRIVATE.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{name}:{line}: '{' '.join(match[0].split())}' names a private module"


def room_of(module: str, paths: dict[str, pathlib.Path]) -> str | None:
    """The room of a module; None for the extension and the errors, which are everybody's."""
    if module in (EXTENSION, f"{PACKAGE}.errors"):
        return None
    parts = module.split(".")
    is_folder = len(parts) > 2 or (len(parts) == 2 and paths[module].name == "__init__.py")
    return parts[1] if is_folder else DOORS


def misplaced(paths: dict[str, pathlib.Path]) -> Iterator[str]:
    """The faults in the names of modules and rooms, and in the table."""
    for module in paths:
        if is_public(module) and module not in PUBLIC:
            yield f"{module}: is public, and not listed in check_imports.py"
        elif room_of(module, paths) == DOORS and not is_public(module):
            yield f"{module}: is private, and in no room"
        elif room_of(module, paths) not in {*MAY_IMPORT, None}:
            yield f"{module}: its room is not listed in check_imports.py"
    above: set[str] = set()
    for room, others in MAY_IMPORT.items():
        yield from (f"{room} may import {other}, which is not above it" for other in others - above)
        above.add(room)


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each import, or name of a module, that should not be."""
    python = root / "python"
    paths = {module_of(path, python): path for path in sorted((python / PACKAGE).rglob("*.py"))}
    yield from misplaced(paths)
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        graph[module] = set()
        room = room_of(module, paths)
        has_torch = f"{module}.".startswith(TORCH_PACKAGES) or module in WITH_TORCH
        for found in imports(ast.parse(path.read_text())):
            place = f"{path.relative_to(root)}:{found.line}"
            target = found.module
            within = {f"{target}.{name}" for name in found.names} & {*paths, EXTENSION}
            within = within or ({target} & paths.keys())
            is_at_head = not found.is_late and not found.is_for_types
            brings_torch = f"{target}.".startswith(("torch.", *TORCH_PACKAGES))
            if not has_torch and is_at_head and (brings_torch or within & WITH_TORCH):
                yield f"{place}: the core does not import {target}"
            for other in sorted({room_of(each, paths) for each in within} - {room, None}):
                if room is None or other not in MAY_IMPORT.get(room, set()):
                    yield f"{place}: {room or module} may not import {other}"
            graph[module] |= set() if found.is_for_types else within
    told: set[str] = set()
    for module in graph:
        circle = circle_from(module, graph)
        if circle and not told & set(circle):
            told |= set(circle)
            yield f"{paths[module].relative_to(root)}: imports in a circle: {' -> '.join(circle)}"
    yield from strangers(root)


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
