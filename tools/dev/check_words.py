"""Fail if the tree holds words that do not belong in it.

Unfinished work is an issue, not a note in the code; a path of one machine works on no other; and
the host of a package registry is the user's choice. Sentences of pages name their subjects in plain
words and use the usual units: code blocks, code spans and headings are left out.

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
# Of pages alone, outside of code.
PROSE = {
    r"\b[Ll]ikewise\b": "say what is the same",
    r"\b[Ww]ho(?:ever|soever)\b": "name who it is",
    r"\bby (?:itself|themselves)\b": "'a single daemon', 'without a command', 'on its own'",
    r"\blet(?:s|ting)? go\b": "'release', 'close', 'drop'",
    r"\b(?:is|are|was|were|be|been) told\b": "'receives', 'the error names', 'distinguish'",
    r"\b(?:put up with|had best|lest|as little as|ha(?:s|ve) it that)\b": "plain words",
    r"\b(?:records|samples|reads|batches|steps|bytes|[KMG]i?B) (?:a|per) second\b": "'reads/s'",
    r"(?:^|[.:;|*] )(?:What|Who|Of)\b": "begin the sentence with its subject",
}
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
UNSPOKEN = re.compile(r"`[^`\n]*`|^#.*", re.MULTILINE)
TEXT = {"", ".cpp", ".h", ".py", ".pyi", ".md", ".txt", ".toml", ".build", ".svg", ".sh"}


def prose_of(page: str) -> str:
    """The page without code and headings, and with its lines where they were."""
    without_blocks = FENCED.sub(lambda block: "\n" * block[0].count("\n"), page)
    return UNSPOKEN.sub("", without_blocks)


def found(text: str, words: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """The line, the word and the reason of each word found."""
    rules = [(re.compile(pattern), reason) for pattern, reason in words.items()]
    for number, line in enumerate(text.splitlines(), start=1):
        for rule, reason in rules:
            if match := rule.search(line):
                yield number, match[0], reason


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each word found."""
    for path in tree.files(root):
        if path.suffix not in TEXT:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(root)
        hits = list(found(text, WORDS))
        if path.suffix == ".md" and (name.parts[0] == "docs" or len(name.parts) == 1):
            hits += found(prose_of(text), PROSE)
        for number, word, reason in hits:
            yield f"{name.as_posix()}:{number}: '{word}': {reason}"


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
