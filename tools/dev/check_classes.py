"""Fail if a class of the product is cut across files instead of into classes, or is too large.

A class has its out-of-line methods in one .cpp, which has at most 600 lines, and declares at most
40 methods: past that, ask which class is missing. Deleted and defaulted methods do not count, nor
do files `*_absent.cpp`, which are built in place of others where a library is missing.

Classes that were larger when the rule came are in `tools/dev/large_classes.txt`, one a line with
its methods, files and lines. These only get smaller: a class may not pass its numbers, and its
methods and files must be in the list as they are.

Usage: check_classes.py SOURCE_ROOT
"""

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterator

import tree

PRODUCT = ("libffrecord/", "client/", "server/")
LARGE = "tools/dev/large_classes.txt"
FILES, LINES, METHODS = 1, 600, 40


@dataclasses.dataclass(frozen=True)
class Size:
    """The size of a class."""

    files: int  # .cpp files that define its methods.
    lines: int  # Lines of those files.
    methods: int  # Methods that it declares, but for those that are deleted or defaulted.

    @property
    def is_fine(self) -> bool:
        """Whether the rule holds."""
        return self.files <= FILES and self.lines <= LINES and self.methods <= METHODS

    def __str__(self) -> str:
        """Say it as one line."""
        return f"{self.methods} methods, {self.files} files, {self.lines} lines"


SKIPPED = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<raw>\w*)\(.*?\)(?P=raw)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:[^\n\\]|\\.)*",
    re.DOTALL | re.MULTILINE,
)
STOP = re.compile(r"[;{]")
EXTERN = re.compile(r"\s*extern\s*$")
LABEL = re.compile(r"\b(?:public|protected|private)\s*:(?!:)")
NAMESPACE = re.compile(r"\s*(?:inline\s+)?namespace\b\s*([\w:]*)\s*$")
CLASS = re.compile(r"\s*(?:class|struct|union)\s+(?:[A-Z_]{4,}\s+|\w+\([^()]*\)\s*)*([\w:]+)")
NO_METHOD = re.compile(r"\s*(?:using|typedef|friend|static_assert|enum|class|struct|union)\b")
QUALIFIED = re.compile(r"((?:\w+::)+)(?:~?\w+|operator\W*|operator\s[\w:<>&*\s]+)$")


@dataclasses.dataclass
class Found:
    """The classes and definitions that one scan of the tree has found."""

    methods: dict[str, int] = dataclasses.field(default_factory=dict)  # By class.
    places: dict[str, str] = dataclasses.field(default_factory=dict)  # Where a class begins.
    # Qualified definitions: the scope that they are in, the qualifier, and the file.
    definitions: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


def code_of(text: str) -> str:
    """Blank comments, texts and preprocessor lines; every line stays where it was."""
    return SKIPPED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def plain_of(statement: str) -> str:
    """Blank the arguments of templates, so that all parentheses left are those of functions."""
    text = re.sub(r"\btemplate\s*<", "<", statement)
    text = re.sub(r"->|<=>|[<>]=|<<", "  ", text)
    while (shorter := re.sub(r"<[^<>]*>", " ", text)) != text:
        text = shorter
    return text


