"""Goal: headers of tars are understood as `tarfile` understands them, or left to it.

Method: random tars of each format, half of them damaged, are read in both ways.
"""

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ffrecord.pack._source import WHOLE
from ffrecord.pack._tar_headers import Headers

pytestmark = pytest.mark.wrong_data

FORMATS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
# Records that change how a file is read, and others that do not; and one with others in its value.
PAX: tuple[dict[str, Any], ...] = (
    {"comment": "x\n5 a=b"},
    {"SCHILY.xattr.user.x": "v"},
    {"VENDOR.key": "v"},
    {"path": "other\n7 b=c"},
    {"size": "3"},
    {"hdrcharset": "BINARY"},
)


def random_tar(draws: random.Random) -> bytes:
    form = draws.choice(FORMATS)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for number in range(draws.randrange(1, 8)):
            name = draws.choice(("a", "\u00fc" * 60, "x" * 99, "d/" * 50, "d/" * 49 + "f"))
            info = tarfile.TarInfo(f"{name}{number}")
            content = draws.randbytes(draws.choice((0, 1, 3, 511, 512, 513, 3000)))
            info.size, info.mtime = len(content), draws.choice((1, 1.5))
            if draws.random() < 0.2:
                info.type, info.size = tarfile.DIRTYPE, 0
            if draws.random() < 0.2 and form == tarfile.PAX_FORMAT:
                info.pax_headers = dict(draws.choice(PAX))
            if form != tarfile.USTAR_FORMAT or len(info.name.encode()) <= 100:
                tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def damaged(tar: bytes, draws: random.Random) -> bytes:
    made = bytearray(tar)
    for _ in range(draws.randrange(3)):
        made[draws.randrange(len(made))] ^= 1 << draws.randrange(8)
    return bytes(made)


def by_tarfile(path: Path, end: int) -> list[tuple[str, int, int, int]]:
    found = []
    try:
        with tarfile.open(path, "r:") as tar:
            for info in tar:
                if info.isfile() and info.offset < end:
                    found.append((info.name, info.offset, info.offset_data, info.size))
    except tarfile.TarError:
        pass
    return found


def test_headers_are_what_tarfile_finds(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.tar"
    to_the_end = 0
    for number in range(300):
        draws = random.Random(seed + number)
        path.write_bytes(damaged(random_tar(draws), draws))
        with path.open("rb") as file:
            headers = Headers(file.fileno(), 0, WHOLE, reads_contents=False)
            found = [(h.name, h.offset_bytes, h.content_bytes, h.size_bytes) for h in headers]
        assert found == by_tarfile(path, headers.at), f"seed {seed + number}"
        to_the_end += path.read_bytes()[headers.at :].count(0) == path.stat().st_size - headers.at
    assert to_the_end > 60
