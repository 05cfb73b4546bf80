"""Fail if modules of the Python package import each other in a circle, or what they should not.

The core is everything outside of ffrecord/torch and ffrecord/distributed: it works with NumPy
alone. What is imported inside a function, when it is wanted, or for types only, does not count for
circles; torch may be imported nowhere in the core but inside a function.

A module is public and listed below, or private: it, or a folder that it is in, begins with an
underscore. Outside of the package and of the tests nobody names a private one.

Usage: check_imports.py SOURCE_ROOT
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

import tree

PACKAGE = "ffrecord"
EXTENSION = f"{PACKAGE}._ffrecord"
TORCH_PACKAGES = (f"{PACKAGE}.torch.", f"{PACKAGE}.distributed.")
PUBLIC = {
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("archive", "checkpoint", "compat", "decode", "distributed")),
    *(f"{PACKAGE}.{name}" for name in ("errors", "fsspec", "grain", "huggingface", "pack", "ray")),
    *(f"{PACKAGE}.{name}" for name in ("tensorflow", "topology", "torch", "utils")),
    *(f"{PACKAGE}.distributed.{name}" for name in ("backend", "net_check")),
    *(f"{PACKAGE}.torch.{name}" for name in ("checkpoint", "huggingface", "lightning")),
}
# What may name private modules: pages made of the commands, and figures of one part of a save.
INSIDERS = ("python", "tests", "docs/reference/cli.md", "benchmarks/checkpoint/checkpoint.py")
PRIVATE = re.compile(
    rf"(?<![\w./])({PACKAGE}(?:\.\w+)*\._(?!_)\w+)"
    rf"|from ({PACKAGE}(?:\.\w+)*) import (?:\([^)]*|[^(\n]*)\b_(?!_)\w+"
)


def is_for_types(node: ast.stmt) -> bool:
    """Whether it is `if TYPE_CHECKING:`."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def imports(body: list[ast.stmt]) -> Iterator[tuple[int, str, list[str]]]:
    """Line, module and names of what is imported when the module is."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.If | ast.Try | ast.With) and not is_for_types(node):
            yield from imports([*node.body, *getattr(node, "orelse", [])])


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


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each import, or name of a module, that should not be."""
    python = root / "python"
    paths = {module_of(path, python): path for path in sorted((python / PACKAGE).rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        if is_public(module) and module not in PUBLIC:
            yield f"{path.relative_to(root)}: is public, and not listed in check_imports.py"
        graph[module] = set()
        is_core = not f"{module}.".startswith(TORCH_PACKAGES)
        for line, target, names in imports(ast.parse(path.read_text()).body):
            if is_core and f"{target}.".startswith(("torch.", *TORCH_PACKAGES)):
                yield f"{path.relative_to(root)}:{line}: the core does not import {target}"
            within = {f"{target}.{name}" for name in names} & {*paths, EXTENSION}
            graph[module] |= within or ({target} & paths.keys())
    told: set[str] = set()
    for module in graph:
        circle = circle_from(module, graph)
        if circle and not told & set(circle):
            told |= set(circle)
            yield f"{paths[module].relative_to(root)}: imports in a circle: {' -> '.join(circle)}"
    yield from strangers(root)


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
