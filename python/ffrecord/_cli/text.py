"""Text of strangers - names, keys, values, messages about them - made safe for a terminal."""

import unicodedata

_TEXT_MAX = 200


def shown(text: str, most: int = _TEXT_MAX) -> str:
    """Text of a stranger on one line: cut, and without characters that steer a terminal."""
    cut = text[:most]
    safe = "".join(
        c if unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in cut
    )
    return safe.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") + (
        "..." if len(text) > most else ""
    )


def safe_lines(text: str) -> str:
    """Text of several lines, whole, without characters that steer a terminal."""
    return "\n".join(shown(line, len(line)) for line in text.split("\n"))
