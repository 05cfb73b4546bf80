"""Fail if the tree holds words that do not belong in it.

Unfinished work is an issue, not a note in the code; a path of one machine works on no other; and
the host of a package registry is the user's choice. Sentences name their subjects in plain words
and use the usual units: in pages, comments, docstrings and texts of sources. Code blocks, code
spans and headings are left out, and so are tests but for what they share.

Usage: check_words.py SOURCE_ROOT
"""

import pathlib
import re
import sys
from collections.abc import Iterator

import comments
import tree

# Written in pieces, so that this file passes its own check.
WORDS = {
    r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bX" + r"XX\b": "unfinished work: file an issue instead",
    r"(?<![\w.}~*-])/(work|ho" + r"me|ro" + r"ot|Us" + r"ers)/[\w.-]": "a path of one machine",
    r"pypi\.o" + r"rg|pythonhosted\.o" + r"rg|deb\.debian\.o" + r"rg|download\.pyto" + r"rch": (
        "a registry's host: leave it to the user's configuration"
    ),
}
# Prose outside of code: pages, and the comments, docstrings and texts of sources.
PROSE = {
    r"\b[Ll]ikewise\b": "say what is the same",
    r"\b[Ww]ho(?:ever|soever)\b": "name who it is",
    r"\bby (?:itself|themselves)\b": "'a single daemon', 'without a command', 'on its own'",
    r"\b[Ll]et(?:s|ting)? go\b": "'release', 'close', 'drop'",
    r"\b(?:is|are|was|were|be|been) told\b": "'receives', 'the error names', 'distinguish'",
    r"\b(?:put [u]p with|had [b]est|[l]est|as [l]ittle as|ha(?:s|ve) it that)\b": "plain words",
    r"\b(?:records|samples|reads|batches|steps|bytes|[KMG]i?B) (?:a|per) second\b": "'reads/s'",
    r"(?:^[\s\0]*|[.:;|*] )(?:What|Who|Of)\b": "begin the sentence with its subject",
}
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#.*", re.MULTILINE)
SPAN = re.compile(r"`[^`\n]*`")
TEXT = {"", ".cpp", ".h", ".py", ".pyi", ".md", ".txt", ".toml", ".build", ".svg", ".sh"}
SOURCES = {".h", ".cpp", ".py", ".pyi"}
PLAIN = ("libffrecord/", "client/", "server/", "capi/", "python/", "tools/", "benchmarks/")
PLAIN_TESTS = ("tests/support/",)


def blank(match: re.Match[str]) -> str:
    """Spaces in the place of what was found; lines stay where they were."""
    return re.sub(r"[^\n]", " ", match[0])


def prose_of(name: str, text: str) -> str:
    """The prose of a page or of a source, where it was; nothing if its words are free."""
    if name.endswith(".md") and (name.startswith("docs/") or "/" not in name):
        return SPAN.sub(blank, HEADING.sub(blank, FENCED.sub(blank, text)))
    suffix = pathlib.PurePath(name).suffix
    if suffix in SOURCES and name.startswith(PLAIN + PLAIN_TESTS):
        return SPAN.sub(blank, comments.prose_of(text, suffix))
    return ""


def found(text: str, words: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """The line, the word and the reason of each word found; a phrase may go over lines."""
    for pattern, reason in words.items():
        for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.MULTILINE):
            word = " ".join(match[0].replace("\0", " ").split())
            yield text.count("\n", 0, match.end()) + 1, word, reason


def violations(root: pathlib.Path) -> Iterator[str]:
    """One line for each word found."""
    for path in tree.files(root):
        if path.suffix not in TEXT:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(root).as_posix()
        hits = list(found(text, WORDS))
        hits += found(prose_of(name, text), PROSE)
        for number, word, reason in sorted(hits):
            yield f"{name}:{number}: '{word}': {reason}"


if __name__ == "__main__":
    sys.exit("\n".join(violations(pathlib.Path(sys.argv[1]))) or 0)
