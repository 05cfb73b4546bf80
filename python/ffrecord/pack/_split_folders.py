"""Folders whose files are a dataset of another kind, by split: the hub's, and Energon's."""

import itertools
import os
import re
from collections.abc import Iterator

from ffrecord.pack import _places
from ffrecord.pack._beside import is_about_data
from ffrecord.pack._described_splits import check_described
from ffrecord.pack._source import SourceOptions, check_key, needed, split_of

_SHARD = re.compile(r"(?P<split>[A-Za-z][\w.]*?)[-_.](?P<number>\d+)(-of-(?P<count>\d+))?$")
_SUFFIX = re.compile(r"\.(parquet|arrow|jsonl|ndjson|csv|tsv|tar)(\.gz)?$")
# Endings of what may be data, too, and is not packed as a split.
_OTHER_DATA = re.compile(
    r"\.(parquet|arrow|jsonl?|ndjson|csv|tsv|tar|tgz|zip|gz|bz2|xz|zst|lz4|txt|xml|npy|npz|h5|hdf5"
    r"|tfrecords?|avro|orc|ffr)$",
    re.IGNORECASE,
)
# Names of files and folders that are splits without a number behind them.
_SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval")
_DATA = "data"
_REMEDY = "name the files to pack"
_META = ".nv-meta"
# JSON in a folder of data that is no data.
_DESCRIPTION = re.compile(r"(dataset_(infos?|dict)|state|.*[_.-](stats|info))\.json", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SHARDS_MAX = 1 << 20


def is_hub(path: str) -> bool:
    """Whether it is a folder with files that are called as splits, and none of anything else."""
    if not _places.is_dir(path):
        return False
    folders = {each.name for each in _places.scan(path) if each.is_dir() and each.name[0] != "."}
    known = all(name == _DATA or name.lower() in _SPLITS for name in folders)
    return known and any(split for split, _ in _files_by_split(path))


def hub_files(path: str, options: SourceOptions) -> list[str]:
    """The files of the split, in the order of their names.

    Raises:
        ValueError: there are several splits, or files of several kinds; or files would be left out,
            or a split is there twice or lacks some of its files.
    """
    splits: dict[str, list[str]] = {}
    for split, file in _files_by_split(path):
        splits.setdefault(split, []).append(file)
    split = split_of(sorted(name for name in splits if name), options.split, path)
    files = sorted(splits[split], key=_places.natural)
    kinds = {_suffix(file) for file in files}
    if len(kinds) > 1:
        raise ValueError(
            f"{path} has files of several kinds ({', '.join(sorted(kinds))}): name those to pack"
        )
    for stray in sorted(splits.get("", ())) if options.split is None else ():
        raise ValueError(
            f"{stray} is called as no split, beside files that are: {_REMEDY}, or say "
            f"--split {split}"
        )
    _check_whole(path, split, files)
    data = os.path.join(path, _DATA)
    folders = {os.path.dirname(file) for file in files}
    for folder in sorted(folders | ({data} if _places.is_dir(data) else set())):
        _check_others(path, folder, split)
    for folder in (path, data):
        _check_other_kinds(folder, split, every=options.split is None)
    check_described(path, split, files)
    return files


def _check_others(path: str, folder: str, split: str) -> None:
    """Check that no data would be left out that lies beside the files of a split.

    The folder itself may have whatever a repository has.
    """
    is_of_split = os.path.basename(folder) == split
    is_root = folder == os.path.dirname(os.path.join(path, ""))
    for entry in () if is_root else _places.scan(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and (is_of_split or entry.name.lower() not in _SPLITS):
            what = "one of a split" if is_of_split else "the one of data"
            raise ValueError(f"{entry.path} is a folder, in {what}: {_REMEDY}")
        is_known = entry.is_dir() or _suffix(entry.name) or _is_about(entry.name)
        if not is_known:
            raise ValueError(
                f"{entry.path} would be left out: it is no table, beside files of the split "
                f"{split}; {_REMEDY}"
            )


def _is_about(name: str) -> bool:
    """Whether a file in a folder of data is none; JSON may be."""
    if name.lower().endswith(".json"):
        return _DESCRIPTION.fullmatch(name) is not None
    return is_about_data(name)


def _check_other_kinds(folder: str, split: str, *, every: bool) -> None:
    """Check that what is called as this split, or as `every` one, is a file that can be packed."""
    for entry in _places.scan(folder) if _places.is_dir(folder) else ():
        if entry.is_dir() or (entry.is_file() and _suffix(entry.name)):
            continue
        stem = entry.name
        while ending := _OTHER_DATA.search(stem):
            stem = stem[: ending.start()]
        called = _split_called(stem) if stem != entry.name else ""
        if called and (every or called == split):
            raise ValueError(
                f"{entry.path} is called as the split {called}, and would be left out: {_REMEDY}"
            )


def _check_whole(path: str, split: str, files: list[str]) -> None:
    """Check that a split is there once, with all of its files."""
    places: set[str] = set()
    numbers: dict[tuple[str, int], set[int]] = {}
    for file in files:
        folder, name = os.path.split(file)
        suffix = _suffix(name)
        shard = _SHARD.fullmatch(name.removesuffix(suffix))
        shown = file
        if shard:
            of = f"-of-{shard['count']}" if shard["count"] else ""
            shown = os.path.join(folder, f"{shard['split']}-N{of}{suffix}")
        if shard and shard["count"]:
            seen = numbers.setdefault((shown, int(shard["count"])), set())
            if (number := int(shard["number"])) in seen:
                raise ValueError(
                    f"{folder} has number {number} of the {shard['count'].lstrip('0')} files "
                    f"{os.path.basename(shown)} twice: {_REMEDY}"
                )
            seen.add(number)
        is_inside = os.path.basename(folder) == split
        places.add(folder if is_inside else shown)
    if len(places) > 1:
        raise ValueError(
            f"{path} has the split {split} twice ({', '.join(sorted(places))}): {_REMEDY}"
        )
    for (shown, count), found in numbers.items():
        first = 0 if 0 in found else 1
        lost = next(number for number in itertools.count(first) if number not in found)
        if lost < first + count:
            raise ValueError(
                f"{os.path.dirname(shown)} lacks number {lost} of the {count} files "
                f"{os.path.basename(shown)}: download all of them, or name the files to pack"
            )


def _files_by_split(path: str) -> Iterator[tuple[str, str]]:
    """`data/train-00000-of-00002.parquet`, `train.jsonl`, `train/0000.parquet`.

    The split of a file of data that is called as none is empty.
    """
    for folder in (path, os.path.join(path, _DATA)):
        if not _places.is_dir(folder):
            continue
        for entry in _places.scan(folder):
            if entry.is_dir() and entry.name.lower() in _SPLITS:
                names = (each.name for each in _places.scan(entry.path))
                yield from ((entry.name, os.path.join(entry.path, n)) for n in names if _suffix(n))
            elif entry.is_file() and (suffix := _suffix(entry.name)):
                stem = entry.name.removesuffix(suffix)
                yield _split_called(stem), entry.path


def _split_called(stem: str) -> str:
    """The split that a file without its ending is called as; empty if it is none."""
    shard = _SHARD.fullmatch(stem)
    split = shard["split"] if shard else stem
    is_split = (shard and shard["count"]) or split.lower() in _SPLITS
    return split if is_split else ""


def _suffix(name: str) -> str:
    match = _SUFFIX.search(name)
    return match[0] if match and not os.path.basename(name).startswith(".") else ""


def is_energon(path: str) -> bool:
    """Whether it is a folder that Energon prepared."""
    return _places.is_file(os.path.join(path, _META, "split.yaml"))


def energon_files(path: str, options: SourceOptions) -> list[str]:
    """The tars of the split, in the order of the list.

    Raises:
        ValueError: the list is no such list, or leads outside the folder.
    """
    listed = os.path.join(path, _META, "split.yaml")
    yaml = needed("yaml", listed, "pyyaml")
    with _places.open_text(listed) as file:
        try:
            found = yaml.safe_load(file)
            splits, left_out = found["split_parts"], found.get("exclude") or []
            parts = {str(name): [str(each) for each in names] for name, names in splits.items()}
        except (yaml.YAMLError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = str(error).partition("\n")[0]
            raise ValueError(f"{listed} is no list of splits: {said}") from None
    if left_out:
        raise ValueError(f"{listed} leaves out samples, which packing does not: name the tars")
    split = split_of([name for name in parts if parts[name]], options.split, path)
    names = [name for pattern in parts[split] for name in _expanded(pattern)]
    return [os.path.join(path, check_key(name)) for name in names]


def _expanded(pattern: str) -> Iterator[str]:
    """`shard_{000..012}.tar` stands for thirteen names."""
    if (match := _RANGE.search(pattern)) is None:
        yield pattern
        return
    first, last = match.groups()
    if int(last) - int(first) >= _SHARDS_MAX:
        raise ValueError(f"{pattern} stands for more than {_SHARDS_MAX} names")
    for number in range(int(first), int(last) + 1):
        name = f"{number:0{len(first)}}"
        yield from _expanded(pattern[: match.start()] + name + pattern[match.end() :])
