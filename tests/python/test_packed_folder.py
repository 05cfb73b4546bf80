"""Goal: packed folders are read by name without unpickling, whatever their last record says.

Method: pickle's own readers are made to fail; trailers that Python wrote, that we wrote and that
are damaged or hostile are decoded, and what is accepted is compared with the folder.
"""

import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import FileReader, FileWriter, PackedFolder, pack_folder
from ffrecord.compat._packed_trailer import MAGIC, decode, encode

pytestmark = pytest.mark.wrong_data

DATA = Path(__file__).resolve().parents[1] / "data" / "ffrecord-v1"
loads = pickle.loads


@pytest.fixture(autouse=True)
def no_unpickling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("file content was unpickled")

    with monkeypatch.context() as patch:
        patch.setattr(pickle, "loads", refuse)
        patch.setattr(pickle, "load", refuse)
        patch.setattr(pickle, "Unpickler", refuse)
        yield


def folder(**entries: object) -> "OrderedDict[str, Any]":
    return OrderedDict(entries)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "b" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_bytes(b"aaa")
    (root / "b" / "x.bin").write_bytes(b"")
    (root / "b" / "deep" / "y").write_bytes(b"yy")
    (root / "ünï").write_bytes(b"u")
    (root / "link").symlink_to(root / "a.txt")
    with open(bytes(root) + b"/\x80raw", "wb") as file:
        file.write(b"raw")
    return root


def test_a_folder_is_packed_and_read_by_name(tree: Path, tmp_path: Path) -> None:
    pack_folder(tree, tmp_path / "p.ffr")

    packed = PackedFolder(tmp_path / "p.ffr")

    assert packed.num_files() == 6
    assert packed.read_one("b/deep/y").tobytes() == b"yy"
    assert [r.tobytes() for r in packed.read(["link", Path("b") / "x.bin"])] == [b"aaa", b""]
    assert packed.read_one("\udc80raw").tobytes() == b"raw"
    assert packed.list() == ["a.txt", "b", "empty", "link", "ünï", "\udc80raw"]
    assert packed.list("b") == ["deep", "x.bin"]
    assert packed.list("b", recursive=True, list_dir=False) == [Path("deep/y"), "x.bin"]
    assert packed.list(list_file=False) == ["b", "empty"]
    assert packed.list("empty") == []
    assert packed.exists("b/deep")
    assert packed.is_dir("empty")
    assert not packed.is_file("b")


def test_is_file_below_a_file_is_false_not_a_type_error(tree: Path, tmp_path: Path) -> None:
    pack_folder(tree, tmp_path / "p.ffr")
    packed = PackedFolder(tmp_path / "p.ffr")

    for name in ("a.txt/x", "a.txt/x/y", "no", ".."):
        assert not packed.is_file(name)
        assert not packed.is_dir(name)
        assert not packed.exists(name)
    for call in (packed.read_one, packed.list):
        with pytest.raises(AssertionError, match="does not exist"):
            call("a.txt/x")
    with pytest.raises(AssertionError, match="a directory, not a file"):
        packed.read_one("b")
    with pytest.raises(AssertionError, match="a file, not a directory"):
        packed.list("a.txt")


def test_the_golden_file_of_upstream_is_read() -> None:
    packed = PackedFolder(DATA / "packed.ffr")

    assert packed.is_file("a.txt")
    assert packed.is_file("b/x.bin")
    assert packed.is_dir("empty")
    assert packed.num_files() == len([p for p in packed.list(recursive=True) if packed.is_file(p)])


def test_a_hostile_golden_file_is_refused_but_its_records_are_readable() -> None:
    with pytest.raises(ValueError, match=r"packed_evil\.ffr.*table of contents"):
        PackedFolder(DATA / "packed_evil.ffr")

    assert FileReader(DATA / "packed_evil.ffr").n > 0


def test_what_is_no_packed_folder_is_a_value_error(tmp_path: Path) -> None:
    for name in ("random", "n0"):
        with pytest.raises(ValueError, match="not a packed folder"):
            PackedFolder(DATA / f"{name}.ffr")


def test_upstream_opens_what_we_pack(tree: Path, tmp_path: Path) -> None:
    pack_folder(tree, tmp_path / "p.ffr")
    reader = FileReader(tmp_path / "p.ffr")
    trailer = reader.read_one(reader.n - 1).tobytes()

    found = loads(trailer[len(MAGIC) :])

    assert type(found) is OrderedDict
    assert found == PackedFolder(tmp_path / "p.ffr").structure
    assert list(found["b"]) == ["deep", "x.bin"]


names = st.text(min_size=1, max_size=20).filter(
    lambda n: n not in (".", "..") and not set(n) & {"/", "\0"} and n.isprintable()
)
trees: Any = st.recursive(
    st.none(), lambda below: st.dictionaries(names, below, max_size=6), max_leaves=40
).filter(lambda tree: tree is not None)


def numbered(tree: dict[str, Any], first: int = 0) -> tuple["OrderedDict[str, Any]", int]:
    made: OrderedDict[str, Any] = OrderedDict()
    for name, below in tree.items():
        if below is None:
            made[name], first = first, first + 1
        else:
            made[name], first = numbered(below, first)
    return made, first


@given(tree=trees, protocol=st.sampled_from([3, 4, 5]))
def test_every_tree_is_decoded_as_python_and_we_encode_it(
    tree: dict[str, Any], protocol: int
) -> None:
    expected, count = numbered(tree)

    for trailer in (MAGIC + pickle.dumps(expected, protocol), encode(expected)):
        found = decode(trailer, count)
        assert found == expected
        assert list(found) == list(expected)
    assert loads(encode(expected)[len(MAGIC) :]) == expected


