"""Goal: a folder that is laid out as Hugging Face's hub or Energon does is packed split by split.

Method: the layouts that their documentation describes, with files of each kind, compared with the
files given by name; and folders that look alike and are something else.
"""

import json
from pathlib import Path

import pytest

import cuttable
import ffrecord
from cli import ok
from ffrecord.pack import SourceOptions, open_source, pack
from packing import contents, records, refused

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

# Files of a folder, by name, and the split of each.
LAYOUTS: dict[str, dict[str, str]] = {
    "numbered files in data": {
        "data/train-00000-of-00002.jsonl": "train",
        "data/train-00001-of-00002.jsonl": "train",
        "data/test-00000-of-00001.jsonl": "test",
        "README.md": "",
    },
    "files of any name": {"my_split-00000-of-00001.jsonl": "my_split", "dev.jsonl": "dev"},
    "one file for each": {"train.jsonl": "train", "validation.jsonl": "validation"},
    "a folder for each": {
        "train/0001.jsonl": "train",
        "train/0000.jsonl": "train",
        "train/README.md": "",
        "train/_SUCCESS": "",
        "validation/x.jsonl": "validation",
        ".git/config": "",
    },
}


def written(folder: Path, layout: dict[str, str]) -> Path:
    for name in layout:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"name": name, "row": row}) + "\n" for row in range(20)))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_files_of_a_split_are_packed_in_their_order(layout: str, tmp_path: Path) -> None:
    files = LAYOUTS[layout]
    folder = written(tmp_path / "set", files)
    splits = sorted({split for split in files.values() if split})

    message = refused(2, folder, tmp_path / "x")
    assert f"has the splits {', '.join(splits)}: pack each on its own" in message
    for split in splits:
        ok("ffrecord-pack", folder, tmp_path / split, "--split", split, "--part-size", "100B")
        names = sorted(name for name, its in files.items() if its == split)
        found = [(row["name"], row["row"]) for row in records(tmp_path / split)]
        assert found == [(name, row) for name in names for row in range(20)]
        assert len(contents(tmp_path / split)) > 3


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_a_repository_may_have_other_files_and_folders(end: str, tmp_path: Path) -> None:
    names = ["train.jsonl", "figure.png", "test/0.jsonl", "data/readme.txt", ".cache/x"]
    names += ["data/_SUCCESS", "data/_committed_123"]
    folder = written(tmp_path / "set", dict.fromkeys(names, ""))
    pack(open_source(f"{folder}{end}", SourceOptions(split="train")), tmp_path / "x.ffr")
    assert [row["name"] for row in records(tmp_path / "x.ffr")] == ["train.jsonl"] * 20


def test_one_split_needs_no_name_and_several_workers_share_it(tmp_path: Path) -> None:
    files = {f"data/train-0000{n}-of-00004.jsonl": "train" for n in range(4)}
    folder = written(tmp_path / "set", files)
    for workers in (1, 2):
        pack(folder, tmp_path / f"{workers}", workers=workers, part_size_bytes=300)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(records(tmp_path / "1")) == 80


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", {"train.jsonl": "train", "train.csv": "train"})
    assert "files of several kinds (.csv, .jsonl)" in refused(2, folder, tmp_path / "x")


