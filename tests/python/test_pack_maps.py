"""Goal: the functions that come with packing do what they say, whoever calls them and how often.

Method: each over sources of several kinds, compared with what plain Python makes of the samples;
and the bytes of the result for one worker, for several, and after kills at random moments.
"""

import io
import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
import packing_functions
from cli import ok
from ffrecord.pack import maps, open_source, pack
from ffrecord.pack.maps._base import Map
from packing import begun, contents, records, refused, units_done, wait_for, write_classes

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image", reason="Pillow makes the pictures")

COUNT = 400
Row = dict[str, Any]


def rows() -> list[Row]:
    draws = random.Random(5)
    return [
        {
            "id": number,
            "text": f"text {draws.randrange(60)}",
            "score": None if number % 9 == 0 else draws.random(),
            "tokens": [draws.randrange(1000) for _ in range(draws.randrange(30))],
            "meta": {"lang": draws.choice(["en", "de"])},
        }
        for number in range(COUNT)
    ]


def picture(size: tuple[int, int], form: str, **options: Any) -> bytes:  # noqa: ANN401
    made = io.BytesIO()
    noise = random.Random(size[0]).randbytes(size[0] * size[1] * 3)
    Image.frombytes("RGB", size, noise).save(made, form, **options)
    return made.getvalue()


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    tokens = pa.list_(pa.field("item", pa.uint16(), nullable=False))
    table = pa.Table.from_pylist(rows())
    at = table.schema.get_field_index("tokens")
    table = table.set_column(at, "tokens", table["tokens"].cast(tokens))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=29)
    return tmp_path / "a.parquet"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(24):
        folder = tmp_path / "pictures" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        form = ("JPEG", "PNG", "WEBP", "GIF")[number % 4]
        (folder / f"{number:02}").write_bytes(picture((20 + 3 * number, 60), form))
    return tmp_path / "pictures"


def fitting(sample: Row) -> bool:
    return len(sample["tokens"]) > 5


CONDITIONS: dict[Any, Callable[[Row], bool]] = {
    "id % 2 == 0": lambda r: r["id"] % 2 == 0,
    "score is not None and score > 0.5": lambda r: r["score"] is not None and r["score"] > 0.5,
    "meta['lang'] == 'en' or not id < 300": lambda r: r["meta"]["lang"] == "en" or r["id"] >= 300,
    "10 <= len(tokens) <= 20": lambda r: 10 <= len(r["tokens"]) <= 20,
    "lower(text) in ('text 1', 'text 2')": lambda r: r["text"] in ("text 1", "text 2"),
    "startswith(text, 'text 1') and -id + 1 != 0": lambda r: (
        r["text"].startswith("text 1") and r["id"] != 1
    ),
    "5 in tokens": lambda r: 5 in r["tokens"],
    fitting: fitting,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_samples_are_kept_with_all_types(condition: Any, parquet: Path, tmp_path: Path) -> None:  # noqa: ANN401
    pack(parquet, tmp_path / "x.ffr", map=maps.keep(condition))
    found = ffrecord.read_table(tmp_path / "x.ffr")
    wanted = [row for row in rows() if CONDITIONS[condition](row)]
    assert found.to_pylist() == wanted
    assert found.schema.types == pq.read_table(parquet).schema.types


# Columns, and the rows for which Python finds each condition true.
COLUMNS = {
    "i": pa.array(range(4), pa.int8()),
    "a": pa.array([1, 2, 200, 0], pa.uint8()),
    "b": pa.array([2, 1, 100, 0], pa.uint8()),
    "l": pa.array([[60_000, 60_000], [None, 3], [], None], pa.list_(pa.uint16())),
    "s": pa.array([{"k": [1]}, {"k": [None]}, {"k": None}, None]),
    "p": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int8(), 2)),
    "o": pa.array([[1], [2, 3], [], [4]], pa.list_(pa.field("item", pa.uint8(), nullable=False))),
    "y": pa.array([b"ab", b"\xff", b"", b"\2\3"]),
    "h": pa.array([60_000.0, 1.0, 2.0, 3.0]).cast(pa.float16()),
}
EXPRESSIONS: dict[str, list[int]] = {
    "a - b < 0": [0],
    "a + b > 255": [2],
    "a * 2 == 400": [2],
    "-a < 0": [0, 1, 2],
    "h + h > 65536": [0],
    "l is not None and None in l": [1],
    "l is None or len(l) > 0 and l[0] is None": [1, 3],
    "i == 0 and sum(l) > 65536 or i == 3": [0, 3],
    "l == [60000, 60000]": [0],
    "s is not None and s['k'] is not None and s['k'][0] is not None": [0],
    "p == [3, 4]": [1],
    "p[0] + p[1] > 10": [2, 3],
    "o == [2, 3]": [1],
    "o in [[1], [4]]": [0, 3],
    "y == b'ab'": [0],
    "y != b'ab' and len(y) > 0": [1, 3],
    "y in [b'ab', b'']": [0, 2],
    "startswith(y, b'a')": [0],
}


