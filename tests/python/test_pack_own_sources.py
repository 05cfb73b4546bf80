"""Goal: a source of the user's own needs what the page says, and no more; else its error says what.

Method: pack classes with and without each attribute, to a file and to a folder, and the example of
the page; read the records back.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord.pack import Source, pack

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "packing.md"


class Least:
    """What the page calls required."""

    def __init__(self) -> None:
        self.schema = {"name": "utf8"}

    def samples(self) -> Iterator[Any]:
        """Yield pairs."""
        for number in range(5):
            yield {"name": f"n{number}"}, 0


class Derived(Least, Source):  # type: ignore[misc]
    """Likewise, of a class that names the interface."""


class Bytes(Least):
    """Records without columns."""

    def __init__(self) -> None:
        self.schema = {}

    def samples(self) -> Iterator[Any]:
        """Yield pairs."""
        for number in range(5):
            yield b"n%d" % number, 0


class Full(Least):
    """With every attribute of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.key = "name"
        self.takes_empty_keys = False
        self.classes = ("a", "b")
        self.metadata = {"from": b"here"}
        self.size_bytes = 5
        self.types = {"name": "names"}
        self.skipped = Counter({"blank lines": 2, "others": 0})


KINDS: list[Callable[[], Any]] = [Least, Derived, Bytes, Full]


@pytest.mark.parametrize("name", ["all.ffr", "parts"])
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_a_source_lacks_have_defaults(
    kind: Callable[[], Any], name: str, tmp_path: Path
) -> None:
    seen: list[int] = []

    summary = pack(kind(), tmp_path / name, progress=seen.append)

    reader = ffrecord.open(tmp_path / name)
    names = [bytes(each).decode() if kind is Bytes else each["name"] for each in reader]
    assert names == [f"n{number}" for number in range(5)]
    assert summary.record_count == len(seen) == 5
    if kind is Full:
        assert reader.find("n3") == 3
        assert reader.metadata() == {
            **{"from": b"here", "classes": b'["a", "b"]'},
            "ffrecord.types": b'{"name": "names"}',
        }
        assert summary.skipped == {"blank lines": 2}


def test_the_example_of_the_page_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)

    exec(next(block for block in code if "class Squares" in block), {})

    assert ffrecord.open("squares.ffr")[30] == {"number": 30, "square": 900}


def test_every_attribute_of_the_interface_is_on_the_page() -> None:
    text = PAGE.read_text()
    names = {name for name in (*Source.__annotations__, "samples") if name[0] != "_"}
    assert "classes" in names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (type("No", (), {"samples": Least.samples}), "is no source: it has no 'schema'"),
        (type("No", (), {"schema": {}}), "is no source: it has no 'samples'"),
        (
            type("No", (Least,), {"samples": lambda _: iter([{"name": "a", "more": 1}])}),
            "yields dict, not pairs of a sample and the bytes",
        ),
        (type("No", (Bytes,), {"samples": lambda _: iter([b"ab"])}), "yields bytes, not pairs"),
    ],
)
def test_what_is_no_source_is_refused_by_name(
    kind: Callable[[], Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=complaint):
        pack(kind(), tmp_path / "all.ffr")
    assert list(tmp_path.iterdir()) == []
