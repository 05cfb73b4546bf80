"""The prose inside of source files: comments, docstrings and string literals."""

import io
import re
import tokenize

# Code becomes this, so that no phrase is found across it.
CODE = "\0"
CPP = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)"
    r'|R"(?P<raw>\w*)\((?P<raw_text>.*?)\)(?P=raw)"'
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"'
    r"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
MARKER = re.compile(r"^\s*(?://+<?|/\*+|\*+/?|#+:?)|\*/$", re.MULTILINE)
QUOTED = re.compile(r"[a-zA-Z]*(\"\"\"|'''|\"|')(.*)\1", re.DOTALL)


def prose_of(text: str, suffix: str) -> str:
    """Replace code by `CODE`; every character and line keeps its place."""
    kept = cpp_prose(text) if suffix in (".h", ".cpp") else python_prose(text)
    prose = list(re.sub(r"\S", CODE, text))
    for begin, part in kept:
        prose[begin : begin + len(part)] = blanked(part)
    return "".join(prose)


def blanked(part: str) -> str:
    """Put spaces in the place of the signs that begin or end a comment."""
    return MARKER.sub(lambda marker: " " * len(marker[0]), part)


def cpp_prose(text: str) -> list[tuple[int, str]]:
    """Where each comment and each string literal begins, and its text."""
    kept = []
    for match in CPP.finditer(text):
        for group in ("comment", "raw_text", "text"):
            if match[group] is not None:
                kept.append((match.start(group), match[group]))
    return kept


def python_prose(text: str) -> list[tuple[int, str]]:
    """Where each comment and each string literal begins, and its text."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    kept = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        begin = starts[token.start[0] - 1] + token.start[1]
        if token.type == tokenize.COMMENT:
            kept.append((begin, token.string))
        elif token.type == tokenize.STRING and (match := QUOTED.fullmatch(token.string)):
            kept.append((begin + match.start(2), match[2]))
    return kept
