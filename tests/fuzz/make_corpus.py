"""Write the inputs that each fuzz target begins with.

Usage: make_corpus.py FOLDER

Makes FOLDER/<target>/seed-*, the same each time. What a target takes as input is said at the top of
its source; targets that are not here begin with nothing.
"""

import itertools
import pathlib
import struct
import sys
import zlib
from collections.abc import Iterator

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
# Values that have been somebody's mistake before.
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
HEADER_SIZE, PAGE_SIZE, TAIL_SIZE = 128, 4096, 64
ENTRY_SIZE, ENTRIES_PER_PAGE, PAGE_HEADER_SIZE = 24, 170, 16


def edit(place: int, value: int) -> bytes:
    """One edit, as tests/fuzz/edited_file.h reads it."""
    return place.to_bytes(3, "little") + bytes([value])


def v1_file(records: list[bytes]) -> bytes:
    """Lay out a version 1 file: format.md, "Version 1"."""
    begin = 12 + 12 * len(records)
    offsets = list(itertools.accumulate((len(record) for record in records), initial=begin))[:-1]
    tables = struct.pack(f"<q{len(records)}I", len(records), *map(zlib.crc32, records))
    tables += struct.pack(f"<{len(records)}q", *offsets)
    return struct.pack("<I", zlib.crc32(tables)) + tables + b"".join(records)


def v1_file_seeds() -> Iterator[bytes]:
    """Whole and damaged files, each with all options."""
    files = [path.read_bytes() for path in sorted((DATA / "ffrecord-v1").rglob("*.ffr"))]
    files += [v1_file([]), v1_file([b""]), v1_file([b"", b"abc"]), v1_file([b"x" * 100] * 20)]
    for content in files:
        for options in range(4):
            yield bytes([options]) + content


def v2_file_seeds() -> Iterator[bytes]:
    """Each golden file as it is, and with each field of header and end changed."""
    golden = sorted((DATA / "ffrecord-v2").glob("*.ffr"))
    for number, path in enumerate(golden):
        for options in range(4):
            yield bytes([options, number])
        size = path.stat().st_size
        footer = int.from_bytes(path.read_bytes()[-TAIL_SIZE + 8 : -TAIL_SIZE + 16], "little")
        places = [*range(12, HEADER_SIZE, 8), *range(footer, min(footer + 256, size), 4)]
        places += range(size - TAIL_SIZE, size, 8)
        for place, value in itertools.product(places, (0x01, 0xFF)):
            yield bytes([0, number]) + edit(place, value)


def v2_index_seeds() -> Iterator[bytes]:
    """Each field of the directory and of an entry, at the ends of the first page."""
    yield from (bytes([options]) for options in range(4))
    # Ranges are in the order: directory, pages, header, footer to the end. The golden file has
    # three segments of one page.
    directory_size = 3 * 8
    entries = [0, 1, ENTRIES_PER_PAGE - 1]
    fields = [
        PAGE_HEADER_SIZE + ENTRY_SIZE * entry + at for entry in entries for at in range(8, 24)
    ]
    places = [*range(directory_size), *(directory_size + place for place in [8, 9, 12, *fields])]
    for place, value in itertools.product(places, BYTES):
        yield bytes([0]) + edit(place, value)
    frame = directory_size + 3 * PAGE_SIZE
    for place, value in itertools.product(range(frame + 56, frame + 64), BYTES):
        yield bytes([1]) + edit(place, value)


def dictionary_seeds() -> Iterator[bytes]:
    """Each field of the dictionary's head, and each byte of the first frames."""
    yield from (bytes([options]) for options in range(8))
    # Ranges are in the order: dictionary, payloads. The golden file's dictionary has 1024 bytes.
    for place, value in itertools.product([*range(16), *range(16, 1024, 16)], BYTES):
        yield bytes([0]) + edit(place, value)
    for place, value in itertools.product(range(1024, 1024 + 64), BYTES):
        yield bytes([1]) + edit(place, value)


