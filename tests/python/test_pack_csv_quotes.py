"""Goal: no quote in a CSV makes one value of several, or changes one; no row of it is left out.

Method: a slow reader of quotes, character by character, against the packing's over random texts in
random pieces; files with quotes that are not closed; what pyarrow writes, packed and read again.
"""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord.pack import pack
from ffrecord.pack._csv_quotes import Quotes, blocks_of
from packing import refused

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.csv")

TEXTS = st.text(st.sampled_from('""",\nab'), max_size=14)


def trouble_in(text: str) -> str:
    inside, at_begin, at = False, True, 0
    while at < len(text):
        char = text[at]
        if inside and char == '"':
            if text[at + 1 : at + 2] == '"':
                at += 2
                continue
            if text[at + 1 : at + 2] not in ("", ",", "\n"):
                return "goes on"
            inside = at_begin = False
        elif not inside and char == '"' and at_begin:
            inside = True
        elif not inside:
            at_begin = char in ",\n"
        at += 1
    return "none ends it" if inside else ""


@given(text=TEXTS, step=st.integers(1, 6))
def test_quotes_are_checked_as_by_a_reader_of_each_character(text: str, step: int) -> None:
    quotes, data = Quotes("a.csv", ","), text.encode()
    said = ""
    try:
        for at in range(0, len(data), step):
            quotes.take(data[at : at + step])
        quotes.finish()
    except ValueError as error:
        said = str(error)
    wanted = trouble_in(text)
    assert wanted in said if wanted else not said


@given(text=TEXTS.filter(lambda text: not trouble_in(text)), size=st.integers(1, 6))
def test_blocks_have_whole_rows(text: str, size: int) -> None:
    blocks = list(blocks_of(io.BytesIO(text.encode()), "a.csv", ",", size))
    assert b"".join(blocks) == text.encode()
    for block in blocks[:-1]:
        assert block.endswith(b"\n") and not trouble_in(block.decode())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_rows_are_those_of_the_whole_file_whatever_ends_them(
    tmp_path: Path, end: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [dict.fromkeys(names, value) for value in ('"x\ny"', "", '"p""q"', "z", "") * 3]
    lines = [",".join(names), *(",".join(row.values()) for row in rows)]
    (tmp_path / "a.csv").write_text(end.join(lines) + end, "utf-8", newline="")
    read = {'"x\ny"': "x\ny", "": None, '"p""q"': 'p"q', "z": "z"}
    for size in (1, 5, 1 << 20):
        monkeypatch.setattr("ffrecord.pack._csv._BLOCK_BYTES", size)
        pack(tmp_path / "a.csv", tmp_path / f"{size}.ffr")
        found = ffrecord.read_table(tmp_path / f"{size}.ffr").to_pylist()
        assert found == [{name: read[value] for name, value in row.items()} for row in rows]


def test_a_row_of_many_bytes_is_read_and_one_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1," + "x" * (9 << 20) + "\n")
    pack(tmp_path / "a.csv", tmp_path / "b.ffr")
    assert len(ffrecord.open(tmp_path / "b.ffr")[0]["b"]) == 9 << 20
    monkeypatch.setattr("ffrecord.pack._csv_quotes._ROW_BYTES_MAX", 1 << 20)
    (tmp_path / "a.csv").write_text('a,b\n1,"' + "x\n" * (5 << 20))
    with pytest.raises(ValueError, match=r"a\.csv, line 2, from a quote on that is not closed"):
        pack(tmp_path / "a.csv", tmp_path / "c.ffr")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('a,b\n1,2\n3,"4\n5,6\n7,8\n', "line 3"),
        ('a,b\n3,"4\n5,6\n7,8"9\n', "line 4"),
        ('a\n"x"y\n', "line 2"),
        ("a,b\n" + '1,"two\n2"\n' * 200_000 + '3,"4\n', "line 400002"),
    ],
)
def test_a_quote_that_joins_rows_is_refused_with_its_line(
    tmp_path: Path, content: str, line: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert line in refused(2, tmp_path / "a.csv", tmp_path / "b.ffr")


def test_quotes_in_text_that_is_not_quoted_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('\ufeff"a",b\n5" disk,"x ""y"", z"\n ""q"",\n', "utf-8")
    pack(tmp_path / "a.csv", tmp_path / "b.ffr")
    assert ffrecord.read_table(tmp_path / "b.ffr").to_pylist() == [
        {"a": '5" disk', "b": 'x "y", z'},
        {"a": ' ""q""', "b": None},
    ]


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_rows_of_nulls_that_pyarrow_writes_are_rows(tmp_path: Path, names: tuple[str, ...]) -> None:
    table = pa.table(dict.fromkeys(names, pa.array([1, None, None, 2, None])))
    pa.csv.write_csv(table, tmp_path / "a.csv")
    pack(tmp_path / "a.csv", tmp_path / "b.ffr")
    assert ffrecord.read_table(tmp_path / "b.ffr").equals(table)


def test_a_blank_line_before_the_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\na\n1\n")
    assert "blank line" in refused(2, tmp_path / "a.csv", tmp_path / "b.ffr")