def end_of_block(code: str, begin: int) -> int:
    """Return the index behind the block that begins at `begin`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(code)


def is_method(statement: str) -> bool:
    """Whether a statement of a class body declares or defines a method."""
    if NO_METHOD.match(statement) or re.search(r"=\s*(?:delete|default)\s*$", statement):
        return False
    if re.search(r"\boperator\b", statement):
        return True
    head, parenthesis, rest = re.sub(r"\balignas\s*\([^()]*\)", " ", statement).partition("(")
    return bool(parenthesis) and "=" not in head and not re.match(r"\s*(?:\w+::)*\*", rest)


def is_body(statement: str, code: str, end: int) -> bool:
    """Whether the block that ends at `end` is the body of a function, which ends the statement."""
    following = code[end:].lstrip()[:1]
    if following in (",", "{", ";", ")"):
        return following == ";" and is_method(statement) and "=" not in statement.split("(")[0]
    return True


def scan(code: str, file: str, scope: str, owner: str, found: Found, offset: int) -> None:
    """Read the statements of a namespace, or of the body of the class `owner`.

    `offset` is the number of lines before `code` in its file.
    """
    statement, at = "", 0
    while match := STOP.search(code, at):
        statement = LABEL.sub(" ", statement + code[at : match.start()])
        at = match.end()
        if match[0] == ";":
            take(statement, file, scope, owner, found)
            statement = ""
            continue
        at = end_of_block(code, match.start())
        inside = code[match.end() : at - 1]
        line = offset + code.count("\n", 0, match.end())
        plain = plain_of(statement)
        if opened := NAMESPACE.match(statement):
            scan(inside, file, joined(scope, opened[1] or f"({file})"), "", found, line)
            statement = ""
        elif EXTERN.match(statement):
            scan(inside, file, scope, "", found, line)
            statement = ""
        elif (opened := CLASS.match(plain)) and "(" not in plain[opened.end() :]:
            name = joined(owner or scope, opened[1])
            found.methods.setdefault(name, 0)
            found.places.setdefault(name, f"{file}:{line + 1}")
            scan(inside, file, scope, name, found, line)
            statement += "{}"
        elif is_body(plain, code, at):
            take(statement, file, scope, owner, found)
            statement = ""
        else:
            statement += "{}"


def joined(scope: str, name: str) -> str:
    """Join two parts of a qualified name."""
    return f"{scope}::{name}" if scope else name


def take(statement: str, file: str, scope: str, owner: str, found: Found) -> None:
    """Count a statement as a method of `owner`, or note it as a definition outside of a class."""
    plain = plain_of(statement).strip()
    if owner:
        found.methods[owner] += is_method(plain)
        return
    head = plain.partition("(")[0].rstrip()
    if (
        "(" in plain
        and "=" not in re.sub(r"operator\W+$", "", head)
        and (name := QUALIFIED.search(head))
    ):
        found.definitions.append((scope, name[1][:-2], file))


def class_of(scope: str, qualifier: str, classes: dict[str, int]) -> str | None:
    """Return the class that a definition in `scope` belongs to; None if it is of a namespace."""
    while True:
        if (name := joined(scope, qualifier)) in classes:
            return name
        if not scope:
            return None
        scope = scope.rpartition("::")[0]


def sizes(root: pathlib.Path) -> Iterator[tuple[str, str, Size]]:
    """Every class of the product: where it begins, its name, and its size."""
    found, lines = Found(), {}
    for path in tree.files(root, ".h", ".cpp"):
        file = path.relative_to(root).as_posix()
        if file.startswith(PRODUCT):
            text = path.read_text()
            lines[file] = text.count("\n")
            scan(code_of(text), file, "", "", found, 0)
    files: dict[str, set[str]] = {}
    for scope, qualifier, file in found.definitions:
        name = class_of(scope, qualifier, found.methods)
        if name and file.endswith(".cpp") and not file.endswith("_absent.cpp"):
            files.setdefault(name, set()).add(file)
    for name, methods in sorted(found.methods.items()):
        own = files.get(name, set())
        size = Size(len(own), sum(lines[file] for file in own), methods)
        yield found.places[name], name.removeprefix("ffrecord::"), size


def large_classes(root: pathlib.Path) -> dict[str, Size]:
    """Return the classes that still break the rule, as the list has them."""
    path = root / LARGE
    lines = path.read_text().splitlines() if path.exists() else []
    large = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, methods, files, length = line.split()
            large[name] = Size(int(files), int(length), int(methods))
    return large


def complaint(name: str, size: Size, bound: Size | None) -> str | None:
    """Say what is wrong with a class, whose numbers in the list are `bound`."""
    if bound is None:
        limits = Size(FILES, LINES, METHODS)
        return None if size.is_fine else f"{name} has {size}; a class has at most {limits}"
    if size.is_fine:
        return f"{name} keeps the rule: remove it from {LARGE}"
    has_grown = size.files > bound.files or size.lines > bound.lines or size.methods > bound.methods
    if has_grown:
        return f"{name} has {size}; it had {bound}, and may only get smaller"
    if (size.files, size.methods) != (bound.files, bound.methods):
        return f"{name} has {size}: write these numbers into {LARGE}"
    return None


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each class that is too large, or is not in the list as it is."""
    large = large_classes(root)
    for place, name, size in sizes(root):
        if said := complaint(name, size, large.pop(name, None)):
            yield f"{place}: {said}"
    for name in large:
        yield f"{LARGE}: {name} is not a class"


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