def key_index_seeds() -> Iterator[bytes]:
    """Each field of the directory, of entries at the ends of the first page, and of the block."""
    yield from (bytes([options]) for options in range(8))
    # Ranges are in the order: directory, pages, block, or instead of that the header and the
    # footer to the end. The golden file has one run of two pages.
    directory_size = 16
    entries = [0, 1, ENTRIES_PER_PAGE - 1]
    fields = [PAGE_HEADER_SIZE + ENTRY_SIZE * entry + at for entry in entries for at in range(24)]
    places = [*range(directory_size), *(directory_size + place for place in [8, 9, 12, *fields])]
    for place, value in itertools.product(places, BYTES):
        yield bytes([0]) + edit(place, value)
    behind = directory_size + 2 * PAGE_SIZE
    for place, value in itertools.product(range(behind, behind + 48), BYTES):
        yield bytes([1]) + edit(place, value)
    sections = behind + HEADER_SIZE + 64
    for place, value in itertools.product(range(sections, sections + 24), BYTES):
        yield bytes([2]) + edit(place, value)


def schema_seeds() -> Iterator[bytes]:
    """A byte for the size of the section, the section, a record."""
    label = struct.pack("<BBH5s", 9, 0, 5, b"label")
    box = struct.pack("<BBH3sQQ", 12, 2, 3, b"box", 2, 2)
    text = struct.pack("<BBH4s", 33, 0, 4, b"text")
    image = struct.pack("<BBH5s", 32, 0, 5, b"image")
    for columns in ([label], [image], [label, image], [label, box, text, image]):
        section = struct.pack("<H", len(columns)) + b"".join(columns)
        for record in (
            b"",
            bytes(8),
            bytes(8) + b"image",
            bytes(24) + struct.pack("<I", 2) + b"xyz",
        ):
            yield bytes([len(section)]) + section + record


def array_headers_seeds() -> Iterator[bytes]:
    """A .npy file, and a safetensors file."""
    for shape, data in (("()", b"1234"), ("(2, 3), ", b"x" * 24), ("(0, 5)", b"")):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".encode()
        yield b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data
    entry = b'{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}'
    metadata = b'{"__metadata__":{"k":"v"},"\\u00e4":'
    for header in (b"{}", b'{"a":' + entry + b"}", metadata + entry + b"}"):
        yield len(header).to_bytes(8, "little") + header + (b"1234" if b"BF16" in header else b"")


def jpeg_seeds() -> Iterator[bytes]:
    """Grey pictures of 16 by 8 pixels, as small as a baseline JPEG can be, with all options."""
    table = b"\xff\xdb\0\x43\0" + b"\1" * 64
    frame = b"\xff\xc0\0\x0b\x08\0\x08\0\x10\1\1\x11\0"
    codes = b"".join(
        b"\xff\xc4\0\x14" + bytes([kind, 1]) + b"\0" * 15 + b"\0" for kind in (0x00, 0x10)
    )
    scan = b"\xff\xda\0\x08\1\1\0\0\x3f\0" + b"\x0f"
    for options in range(32):
        yield bytes([options]) + b"\xff\xd8" + table + frame + codes + scan + b"\xff\xd9"


def collective_seeds() -> Iterator[bytes]:
    """Messages of each size with each small value everywhere, and addresses."""
    for number, size in ((0, 40), (1, 48), (2, 16), (3, 4), (5, 20), (6, 64)):
        for value in (0, 1, 2):
            yield bytes([number]) + bytes([value]) * size
    for text in ("10.0.0.1:29500", "[::1]:7/machine/local", "host:1/m", "//", ""):
        yield bytes([4]) + text.encode()


def packed_file_seeds() -> Iterator[bytes]:
    """Three bytes as they are, in frames of each width."""
    for width in (0, 1, 2, 4, 8):
        counts = [0] * (width - 1) + [3] if width else []
        frame = b"".join(n.to_bytes(4, "little") for n in counts) + b"abc"
        table = len(frame).to_bytes(4, "little") + width.to_bytes(4, "little")
        sizes = (3, 1, len(frame))
        yield (
            frame
            + table
            + b"FFRPACK1"
            + b"".join(n.to_bytes(8, "little") for n in sizes)
            + bytes(16)
        )


SEEDS = {
    "array_headers": array_headers_seeds,
    "collective": collective_seeds,
    "dictionary": dictionary_seeds,
    "jpeg": jpeg_seeds,
    "key_index": key_index_seeds,
    "packed_file": packed_file_seeds,
    "schema": schema_seeds,
    "v1_file": v1_file_seeds,
    "v2_file": v2_file_seeds,
    "v2_index": v2_index_seeds,
}


def write(folder: pathlib.Path) -> None:
    """Make the corpus of every target."""
    for target, seeds in SEEDS.items():
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (place / f"seed-{number:05}").write_bytes(seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(pathlib.Path(sys.argv[1]))
