"""The table of contents of a packed folder: a pickle that is never unpickled.

format.md, "Packed folders". Unpickling runs what the file says. This decoder knows the few
opcodes that a tree of names needs, makes only dicts, strings and integers, and rejects the rest.
So a hostile table can only be rejected.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias

from ffrecord.errors import NotPackedError, TrailerError

MAGIC = b"piouhjgbr"
SIZE_BYTES_MAX = 256 << 20
DEPTH_MAX = 255
_NAME_BYTES_MAX = 255

# Name -> int, the index of a record, or another Folder.
Folder: TypeAlias = OrderedDict[str, Any]


class _Mark:
    """MARK's entry on the stack, and the two other things that are no value."""

    def __init__(self, name: str) -> None:
        self.name = name


_MARK, _CLASS, _EMPTY = _Mark("a mark"), _Mark("the class"), _Mark("an empty tuple")


def decode(trailer: bytes, file_count: int) -> Folder:
    """The tree of names in the last record of a file with `file_count` others.

    Raises:
        NotPackedError: the record is not a table of contents.
        TrailerError: it is an invalid one; the message names the byte.
    """
    if not trailer.startswith(MAGIC):
        raise NotPackedError(f"the last record does not begin with {MAGIC.decode()}")
    if len(trailer) > SIZE_BYTES_MAX:
        raise TrailerError(f"table of contents: {len(trailer)} bytes, more than {SIZE_BYTES_MAX}")
    return _Decoder(trailer, file_count).run()


def encode(root: Folder) -> bytes:
    """The last record for that tree; `decode` and HFAiLab/ffrecord read it."""
    out = bytearray(MAGIC + b"\x80\x03ccollections\nOrderedDict\nq\x00)R")
    _encode_entries(root, out)
    return bytes(out + b".")


def _encode_entries(folder: Folder, out: bytearray) -> None:
    if not folder:
        return
    out += b"("
    for name, entry in folder.items():
        encoded = name.encode("utf-8", "surrogatepass")
        out += b"X" + len(encoded).to_bytes(4, "little") + encoded
        if isinstance(entry, int):
            # BININT is signed and has 4 bytes; LONG1 says its size itself.
            fits = entry < 1 << 31
            out += b"J" + entry.to_bytes(4, "little") if fits else _long(entry)
        else:
            out += b"h\x00)R"
            _encode_entries(entry, out)
    out += b"u"


def _long(number: int) -> bytes:
    return b"\x8a\x08" + number.to_bytes(8, "little", signed=True)


