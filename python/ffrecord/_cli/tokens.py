"""Tokens that a daemon accepts: what a client may do, to which names, until when.

protocol.md, "Tokens", has their bytes.
"""

import hashlib
import hmac
import os
import pathlib
import struct
from collections.abc import Iterable

_VERSION = 1
_RIGHTS = {"read": 1, "write": 2, "delete": 4, "admin": 16}  # 8: nodes of a cluster.
_KEY_SIZE_MIN = 32
_TEXT_SIZE_MAX = 255


def read_key(path: pathlib.Path) -> bytes:
    """The first key of a key file.

    Raises:
        PermissionError: other users can access the file.
        ValueError: it holds no key.
    """
    if path.stat().st_mode & 0o077:
        raise PermissionError(f"{path} holds a secret that other users can access: chmod 600 it")
    for line in path.read_text(errors="replace").split():
        try:
            key = bytes.fromhex(line)
        except ValueError:
            break
        if len(key) < _KEY_SIZE_MIN:
            break
        return key
    raise ValueError(
        f"{path} holds no key: expected a line of 64 or more hexadecimal digits, made with "
        f"openssl rand -hex 32"
    )


def make_token(
    key: bytes, *, prefix: str, rights: Iterable[str], expires_s: int, client: str
) -> str:
    """A token as hexadecimal digits; `expires_s` is in seconds since 1970.

    Raises:
        ValueError: a right is unknown, or a text too long.
    """
    bits = 0
    for right in rights:
        if right not in _RIGHTS:
            raise ValueError(f"there is no right {right!r}; rights: {', '.join(_RIGHTS)}")
        bits |= _RIGHTS[right]
    body = struct.pack("<BBHQ", _VERSION, bits, 0, expires_s)
    for text in (prefix, client):
        encoded = os.fsencode(text)
        if len(encoded) > _TEXT_SIZE_MAX:
            raise ValueError(f"{text[:20]}... has more than {_TEXT_SIZE_MAX} bytes")
        body += struct.pack("<H", len(encoded)) + encoded
    return (body + hmac.digest(key, body, hashlib.sha256)).hex()