@given(st.data())
def test_a_damaged_trailer_is_refused_or_a_tree_of_all_records(data: st.DataObject) -> None:
    whole = bytearray(MAGIC + pickle.dumps(folder(a=0, b=folder(c=1, d=folder()), e=2)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(len(MAGIC), len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(whole), data.draw(st.integers(len(MAGIC), len(whole)))]))

    try:
        found = decode(bytes(whole[:end]), 3)
    except ValueError:
        return
    assert sorted(leaves(found)) == [0, 1, 2]


def leaves(tree: dict[str, Any] | int) -> list[int]:
    return (
        [tree] if isinstance(tree, int) else [i for below in tree.values() for i in leaves(below)]
    )


class Evil:
    """Unpickled, it would call `print`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("run",)


def nested(depth: int) -> "OrderedDict[str, Any]":
    made = folder(a=0)
    for _ in range(depth - 1):
        made = folder(x=made)
    return made


def shared() -> "OrderedDict[str, Any]":
    inner = folder()
    return folder(a=inner, b=inner, c=0)


def cyclic() -> "OrderedDict[str, Any]":
    made = folder(a=0)
    made["b"] = made
    return made


def raw(*parts: bytes) -> bytes:
    return b"\x80\x03" + b"".join(parts)


DICT = b"ccollections\nOrderedDict\n)R"


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (pickle.dumps(Evil()), "builtins.print"),
        (pickle.dumps(folder(a=Evil())), "builtins.print"),
        (pickle.dumps(nested(256)), "255 deep"),
        (pickle.dumps(shared()), "memo"),
        (pickle.dumps(cyclic()), "memo"),
        (pickle.dumps(folder(a=0, b=0)), "index 0"),
        (pickle.dumps(folder(a=1)), "index 1"),
        (pickle.dumps(folder(a=-1)), "index -1"),
        (pickle.dumps(folder()), "1 records have no name"),
        (pickle.dumps(folder(**{"../x": 0})), "not a valid file name"),
        (pickle.dumps(folder(**{"..": 0})), "not a valid file name"),
        (pickle.dumps(folder(**{"": 0})), "not a valid file name"),
        (pickle.dumps(folder(**{"a\0": 0})), "not a valid file name"),
        (pickle.dumps(folder(**{"\ud800": 0})), "not a valid file name"),
        (pickle.dumps(folder(**{"x" * 256: 0})), "a name of 256 bytes"),
        (pickle.dumps({"a": 0}), "opcode"),
        (pickle.dumps(folder(a="b")), "neither index nor folder"),
        (pickle.dumps(folder(a=0.5)), "opcode"),
        (pickle.dumps(folder(a=True)), "opcode"),
        (pickle.dumps(folder(a=0)) + b".", "bytes follow"),
        (pickle.dumps(folder(a=0), 2), "protocol"),
        (pickle.dumps(folder(a=0))[:-5], "ends early"),
        (raw(b"K\0."), "one folder"),
        (raw(b"."), "one folder"),
        (raw(DICT, DICT, b"."), "one folder"),
        (raw(DICT, b"(X\1\0\0\0aK\0X\1\0\0\0aK\0u."), "occurs twice|index 0"),
        (raw(DICT, b"X\1\0\0\0au."), "no mark"),
        (raw(DICT, b"(X\1\0\0\0au."), "entries without"),
        (raw(DICT, b"(K\0K\0u."), "not text"),
        (raw(DICT, b"s."), "without a folder|entries"),
        (raw(b"R."), "something other than OrderedDict"),
        (raw(b"h\0."), "memo"),
        (raw(b"q\0."), "nothing to remember"),
        (raw(b"X", struct.pack("<I", 2**32 - 1), b"a."), "a name of 4294967295 bytes"),
        (raw(DICT, b"\x8a\xff"), "a number of 255 bytes"),
        (raw(b"cos\nsystem\n."), "os.system"),
        (raw(b"c" + b"x" * 300), "a name without end"),
    ],
    ids=range(37),
)
def test_a_hostile_trailer_is_refused_with_the_reason(
    pickled: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        decode(MAGIC + pickled, 1)

    assert capsys.readouterr().out == ""


def test_two_hundred_and_fifty_five_folders_deep_is_still_read() -> None:
    assert decode(MAGIC + pickle.dumps(nested(255)), 1) == nested(255)
    assert decode(encode(nested(255)), 1) == nested(255)


def test_our_encoder_uses_no_opcode_that_our_decoder_does_not_know() -> None:
    trailer = encode(folder(a=0, b=folder(c=1), d=folder()))

    known = {"PROTO", "GLOBAL", "BINPUT", "BINGET", "EMPTY_TUPLE", "REDUCE", "MARK"}
    known |= {"BINUNICODE", "BININT", "SETITEMS", "STOP"}
    assert {op.name for op, _, _ in pickletools.genops(trailer[len(MAGIC) :])} <= known


def test_a_link_that_loops_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "loop").symlink_to(tmp_path / "tree")

    with pytest.raises((AssertionError, OSError), match=r"loop|symbolic links"):
        pack_folder(tmp_path / "tree", tmp_path / "p.ffr")


def test_a_packed_folder_needs_a_trailer_of_its_own_records(tmp_path: Path) -> None:
    with FileWriter(tmp_path / "p.ffr", 3) as writer:
        for record in (b"a", b"b", encode(folder(a=0))):
            writer.write_one(record)

    with pytest.raises(ValueError, match="1 records have no name"):
        PackedFolder(tmp_path / "p.ffr")