class _Decoder:
    """A pickle machine that can only build a tree of names. Single-use."""

    def __init__(self, data: bytes, file_count: int) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._heights: dict[int, int] = {}  # Heights of folders on the stack, by id.
        self._seen = bytearray(file_count)
        self._left = file_count

    def run(self) -> Folder:
        if self._take(1) != b"\x80" or self._take(1)[0] not in (3, 4, 5):
            self._refuse("not a pickle of protocol 3, 4 or 5")
        while (opcode := self._take(1)) != b".":
            self._step(opcode)
        if len(self._stack) != 1 or not isinstance(self._stack[0], OrderedDict):
            self._refuse("does not end with one folder")
        if self._at != len(self._data):
            self._refuse("bytes follow the end")
        if self._left:
            self._refuse(f"{self._left} records have no name")
        folder: Folder = self._stack[0]
        return folder

    def _step(self, opcode: bytes) -> None:
        match opcode:
            case b"X":  # BINUNICODE
                self._stack.append(self._name(self._number("<I")))
            case b"\x8c":  # SHORT_BINUNICODE
                self._stack.append(self._name(self._number("<B")))
            case b"J" | b"K" | b"M":  # BININT, BININT1, BININT2
                self._stack.append(self._number({b"J": "<i", b"K": "<B", b"M": "<H"}[opcode]))
            case b"\x8a":  # LONG1
                if (size := self._number("<B")) > 8:
                    self._refuse(f"a number of {size} bytes")
                self._stack.append(int.from_bytes(self._take(size), "little", signed=True))
            case b"\x94":  # MEMOIZE
                self._remember(len(self._memo))
            case b"q" | b"r":  # BINPUT, LONG_BINPUT
                self._remember(self._number("<B" if opcode == b"q" else "<I"))
            case b"h" | b"j":  # BINGET, LONG_BINGET
                self._recall(self._number("<B" if opcode == b"h" else "<I"))
            case b"c":  # GLOBAL
                self._global(self._line(), self._line())
            case b"\x93":  # STACK_GLOBAL
                name, module = self._pop(str), self._pop(str)
                self._global(module, name)
            case b")":  # EMPTY_TUPLE
                self._stack.append(_EMPTY)
            case b"R":  # REDUCE
                self._make_folder()
            case b"(":  # MARK
                self._stack.append(_MARK)
            case b"s":  # SETITEM
                self._set_items(len(self._stack) - 2)
            case b"u":  # SETITEMS
                self._set_items(self._pop_mark())
            case b"\x95":  # FRAME: a hint for readers that read in pieces.
                self._number("<Q")
            case _:
                self._refuse(f"opcode {opcode!r} is not of a tree of names")

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            self._refuse("ends early")
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def _number(self, layout: str) -> int:
        (number,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return int(number)

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + _NAME_BYTES_MAX)
        if end < 0:
            self._refuse("a name without end")
        line = self._take(end + 1 - self._at)
        return line[:-1].decode("utf-8", "replace")

    def _name(self, size: int) -> str:
        if size > _NAME_BYTES_MAX:
            self._refuse(f"a name of {size} bytes")
        try:
            return self._take(size).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._refuse("a name that is not UTF-8")

    def _pop(self, kind: type) -> Any:  # noqa: ANN401 - of that kind
        if not self._stack or not isinstance(self._stack[-1], kind):
            self._refuse(f"{kind.__name__} expected")
        return self._stack.pop()

    def _pop_mark(self) -> int:
        """Where the entries behind the last mark begin, once it is gone."""
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                del self._stack[place]
                return place
        self._refuse("no mark")

    def _remember(self, number: int) -> None:
        if not self._stack:
            self._refuse("nothing to remember")
        self._memo[number] = self._stack[-1]

    def _recall(self, number: int) -> None:
        value = self._memo.get(number)
        # A folder fetched again would be shared, or hold itself.
        if not isinstance(value, str) and value is not _CLASS:
            self._refuse("the memo may return names and the class only")
        self._stack.append(value)

    def _global(self, module: str, name: str) -> None:
        if (module, name) != ("collections", "OrderedDict"):
            self._refuse(f"refers to {module}.{name}: only collections.OrderedDict is allowed")
        self._stack.append(_CLASS)

    def _make_folder(self) -> None:
        if self._stack[-2:] != [_CLASS, _EMPTY]:
            self._refuse("a call of something other than OrderedDict()")
        folder: Folder = OrderedDict()
        self._stack[-2:] = [folder]
        self._heights[id(folder)] = 1

    def _set_items(self, begin: int) -> None:
        entries = self._stack[begin:] if begin >= 1 else []
        if begin < 1 or not isinstance(self._stack[begin - 1], OrderedDict) or len(entries) % 2:
            self._refuse("entries without a folder")
        del self._stack[begin:]
        folder = self._stack[-1]
        for name, entry in zip(entries[::2], entries[1::2], strict=True):
            self._check_name(name, folder)
            if isinstance(entry, OrderedDict):
                height = self._heights.pop(id(entry)) + 1
                if height > DEPTH_MAX:
                    self._refuse(f"nested more than {DEPTH_MAX} deep")
                self._heights[id(folder)] = max(height, self._heights[id(folder)])
            else:
                self._check_index(entry)
            folder[name] = entry

    def _check_name(self, name: object, folder: Folder) -> None:
        if not isinstance(name, str):
            self._refuse("a name that is not text")
        size = len(name.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= _NAME_BYTES_MAX or name in (".", "..") or "/" in name or "\0" in name:
            self._refuse(f"{name!r} is not a valid file name")
        # Only U+DC80 to U+DCFF stand for raw bytes; other lone surrogates stand for nothing.
        if any("\ud800" <= c <= "\udfff" and not "\udc80" <= c <= "\udcff" for c in name):
            self._refuse(f"{name!r} is not a valid file name")
        if name in folder:
            self._refuse(f"{name!r} occurs twice in its folder")

    def _check_index(self, entry: object) -> None:
        if not isinstance(entry, int):
            self._refuse("an entry that is neither index nor folder")
        if not 0 <= entry < len(self._seen) or self._seen[entry]:
            self._refuse(f"index {entry}: each of {len(self._seen)} records has one name")
        self._seen[entry] = 1
        self._left -= 1

    def _refuse(self, why: str) -> NoReturn:
        raise TrailerError(f"table of contents, byte {self._at}: {why}")


def walk(folder: Folder) -> Iterator[tuple[tuple[str, ...], int]]:
    """Path and index of each file, depth first."""
    for name, entry in folder.items():
        if isinstance(entry, int):
            yield (name,), entry
        else:
            for path, index in walk(entry):
                yield (name, *path), index