@pytest.mark.parametrize("ext", ["parquet", "ffr"])
@pytest.mark.parametrize("condition", EXPRESSIONS)
def test_an_expression_is_pythons_whatever_the_source(
    condition: str, ext: str, tmp_path: Path
) -> None:
    """Readers give NumPy's values, whose numbers wrap around, and whose nulls compare as false."""
    table, path = pa.table(COLUMNS), tmp_path / f"a.{ext}"
    ffrecord.write_table(table, path) if ext == "ffr" else pq.write_table(table, path)
    pack(path, tmp_path / "x.ffr", map=maps.keep(condition))
    assert ffrecord.read_table(tmp_path / "x.ffr").equals(table.take(EXPRESSIONS[condition]))


@pytest.mark.parametrize("ext", ["parquet", "ffr"])
def test_a_comparison_with_null_is_an_error_whatever_the_source(ext: str, tmp_path: Path) -> None:
    table, path = pa.table(COLUMNS), tmp_path / f"a.{ext}"
    ffrecord.write_table(table, path) if ext == "ffr" else pq.write_table(table, path)
    for condition in ("i != 1 or l[0] < 9", "i != 1 or max(l) < 9", "i != 1 or not s['k'][0] < 9"):
        with pytest.raises(ValueError, match=r"sample 1 .*not supported between"):
            pack(path, tmp_path / "x.ffr", map=maps.keep(condition))


