"""Goal: pictures whose labels are in other files (COCO, YOLO) become records that have both.

Method: datasets as their formats are described, in each of the usual layouts, cut at many places
and packed by several workers, compared with what they were made of; and datasets that lack
something, lead outside, or contradict themselves, each refused by name.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, _json_arrays, open_source, pack
from ffrecord.pack._json_arrays import elements_of
from packing import contents, plain, refused

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

COUNT = 120
Row = dict[str, Any]


def coco(folder: Path, pictures: str = "train2017", form: Any = None) -> tuple[Path, list[Row]]:  # noqa: ANN401
    """Annotations in another order than the pictures; outlines and masks; two categories."""
    draws = random.Random(2)
    (folder / pictures).mkdir(parents=True, exist_ok=True)
    (folder / "annotations").mkdir(exist_ok=True)
    images, notes, rows = [], [], []
    for number in range(COUNT):
        name, data = f"grün {number}.jpg", draws.randbytes(draws.randrange(1, 3000))
        (folder / pictures / name).write_bytes(data)
        image = {"id": 1000 - number, "file_name": name, "width": number, "license": None}
        images.append(image)
        own = []
        for _ in range(number % 4):
            mask: Any = {"counts": [1, 2], "size": [3, 4]}
            note = {
                "id": len(notes),
                "image_id": 1000 - number,
                "category_id": 7 if number % 3 else 3,
            }
            note |= {"bbox": [1.5, 2, 3, 4], "segmentation": [[1.5, 2]] if number % 2 else mask}
            notes.append(note)
            kept = {name: value for name, value in note.items() if name != "image_id"}
            outline = kept.pop("segmentation")
            kept |= {"segmentation": None, "rle": None}
            kept["segmentation" if isinstance(outline, list) else "rle"] = outline
            own.append({**kept, "label": 1 if number % 3 else 0})
        about = {"id": image["id"], "width": number, "license": None}
        rows.append({"name": name, "image": data, **about, "annotations": own})
    draws.shuffle(notes)
    for row in rows:
        order = [note["id"] for note in notes]
        row["annotations"].sort(key=lambda note: order.index(note["id"]))
    made = {
        "info": {"year": 2017},
        "annotations": notes,
        "images": images,
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
    }
    path = folder / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps(made, **(form or {})))
    return path, rows


def yolo(folder: Path, *, outlines: bool = False) -> tuple[Path, list[Row]]:
    """Pictures in folders, some of them without objects, or without a text."""
    (folder / "labels").mkdir(parents=True)
    (folder / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    rows = []
    shape = [0.5, 0.25, 1.0, 0.125, 1e-3, 0.75] if outlines else [0.5, 0.25, 1.0, 0.125]
    for number in range(COUNT):
        name = f"{number % 3}/{number:03}.jpg"
        for inner in ("images", "labels"):
            (folder / inner / str(number % 3)).mkdir(parents=True, exist_ok=True)
        data = b"%d" % number * (number + 1)
        (folder / "images" / name).write_bytes(data)
        found = [i % 2 for i in range(number % 3)]
        lines = [f"{label} {' '.join(map(str, shape))}\n" for label in found]
        if number % 5:
            (folder / "labels" / name).with_suffix(".txt").write_text("\n".join(lines))
        else:
            found = []
        shapes = [shape] * len(found)
        rows.append(
            {
                "name": name,
                "image": data,
                "label": found,
                ("outline" if outlines else "box"): shapes,
            }
        )
    return folder, sorted(rows, key=lambda row: row["name"])


def yolo_flat(folder: Path) -> tuple[Path, list[Row]]:
    """As a split that was exported: `train/images`, `train/labels`."""
    made, rows = yolo(folder / "train")
    for name in ("0", "1", "2"):
        for inner in ("images", "labels"):
            for path in (made / inner / name).iterdir():
                path.rename(made / inner / path.name)
            (made / inner / name).rmdir()
    (made / "data.yaml").rename(folder / "data.yaml")
    flat = [{**row, "name": row["name"][2:]} for row in rows]
    return folder, sorted(flat, key=lambda row: row["name"])


SOURCES: dict[str, Callable[[Path], tuple[Path, list[Row]]]] = {
    "COCO": coco,
    "COCO with pictures beside it": lambda folder: coco(folder, "annotations"),
    "COCO with its pictures in a folder": lambda folder: coco(folder, "images/train2017"),
    "COCO on many lines": lambda folder: coco(folder, form={"indent": 1, "ensure_ascii": False}),
    "YOLO with boxes": lambda folder: yolo_flat(folder / "set"),
    "YOLO with outlines": lambda folder: yolo_outlines(folder / "set"),
}


def yolo_outlines(folder: Path) -> tuple[Path, list[Row]]:
    """The splits of `images` and `labels`, of which there is but one."""
    made, rows = yolo(folder, outlines=True)
    for inner in ("images", "labels"):
        (made / inner).rename(made / "train")
        (made / inner).mkdir()
        (made / "train").rename(made / inner / "train")
    return made, rows


EACH = pytest.mark.parametrize("kind", SOURCES)


@pytest.mark.parametrize("destination", ["x.ffr", "x"])
def test_files_among_pictures_that_are_none_are_counted(destination: str, tmp_path: Path) -> None:
    path, rows = yolo_flat(tmp_path / "set")
    for name in ("notes.txt", "film.mp4", ".hidden"):
        (path / "train" / "images" / name).write_text("x")

    summary = pack(path, tmp_path / destination, part_size_bytes=1000)

    assert summary.record_count == len(rows)
    assert summary.skipped == {"files that are no pictures": 2, "hidden files and folders": 1}


@EACH
def test_a_record_has_the_picture_and_all_that_is_said_of_it(kind: str, tmp_path: Path) -> None:
    path, rows = SOURCES[kind](tmp_path)

    line = ok("ffrecord-pack", path, tmp_path / "x.ffr")

    assert ffrecord.read_table(tmp_path / "x.ffr").to_pylist() == rows
    assert "2 classes: 0 cat, 1 dog" in line
    reader = ffrecord.open(tmp_path / "x.ffr")
    assert json.loads(reader.metadata()["classes"]) == ["cat", "dog"]
    assert reader.find(rows[70]["name"]) == 70


@EACH
def test_parts_and_workers_change_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_json_arrays, "_PIECE_BYTES", 100)
    path, rows = SOURCES[kind](tmp_path)
    source: Any = open_source(path)
    for size_bytes in (1, 10_000):
        found: list[Row] = []
        for part in source.cuts(size_bytes):
            assert part.first == len(found)
            found += plain(source.samples_of(part, Counter()))
        assert found == rows
    for workers in (1, 2):
        pack(path, tmp_path / f"{workers}", workers=workers, part_size_bytes=5000)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert ffrecord.read_table(tmp_path / "1").to_pylist() == rows
    assert len(contents(tmp_path / "1")) > 3


def test_labels_alone_need_no_pictures(tmp_path: Path) -> None:
    path, rows = coco(tmp_path)
    for each in (tmp_path / "train2017").iterdir():
        each.unlink()
    assert "--drop image" in refused(2, path, tmp_path / "x.ffr")
    pack(open_source(path, SourceOptions(drop=("image",))), tmp_path / "x.ffr")
    found = ffrecord.read_table(tmp_path / "x.ffr").to_pylist()
    assert found == [{n: v for n, v in row.items() if n != "image"} for row in rows]


def _changed(name: str, number: int, **values: Any) -> Callable[[Any], None]:  # noqa: ANN401
    return lambda made: made[name][number].update(values)


# What is done to the JSON, and what is said.
WRONG: dict[str, tuple[Callable[[Any], None], str]] = {
    "a name outside": (_changed("images", 3, file_name="../../etc/passwd"), "leads outside"),
    "an absolute name": (_changed("images", 3, file_name="/etc/passwd"), "leads outside"),
    "no name": (_changed("images", 3, file_name=None), "image 4 has no file_name"),
    "an id twice": (_changed("images", 3, id=1000), "two images with the id 1000"),
    "an id that is text": (_changed("images", 3, id="x"), "images has the id 'x'"),
    "an image that is not there": (_changed("annotations", 3, image_id=5), "of the image 5"),
    "a large id": (_changed("annotations", 3, image_id=1 << 70), "the image_id"),
    "a category that is not there": (_changed("annotations", 3, category_id=5), "no category 5"),
    "a category twice": (_changed("categories", 0, id=3), "the category 3 is there twice"),
    "values of several kinds": (
        _changed("annotations", 3, bbox="all"),
        "'annotations.bbox' was list",
    ),
    "no images": (lambda made: made["images"].clear(), "of the image"),
    "nothing": (lambda made: (made["images"].clear(), made["annotations"].clear()), "no images"),
    "an image that is a list": (lambda made: made["images"].append([]), "images has the id None"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_contradicts_itself_is_refused(what: str, tmp_path: Path) -> None:
    path, _ = coco(tmp_path)
    change, said = WRONG[what]
    made = json.loads(path.read_text())
    change(made)
    path.write_text(json.dumps(made))
    with pytest.raises(ValueError, match=said):
        pack(path, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"width": 1, "width": 2', "the key 'width' is there twice"),
        ('"width": 1e400', "too large"),
        ('"width": 1}], "images": [{"id": 2, "file_name": "a.jpg"', "the key 'images' is there"),
    ],
)
def test_values_that_a_parser_would_lose_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    path = tmp_path / "x.json"
    path.write_text(f'{{"images": [{{"id": 1, "file_name": "a.jpg", {text}}}], "annotations": []}}')
    with pytest.raises(ValueError, match=said):
        pack(path, tmp_path / "x.ffr")


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path, _ = coco(tmp_path)
    text = path.read_bytes()
    for size in (len(text) - 1, len(text) // 2, len(text) // 3):
        path.write_bytes(text[:size])
        with pytest.raises(CorruptionError, match=r"instances_train2017.* is truncated"):
            pack(path, tmp_path / "x")
    path.write_bytes(text + b"{}")
    with pytest.raises(CorruptionError, match="more behind its end"):
        pack(path, tmp_path / "x")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 0 0 1 1", "below 2"),
        ("-1 0 0 1 1", "not the number of a class"),
        ("0 0 0 1", "at least four numbers"),
        ("0 0 0 1 nan", "line 1 is '0 0 0 1 nan'"),
        ("cat 0 0 1 1", "line 1"),
    ],
)
def test_a_line_that_is_no_label_is_refused(line: str, said: str, tmp_path: Path) -> None:
    path, _ = yolo_flat(tmp_path / "set")
    (path / "train" / "labels" / "001.txt").write_text(line)
    with pytest.raises(ValueError, match=said):
        pack(path, tmp_path / "x")


def test_what_does_not_fit_in_a_folder_is_refused(tmp_path: Path) -> None:
    path, _ = yolo_flat(tmp_path / "set")
    (path / "train" / "labels" / "lost.txt").write_text("0 0 0 1 1")
    assert "lost.txt has labels, and there is no picture" in refused(2, path, tmp_path / "x.ffr")
    (path / "train" / "labels" / "lost.txt").unlink()
    (path / "data.yaml").write_text("names: !!python/object/apply:os.system [false]")
    assert "data.yaml is no list of classes" in refused(2, path, tmp_path / "x.ffr")
    (path / "data.yaml").write_text("names: {0: a, 2: b}")
    assert "no list of classes, nor 0, 1" in refused(2, path, tmp_path / "x.ffr")
    (path / "data.yaml").write_text("names: {0: a, 0: b}")
    assert "no list of classes: a key is there twice" in refused(2, path, tmp_path / "x.ffr")
    (path / "data.yaml").write_text("names: [[a], b]")
    assert "no list of classes, nor 0, 1" in refused(2, path, tmp_path / "x.ffr")
    (path / "data.yaml").unlink()
    (path / "classes.txt").write_text("cat\n\ndog\n")
    assert "classes.txt has a blank line" in refused(2, path, tmp_path / "x.ffr")


@pytest.mark.parametrize(
    "text", ["names: [no, 1.10, null]\n", "names: {0: no, 1: 1.10, 2: null}\n", "no\n1.10\nnull\n"]
)
def test_names_of_classes_are_what_is_written(text: str, tmp_path: Path) -> None:
    """YAML takes them for a boolean, a number and nothing."""
    path = written(tmp_path / "set", ["images/a.jpg", "labels/a.txt"])
    (path / ("data.yaml" if "names" in text else "classes.txt")).write_text(text)
    assert pack(path, tmp_path / "x.ffr").classes == ("no", "1.10", "null")


def test_marks_of_editors_and_files_of_macos_are_no_text(tmp_path: Path) -> None:
    """A mark of the order of bytes before a text, and a hidden file beside each."""
    path = written(tmp_path / "set", ["images/a.jpg", "images/._a.jpg", "labels/._a.txt"])
    (path / "classes.txt").write_bytes(b"\xef\xbb\xbfcat\n")
    (path / "labels" / "a.txt").write_bytes(b"\xef\xbb\xbf0 .5 .5 .1 .1\n")
    assert pack(path, tmp_path / "x.ffr").classes == ("cat",)
    (row,) = ffrecord.read_table(tmp_path / "x.ffr").to_pylist()
    assert (row["name"], row["label"]) == ("a.jpg", [0])


def test_one_of_several_splits_is_asked_for(tmp_path: Path) -> None:
    path, rows = yolo_flat(tmp_path / "set")
    (path / "valid" / "images").mkdir(parents=True)
    (path / "valid" / "labels").mkdir()
    (path / "valid" / "images" / "x.png").write_bytes(b"x")
    message = refused(2, path, tmp_path / "x.ffr")
    assert "has the splits train, valid: pack each on its own, such as with --split" in message
    assert "not test" in refused(2, path, tmp_path / "x.ffr", "--split", "test")
    ok("ffrecord-pack", path, tmp_path / "x.ffr", "--split", "train")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == len(rows)
    pack(open_source(path, SourceOptions(split="valid")), tmp_path / "y.ffr")
    found = ffrecord.read_table(tmp_path / "y.ffr").to_pylist()
    assert found == [{"name": "x.png", "image": b"x", "label": [], "box": []}]


def test_a_picture_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    path, _ = coco(tmp_path)
    source = open_source(path)
    (tmp_path / "train2017" / "grün 50.jpg").write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"grün 50\.jpg was changed after it was listed"):
        pack(source, tmp_path / "x.ffr")


def test_elements_of_a_large_object_are_those_of_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draws = random.Random(seed)
    values: list[Any] = [
        1.5,
        123456789,
        -7,
        'ü\U0001f600"[]{}',
        [],
        {},
        [[1], {"a": "}"}],
        None,
        True,
    ]
    for piece in (1, 7, 64):
        monkeypatch.setattr(_json_arrays, "_PIECE_BYTES", piece)
        made = {
            f"f{n}": draws.choices(values, k=draws.randrange(9)) if n % 2 else draws.choice(values)
            for n in range(20)
        }
        options = {"indent": draws.choice([None, 2]), "ensure_ascii": draws.random() < 0.5}
        data = json.dumps(made, **options).encode()
        (tmp_path / "a").write_bytes(data)
        found: dict[str, Any] = {}
        with open(tmp_path / "a", "rb") as file:
            for field, value, begin, size_bytes in elements_of(file):
                assert json.loads(data[begin : begin + size_bytes]) == value
                found.setdefault(field, []).append(value)
        arrays = {n: v if isinstance(v, list) else [v] for n, v in made.items()}
        assert found == {n: v for n, v in arrays.items() if v}


# Folders of which a part would be left out, and what is said of them.
PARTIAL: dict[str, tuple[list[str], str]] = {
    "a split without labels": (
        ["images/train/a.jpg", "images/val/b.jpg", "labels/train/a.txt"],
        "has the splits train, val",
    ),
    "a split without labels, in a folder of its own": (
        ["train/images/a.jpg", "train/labels/a.txt", "test/images/b.jpg"],
        "has the splits test, train",
    ),
    "pictures beside splits": (
        ["images/a.jpg", "images/train/b.jpg", "labels/train/b.txt"],
        "a.jpg is in no split",
    ),
    "labels beside splits": (
        ["images/train/b.jpg", "labels/train/b.txt", "labels/a.txt"],
        "a.txt is in no split",
    ),
    "labels behind a list of classes": (
        ["images/a.jpg", "labels/a.txt", "labels/classes.txt", "labels/dog.txt"],
        "dog.txt has labels, and there is no picture",
    ),
    "labels whose names end with capitals": (
        ["images/a.jpg", "labels/b.txt", "labels/a.TXT", "images/b.jpg"],
        "a.TXT has labels, and there is no picture",
    ),
    "labels beside two pictures of one name": (
        ["images/a.jpg", "images/a.png", "labels/a.txt", "labels/b.txt"],
        "b.txt has labels, and there is no picture",
    ),
}


def written(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("0 .5 .5 .5 .5")
    return folder


@pytest.mark.parametrize("what", PARTIAL)
def test_a_folder_of_which_a_part_would_be_lost_is_refused(what: str, tmp_path: Path) -> None:
    names, said = PARTIAL[what]
    assert said in refused(2, written(tmp_path / "set", names), tmp_path / "x.ffr")


def test_a_split_without_labels_is_refused_and_the_others_are_packed(tmp_path: Path) -> None:
    path = written(
        tmp_path / "set", ["images/train/a.jpg", "images/val/b.jpg", "labels/train/a.txt"]
    )
    message = refused(2, "--split", "val", path, tmp_path / "x.ffr")
    assert "labels/val is missing" in message
    ok("ffrecord-pack", "--split", "train", path, tmp_path / "x.ffr")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == 1


@pytest.mark.parametrize("name", ["name", "image", "annotations", "label", "rle"])
def test_a_field_that_is_called_like_one_of_ours_is_not_lost(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"picture")
    image: Row = {"id": 1, "file_name": "a.jpg"}
    note: Row = {"id": 1, "image_id": 1, "category_id": 3, "segmentation": {"size": [1, 1]}}
    (note if name in ("label", "rle") else image)[name] = "mine"
    text = {"images": [image], "annotations": [note], "categories": [{"id": 3, "name": "cat"}]}
    (tmp_path / "a.json").write_text(json.dumps(text))
    message = refused(2, tmp_path / "a.json", tmp_path / "x.ffr")
    assert f"a field called '{name}'" in message
    assert "rename it" in message


@pytest.mark.parametrize("kind", ["coco", "yolo_flat"])
def test_a_picture_that_is_a_link_is_packed_on_request_alone(kind: str, tmp_path: Path) -> None:
    source, _ = {"coco": coco, "yolo_flat": yolo_flat}[kind](tmp_path / "set")
    picture = min(path for path in (tmp_path / "set").rglob("*.jpg"))
    picture.rename(tmp_path / "elsewhere.jpg")
    picture.symlink_to(tmp_path / "elsewhere.jpg")
    with pytest.raises(ValueError, match="is a symbolic link: --follow-links"):
        pack(open_source(source), tmp_path / "x.ffr")
    pack(open_source(source, SourceOptions(follow_links=True)), tmp_path / "x.ffr")
    images = [bytes(each) for each in ffrecord.open(tmp_path / "x.ffr")[:]["image"]]
    assert (tmp_path / "elsewhere.jpg").read_bytes() in images
