"""Steps whose blocks are as they were written, and whose tensors are not those that were saved."""

from pathlib import Path

import numpy as np

from ffrecord import _ffrecord


def xxh3_128(content: bytes | bytearray) -> bytes:
    """The digest of a manifest."""
    data = np.frombuffer(bytes(content), np.uint8)
    shape = data.shape
    whole = ("content", "uint8", shape, (0,), shape, data.ctypes.data, data.nbytes, True)
    return _ffrecord.content_digests([whole])


def tear(folder: Path, turn: int = 0) -> None:
    """Have rank 0's last tensor have had another digest; each `turn` another one.

    Digests stand at the end of a manifest, before its own; the root has the digest of it all.
    """
    manifest, root = folder / "part-00000.manifest", folder / "root.manifest"
    content, body = bytearray(manifest.read_bytes()), bytearray(root.read_bytes())
    at = body.index(xxh3_128(content))
    content[-24 + turn % 8] ^= 1 << turn // 8 % 8
    content[-16:] = xxh3_128(content[:-16])
    body[at : at + 16] = xxh3_128(content)
    body[-16:] = xxh3_128(body[:-16])
    manifest.write_bytes(content)
    root.write_bytes(body)