def test_rare_samples_are_kept_although_the_first_thousand_are_not(tmp_path: Path) -> None:
    pack(
        [{"n": number, "t": str(number)} for number in range(3000)],
        tmp_path / "x.ffr",
        map=maps.keep("n == 2999"),
    )
    assert records(tmp_path / "x.ffr") == [{"n": 2999, "t": "2999"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('false')", 'has "__import__'),
        ("id.real", "has 'id.real'"),
        ("(lambda: 1)()", "which expressions have not"),
        ("[x for x in tokens]", "which expressions have not"),
        ("id ** 9", "has 'id \\*\\* 9'|has 'Pow'"),
        ("id =", "is no expression"),
        ("", "is no expression"),
    ],
)
def test_an_expression_runs_nothing_else(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        maps.keep(text)


def test_an_error_in_a_function_names_sample_and_column(parquet: Path, tmp_path: Path) -> None:
    for condition, said in (("x > 1", "no column 'x'"), ("score > 0", "sample 0 failed")):
        message = refused(2, "--map", f"keep({condition!r})", parquet, tmp_path / "x.ffr")
        assert said in message
    for text, said in (
        ("resize(0)", "size is 0"),
        ("resize(size)", "arguments are numbers and quoted text"),
        ("resize(1)(2)", "map is"),
        ("nothing(1)", "has no nothing"),
        ("os:system('false')", "arguments are|cannot be called"),
    ):
        with pytest.raises((ValueError, TypeError), match=said.partition("|")[2] or said):
            pack(parquet, tmp_path / "x.ffr", map=text)


@pytest.mark.parametrize("form", ["", "JPEG", "PNG", "WEBP"])
def test_pictures_are_made_smaller_and_small_ones_stay(
    form: str, pictures: Path, tmp_path: Path
) -> None:
    ok("ffrecord-pack", pictures, tmp_path / "x.ffr", "--map", f"resize(40, format={form!r})")

    reader = ffrecord.open(tmp_path / "x.ffr")
    assert reader.schema == {"label": "i64", "name": "utf8", "payload": "bytes"}
    assert json.loads(reader.metadata()["classes"]) == ["cat", "dog"]
    for sample in reader:
        old = (pictures / sample["name"]).read_bytes()
        before, after = Image.open(io.BytesIO(old)), Image.open(io.BytesIO(sample["payload"]))
        wanted = form or (before.format if before.format != "GIF" else "JPEG")
        assert after.format == wanted
        assert min(after.size) == min(40, *before.size)
        assert abs(after.size[0] * before.size[1] - after.size[1] * before.size[0]) <= max(
            before.size
        )
        if min(before.size) <= 40 and wanted == before.format:
            assert bytes(sample["payload"]) == old


@pytest.mark.parametrize(("mode", "form"), [("I;16", "TIFF"), ("I;16", "PNG"), ("F", "TIFF")])
def test_deep_pictures_do_not_become_white(mode: str, form: str) -> None:
    made = io.BytesIO()
    values = np.full((30, 30), 40_000, "u2" if mode == "I;16" else "f4")
    Image.fromarray(values).save(made, form)
    with pytest.raises(ValueError, match=f"resize: pixels are {mode}, which JPEG has not"):
        maps.resize(10, format="JPEG")({"image": made.getvalue()})


def test_transparent_colours_stay_transparent() -> None:
    picture_ = Image.new("P", (30, 30), 1)
    picture_.putpalette([255, 0, 0, 0, 0, 255])
    made = io.BytesIO()
    picture_.save(made, "PNG", transparency=1)
    for form in ("PNG", "WEBP"):
        small = maps.resize(10, format=form)({"image": made.getvalue()})["image"]
        assert Image.open(io.BytesIO(small)).convert("RGBA").getpixel((5, 5))[3] == 0


def test_a_picture_that_is_damaged_fails_by_name(pictures: Path, tmp_path: Path) -> None:
    path = pictures / "cat" / "00"
    path.write_bytes(path.read_bytes()[:200])
    assert "cat/00" in refused(2, "--map", "resize(40)", pictures, tmp_path / "x.ffr")
    ok("ffrecord-pack", "--map", "resize(40)", "--max-failures", "1", pictures, tmp_path / "x.ffr")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == 23


def test_the_first_of_equal_samples_stays(parquet: Path, tmp_path: Path) -> None:
    seen: set[Any] = set()
    wanted = [r for r in rows() if r["text"] not in seen and not seen.add(r["text"])]  # type: ignore[func-returns-value]
    other = tmp_path / "b.parquet"
    pq.write_table(pq.read_table(parquet).slice(100, 50), other)
    for name in ("x.ffr", "parts"):
        summary = pack(
            [str(parquet), str(other)],
            tmp_path / name,
            map=maps.deduplicate("text"),
            part_size_bytes=500,
        )
        assert ffrecord.read_table(tmp_path / name).to_pylist() == wanted
        assert summary.skipped["samples by the function"] == COUNT + 50 - len(wanted)
        pack([str(parquet), str(other)], tmp_path / f"all-{name}", map="deduplicate()")
        assert len(ffrecord.open(tmp_path / f"all-{name}")) == COUNT


def test_a_function_can_be_used_for_several_packings(tmp_path: Path) -> None:
    lines = {"a": [0, 1, 2, 0, 1, 2], "b": [0, 0, 1, 1, 2, 2]}
    for name, numbers in lines.items():
        text = "".join(f'{{"x": {number}}}\n' for number in numbers)
        (tmp_path / f"{name}.jsonl").write_text(text)
    function, both = maps.deduplicate(), [maps.deduplicate("x"), maps.keep("x >= 0")]
    for number, (name, made) in enumerate(
        [("a", "x"), ("b", "x.ffr"), ("b", "x"), ("a", "x.ffr"), ("b", "x.ffr")]
    ):
        for map_ in (function, both):
            path = tmp_path / f"{number}{map_ is both}{made}"
            pack(tmp_path / f"{name}.jsonl", path, map=map_)
            assert [row["x"] for row in records(path)] == [0, 1, 2], (number, name)
    pack([{"x": 1}, {"x": 1}, {"x": 5}], tmp_path / "rows.ffr", map=function)
    assert [row["x"] for row in records(tmp_path / "rows.ffr")] == [1, 5]

    lists = maps.bins(4)
    for column in ("tokens", "input_ids"):
        pack(pa.table({column: [[1]]}), tmp_path / f"{column}.ffr", map=lists)
        assert records(tmp_path / f"{column}.ffr")[0][column] == [1]


@pytest.mark.parametrize("order", ["aa", "aba", "baab"])
@pytest.mark.parametrize("name", ["x.ffr", "parts"])
def test_a_file_that_is_given_twice_has_the_same_samples_twice(
    order: str, name: str, tmp_path: Path
) -> None:
    numbers = {"a": range(30), "b": range(20, 50)}
    for letter, some in numbers.items():
        text = "".join(f'{{"x": {number}}}\n' for number in some)
        (tmp_path / f"{letter}.jsonl").write_text(text)
    paths = [str(tmp_path / f"{letter}.jsonl") for letter in order]
    pack(paths, tmp_path / name, map=maps.deduplicate(), part_size_bytes=70)

    wanted = list(dict.fromkeys(number for letter in order for number in numbers[letter]))
    assert [row["x"] for row in records(tmp_path / name)] == wanted


class ChangesWhatItSees(maps.deduplicate):
    """Lets another program write to the input while it looks."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def look(self, samples: Any) -> None:  # noqa: ANN401, D102
        super().look(samples)
        self.path.write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n{"x": 4}\n')


def test_an_input_that_changes_while_it_is_looked_at_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n{"x": 1}\n{"x": 3}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl has changed since packing it began"):
        pack(path, tmp_path / "x", map=ChangesWhatItSees(path))
    assert not (tmp_path / "x").exists()


def test_values_that_are_not_the_same_are_not_equal(tmp_path: Path) -> None:
    values: list[Any] = [[], [[]], ["a", "b"], ["ab"], ["a", "", "b"], ["", "ab"], [None], ["None"]]
    made = pa.Table.from_pylist(
        [
            {"x": json.dumps(v), "y": v if all(isinstance(i, str) for i in v) else None}
            for v in values
        ]
    )
    pack(made, tmp_path / "x.ffr", map=maps.deduplicate())
    assert len(ffrecord.open(tmp_path / "x.ffr")) == len(values)


@pytest.mark.parametrize(
    "kind", ["objects", "nested objects", "tensors", "tensors of bf16", "masked"]
)
def test_values_are_compared_by_what_is_in_them(kind: str, tmp_path: Path) -> None:
    """Not by the addresses in an array of objects, nor by the few numbers that a text shows."""
    torch = pytest.importorskip("torch") if kind.startswith("tensors") else None

    def value(number: int) -> Any:  # noqa: ANN401
        if kind == "objects":
            return np.array([f"the text {number}"], object)
        if kind == "nested objects":
            return [np.array([f"the text {number}", None], object)]
        if kind == "masked":
            return np.ma.array([number, 5], mask=[False, True]).filled(0)
        assert torch is not None
        tensor = torch.zeros(3000, dtype=torch.bfloat16 if "bf16" in kind else torch.int32)
        tensor[1500] = number
        return tensor

    function = maps.deduplicate()
    kept = [function({"x": value(number // 2)}) is not None for number in range(100)]
    assert kept == [True, False] * 50


def test_values_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(TypeError, match="object: name the columns to compare"):
        maps.deduplicate()({"x": object()})
    masked = [np.ma.array([value, 1], mask=[True, False]) for value in (1, 2)]
    function = maps.deduplicate()
    assert [function({"x": each}) is None for each in masked] == [False, True]


def test_bins_have_all_documents_and_little_room(parquet: Path, tmp_path: Path) -> None:
    pack(parquet, tmp_path / "x.ffr", map=maps.bins(64))

    found = ffrecord.read_table(tmp_path / "x.ffr")
    assert found.schema.field("tokens").type.value_type == pa.uint16()
    documents, sizes = [], []
    for row in found.to_pylist():
        ends = np.cumsum(row["lengths"])
        assert ends[-1] == len(row["tokens"]) <= 64
        sizes.append(len(row["tokens"]))
        documents += [p.tolist() for p in np.split(np.array(row["tokens"]), ends[:-1])]
    assert sorted(documents) == sorted(r["tokens"] for r in rows() if r["tokens"])
    assert sum(sizes) > 0.95 * 64 * len(sizes)


def test_a_long_document_is_cut_into_bins(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [list(range(25)), [1, 2], None]})
    summary = pack(table, tmp_path / "x.ffr", map=maps.bins(10))
    found = ffrecord.read_table(tmp_path / "x.ffr").to_pylist()
    assert [row["lengths"] for row in found] == [[10], [10], [5, 2]]
    assert [n for row in found for n in row["input_ids"]] == [*range(25), 1, 2]
    assert summary.skipped == {"samples by the function": 1}


@pytest.mark.parametrize("ext", ["parquet", "ffr"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.bool_()])
def test_a_null_in_a_list_is_not_put_into_a_bin_as_a_number(
    kind: Any,  # noqa: ANN401
    ext: str,
    tmp_path: Path,
) -> None:
    table = pa.table({"tokens": pa.array([[True], [True, None, False]], pa.list_(pa.bool_()))})
    number = pa.field("tokens", pa.list_(kind))
    table = table.cast(pa.schema([number]))
    path = tmp_path / f"a.{ext}"
    ffrecord.write_table(table, path) if ext == "ffr" else pq.write_table(table, path)
    with pytest.raises(ValueError, match=r"sample 1 .*the list in 'tokens' has a null"):
        pack(path, tmp_path / "x", map=maps.bins(4))


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ns", "UTC"), pa.time64("us")])
def test_bins_have_numbers_alone(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    table = pa.table({"tokens": pa.array([[1]], pa.list_(kind))})
    with pytest.raises(ValueError, match="no list of numbers"):
        pack(table, tmp_path / "x.ffr", map=maps.bins(4))


def as_tokens(sample: Any) -> Any:  # noqa: ANN401
    return {"tokens": sample["value"]}


as_tokens.schema = pa.schema([("tokens", pa.list_(pa.uint16()))])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1.5, 2.0], "is u16, the value is float64"),
        (np.array([70_000, 5]), "70000 does not fit u16"),
        ([-1], "-1 does not fit u16"),
        (["12"], "is u16, the value is <U2"),
        ([[1, 2], [3, 4]], r"has shape \(2, 2\), and must be flat"),
    ],
)
def test_bins_change_no_number(value: Any, said: str, tmp_path: Path) -> None:  # noqa: ANN401
    rows = [{"value": value}]
    with pytest.raises(ValueError, match=f"the list in 'tokens'.*{said}"):
        pack(rows, tmp_path / "x.ffr", map=[as_tokens, maps.bins(4)])
    assert not (tmp_path / "x.ffr").exists()


def two_texts(sample: Any) -> Any:  # noqa: ANN401
    yield sample
    yield {**sample, "x": None if sample["x"] == [7] else sample["x"]}


def not_seven(sample: Any) -> Any:  # noqa: ANN401
    if 7 in sample["tokens"]:
        raise ValueError("there is a seven")
    return {"all": list(sample["tokens"])}


class pairs(Map):
    """Puts two samples into each row; null is an error."""

    gathers = True

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:  # noqa: D102
        self._held: list[int] = []

    def columns(self, source: Any) -> Any:  # noqa: ANN401, D102
        return pa.schema([("tokens", pa.list_(pa.int64()))])

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401, D102
        self._held += list(sample["x"])
        return list(self.rest()) if len(self._held) >= 4 else []

    def rest(self) -> Any:  # noqa: ANN401, D102
        held, self._held = self._held, []
        return [{"tokens": held}] if held else []


not_seven.schema = pa.schema([("all", pa.list_(pa.int64()))])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "functions", [[two_texts, pairs()], [pairs(), not_seven], [two_texts, pairs(), not_seven]]
)
def test_a_failure_is_not_allowed_once_samples_are_in_the_same_rows(
    functions: list[Any], tmp_path: Path
) -> None:
    table = pa.table({"x": [[n] for n in range(12)]})
    with pytest.raises((ValueError, TypeError), match=r"seven|NoneType|cannot be left out"):
        pack(table, tmp_path / "x.ffr", map=functions, max_failures=100)
    assert not (tmp_path / "x.ffr").exists()


@pytest.mark.parametrize("block", [0, 7])
def test_a_tokenizer_that_cuts_and_fills_up_keeps_all_of_a_text(block: int, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers makes the tokens")
    words = {"a": 0, "b": 70_000, "[PAD]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[PAD]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=5)
    made.save(str(tmp_path / "tokenizer.json"))
    texts = [["a", "b"] * number + ["a"] for number in range(9)]
    rows_ = [{"text": " ".join(words_)} for words_ in texts]
    pack(rows_, tmp_path / "x.ffr", map=maps.tokenize(str(tmp_path), block=block))

    found = ffrecord.read_table(tmp_path / "x.ffr")["tokens"].to_pylist()
    wanted = [words[word] for text in texts for word in text]
    assert [token for row in found for token in row] == wanted


class Counting:
    """Must be made before it is called."""

    def __init__(self) -> None:
        self.step = 1

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401, D102
        return {"id": sample["id"] + self.step}


def test_a_class_among_several_functions_is_made(parquet: Path, tmp_path: Path) -> None:
    for number, functions in enumerate(
        [[maps.keep("id < 3"), Counting], [Counting, maps.keep("id < 4")]]
    ):
        pack(parquet, tmp_path / f"{number}", map=functions)
        assert [row["id"] for row in records(tmp_path / f"{number}")] == [1, 2, 3]


def test_functions_are_called_one_after_the_other(parquet: Path, tmp_path: Path) -> None:
    ok(
        *("ffrecord-pack", parquet, tmp_path / "x.ffr", "--map", "deduplicate('text')"),
        *("--map", "keep('len(tokens) > 0')", "--map", "bins(50)"),
    )
    seen: set[Any] = set()
    kept = [r for r in rows() if r["text"] not in seen and not seen.add(r["text"])]  # type: ignore[func-returns-value]
    found = ffrecord.read_table(tmp_path / "x.ffr").to_pylist()
    assert sum(len(row["tokens"]) for row in found) == sum(len(r["tokens"]) for r in kept)
    with pytest.raises(ValueError, match="deduplicate must be the first"):
        maps.chain(maps.keep("id"), maps.deduplicate())


def test_columns_that_do_not_fit_are_refused(parquet: Path, tmp_path: Path) -> None:
    for function, said in (
        (maps.bins(5, "text"), "'text' is string, no list of numbers"),
        (maps.bins(5, "none"), "takes the column none"),
        (maps.resize(5), "takes the column image or payload"),
    ):
        with pytest.raises(ValueError, match=said):
            pack(parquet, tmp_path / "x.ffr", map=function)


FUNCTIONS: dict[str, list[str]] = {
    "keep": ["keep('id % 3 != 0')"],
    "deduplicate": ["deduplicate('text')"],
    "bins": ["bins(64)"],
    "all": ["deduplicate('text')", "keep('len(tokens) > 3')", "bins(32)"],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_number_of_workers_makes_the_same_bytes_killed_or_not(
    name: str, parquet: Path, tmp_path: Path, seed: int
) -> None:
    size_bytes = parquet.stat().st_size // 12
    for workers in (1, 3):
        made = tmp_path / f"{workers}"
        source = open_source(parquet)
        pack(source, made, map=FUNCTIONS[name], workers=workers, part_size_bytes=size_bytes)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    assert len(contents(tmp_path / "1")) > 6

    arguments = ["--part-size", f"{size_bytes}B"]
    arguments += [word for text in FUNCTIONS[name] for word in ("--map", text)]
    draws = random.Random(seed)
    for done in (1, 4):
        workers = draws.choice((1, 2))
        process = begun(parquet, tmp_path / "x", *arguments, "--workers", str(workers))
        wait_for(units_done(tmp_path / "x", done), process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
            os.utime(lease, (0, 0))  # As if a minute had passed.
    process = begun(parquet, tmp_path / "x", *arguments)
    said = process.communicate()[1]

    assert process.returncode == 0, said
    assert contents(tmp_path / "x") == contents(tmp_path / "1")


def test_pictures_are_the_same_bytes_with_any_number_of_workers(
    pictures: Path, tmp_path: Path
) -> None:
    for workers in (1, 2):
        made = tmp_path / f"{workers}"
        pack(pictures, made, map="resize(30)", workers=workers, part_size_bytes=30_000)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(contents(tmp_path / "1")) > 3


def test_other_arguments_are_another_function(parquet: Path, tmp_path: Path) -> None:
    arguments = ["--part-size", "1000B", "--map"]
    process = begun(parquet, tmp_path / "x", *arguments, "bins(64)")
    wait_for(units_done(tmp_path / "x", 2), process)
    os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    process.communicate()
    for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
        os.utime(lease, (0, 0))
    if not (tmp_path / "x").exists():
        process = begun(parquet, tmp_path / "x", *arguments, "bins(65)")
        assert b"function's code is" in process.communicate()[1]


@pytest.mark.parametrize("before", [(), ("keep('len(name) > 0')",)])
def test_an_object_of_a_class_gets_all_samples_of_its_process(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """Also the first ones, which another object has shown the columns of."""
    (tmp_path / "files").mkdir()
    files = write_classes(tmp_path / "files")
    pack(files, tmp_path / "x", map=[*before, packing_functions.Numbered])

    assert [row["number"] for row in records(tmp_path / "x")] == list(range(1, 301))