# Folders of which a part would be left out, or packed twice; and what is said of them.
PARTIAL: dict[str, tuple[list[str], str]] = {
    "a shard is missing": (
        ["data/train-00000-of-00003.jsonl", "data/train-00002-of-00003.jsonl"],
        "lacks number 1 of the 3 files train-N-of-00003.jsonl",
    ),
    "a shard is there twice": (
        ["train-00000-of-00002.jsonl", "train-0-of-00002.jsonl", "train-00001-of-00002.jsonl"],
        "has number 0 of the 2 files train-N-of-00002.jsonl twice",
    ),
    "JSON that is no description": (
        ["train/a.jsonl", "train/b.json"],
        "b.json would be left out",
    ),
    "the last shard is missing": (["train-00000-of-00002.jsonl"], "lacks number 1 of the 2 files"),
    "two sets of shards": (
        ["train-00000-of-00001.jsonl", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
        "has the split train twice",
    ),
    "a file and a folder": (["train.jsonl", "train/0000.jsonl"], "has the split train twice"),
    "a file in data, too": (
        ["train.jsonl", "data/train-00000-of-00001.jsonl"],
        "has the split train twice",
    ),
    "a file of no split": (["train.jsonl", "more.jsonl"], "more.jsonl is called as no split"),
    "a file of no split in data": (
        ["data/train.jsonl", "data/more.csv"],
        "more.csv is called as no split",
    ),
    "a folder in a split": (["train/0.jsonl", "train/deep/1.jsonl"], "deep is a folder"),
    "a folder in data": (["data/train.jsonl", "data/en/train.jsonl"], "en is a folder, in the one"),
    "a folder in data with an underscore": (
        ["data/train.jsonl", "data/_more/train.jsonl"],
        "_more is a folder, in the one",
    ),
    "a file in data with an underscore": (
        ["data/train.jsonl", "data/_more.txt"],
        "_more.txt would be left out",
    ),
    "pictures in a split": (["train/metadata.jsonl", "train/0001.png"], "0001.png would be left"),
    "pictures in a split of data": (
        ["data/train/metadata.jsonl", "data/train/0001.png"],
        "0001.png would be left out",
    ),
    "pictures in data": (["data/train.jsonl", "data/0001.png"], "0001.png would be left out"),
    "pictures in data, and a split above": (
        ["train.jsonl", "data/0001.png"],
        "0001.png would be left out",
    ),
    "a split of another kind": (["train.json", "test.jsonl"], "train.json is called as the split"),
    "a compressed split": (
        ["data/train-00000-of-00001.jsonl.zst", "data/test.jsonl"],
        "jsonl.zst would be left out",
    ),
    "a split in capitals": (["train.JSONL", "test.jsonl"], "train.JSONL is called as the split"),
}


@pytest.mark.parametrize("what", PARTIAL)
def test_a_folder_of_which_a_part_would_be_lost_is_refused(what: str, tmp_path: Path) -> None:
    names, said = PARTIAL[what]
    (tmp_path / "hub").mkdir()
    folder = written(tmp_path / "hub", dict.fromkeys(names, ""))
    message = refused(2, folder, tmp_path / "x")
    assert said in message
    assert "name the files" in message or "download" in message


def test_a_split_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    """As in a cache of the hub whose download was cut off."""
    folder = written(tmp_path / "set", {"test.jsonl": "test"})
    (folder / "train.jsonl").symlink_to("../blobs/0123")
    assert "train.jsonl is called as the split train" in refused(2, folder, tmp_path / "x")


# What a README.md says of train.jsonl and validation.jsonl, and whether these are its splits.
DESCRIBED: dict[str, tuple[str, bool]] = {
    "each file": (
        "- config_name: default\n  data_files:\n  - {split: train, path: train.jsonl}\n"
        "  - {split: dev, path: [validation.jsonl]}",
        True,
    ),
    "patterns": ("- data_files: {train: 'train*', validation: './**/val*.jsonl'}", True),
    "one of several configs": (
        "- {config_name: a, data_files: '*.jsonl'}\n- {config_name: b, data_files: train.jsonl}",
        True,
    ),
    "a folder": ("- {config_name: default, data_dir: .}", True),
    "nothing of files": ("- config_name: default", True),
    "both as one split": (
        "- config_name: default\n  data_files:\n  - split: train\n    path:\n    - train.jsonl\n"
        "    - validation.jsonl",
        False,
    ),
    "all as one split": ("- {config_name: default, data_files: '*.jsonl'}", False),
    "another folder": ("- {config_name: default, data_dir: more}", False),
    "what is elsewhere": ("- {data_files: 'hf://datasets/a/b/train.jsonl'}", False),
}


@pytest.mark.parametrize("what", DESCRIBED)
def test_files_are_those_that_the_description_of_a_split_names(what: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    configs, is_so = DESCRIBED[what]
    folder = written(tmp_path / "set", {"train.jsonl": "train", "validation.jsonl": "validation"})
    (folder / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{configs}\n---\n# A set\n")
    arguments = ("--split", "train", folder, tmp_path / "x.ffr")
    if is_so:
        ok("ffrecord-pack", *arguments)
        assert [row["name"] for row in records(tmp_path / "x.ffr")] == ["train.jsonl"] * 20
    else:
        assert "README.md describes no split of just the files of train" in refused(2, *arguments)


@pytest.mark.parametrize("configs", ["configs: 3", "configs: [3]", "configs: ["])
def test_a_description_that_is_none_is_refused(configs: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    folder = written(tmp_path / "set", {"train.jsonl": "train"})
    (folder / "README.md").write_text(f"---\n{configs}\n---\n")
    assert "README.md: its configs are no list of files" in refused(2, folder, tmp_path / "x")


def test_shards_may_be_numbered_from_one(tmp_path: Path) -> None:
    names = ["train-1-of-2.jsonl", "train-2-of-2.jsonl"]
    pack(written(tmp_path, dict.fromkeys(names, "")), tmp_path / "x.ffr")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == 40


def test_a_folder_of_classes_beside_a_table_is_one_of_classes(tmp_path: Path) -> None:
    folder = written(tmp_path / "set", {"cat/1": "", "dog/2": "", "train.csv": ""})
    line = ok("ffrecord-pack", folder, tmp_path / "x.ffr")
    assert "2 classes: 0 cat, 1 dog" in line
    assert "skipped 1 files outside of classes" in line


def energon(folder: Path, split: str) -> Path:
    (folder / ".nv-meta").mkdir(parents=True)
    (folder / ".nv-meta" / "split.yaml").write_text(split)
    (folder / "shards").mkdir()
    for number in range(3):
        cuttable.web_dataset(folder).rename(folder / "shards" / f"part_{number:03}.tar")
    return folder


def test_the_tars_of_a_split_of_energon_are_packed(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = "exclude: []\nsplit_parts:\n  train: ['shards/part_{000..001}.tar']\n"
    folder = energon(tmp_path / "set", f"{text}  val: [shards/part_002.tar]\n  test: []\n")

    assert "has the splits train, val" in refused(2, folder, tmp_path / "x.ffr")
    pack(open_source(folder, SourceOptions(split="train")), tmp_path / "x.ffr")
    pack(
        [str(folder / "shards" / f"part_00{n}.tar") for n in range(2)],
        tmp_path / "y.ffr",
    )
    assert records(tmp_path / "x.ffr") == records(tmp_path / "y.ffr")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == 800


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("split_parts: {train: [../../etc/passwd]}", "leads outside"),
        ("split_parts: {train: ['x_{0..99999999999}.tar']}", "stands for more than"),
        ("split_parts: {train: [x.tar]}\nexclude: [a]", "leaves out samples"),
        ("split_parts: 3", "is no list of splits"),
        ("!!python/object/apply:os.system [false]", "is no list of splits"),
        ("split_parts: {train: []}", "has no splits"),
    ],
)
def test_a_list_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    folder = energon(tmp_path / "set", text)
    with pytest.raises(ValueError, match=said):
        pack(folder, tmp_path / "x")


def test_files_without_leading_zeros_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"train-{number}-of-12.jsonl" for number in range(12)]
    folder = written(tmp_path / "set", dict.fromkeys(names, "train"))
    pack(folder, tmp_path / "x")
    assert [row["name"] for row in records(tmp_path / "x")][::20] == names
