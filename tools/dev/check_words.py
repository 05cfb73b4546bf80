"""Fail if the tree holds words that do not belong in it.

Unfinished work is an issue, not a note in the code; a path of one machine works on no other; and
the host of a package registry is the user's choice.

Usage: check_words.py SOURCE_ROOT
"""

import pathlib
import re
import sys
from collections.abc import Iterator

import tree

# Written in pieces, so that this file passes its own check.
WORDS = {
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bX" + r"XX\b": "unfinished work: file an issue instead",
    r"(?<![\w.}~*-])/(work|ho" + r"me|ro" + r"ot|Us" + r"ers)/[\w.-]": "a path of one machine",
    r"pypi\.o" + r"rg|pythonhosted\.o" + r"rg|deb\.debian\.o" + r"rg|download\.pyto" + r"rch": (
        "a registry's host: leave it to the user's configuration"
    ),
}
TEXT = {"", ".cpp", ".h", ".py", ".pyi", ".md", ".txt", ".toml", ".build", ".svg", ".sh"}


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each word found."""
    rules = [(re.compile(pattern), reason) for pattern, reason in WORDS.items()]
    for path in tree.files(root):
        if path.suffix not in TEXT:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for rule, reason in rules:
                if match := rule.search(line):
                    yield f"{path.relative_to(root).as_posix()}:{number}: '{match[0]}': {reason}"


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
