"""YOLO: pictures in `images`, and for each a text in `labels` with a line for each object.

As Ultralytics reads them: `images/SPLIT` and `labels/SPLIT`, or `SPLIT/images` and `SPLIT/labels`,
with names of classes in `data.yaml`. A line is the number of a class, and a box (centre and size)
or an outline, as parts of the width and height.
"""

import math
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TextIO

from ffrecord._tables.formats import pyarrow
from ffrecord.pack import _places
from ffrecord.pack._pictures import PictureTable, picture_at
from ffrecord.pack._source import (
    HIDDEN,
    SourceOptions,
    check_text,
    needed,
    split_of,
    stamp_of_files,
)

_IMAGES, _LABELS = "images", "labels"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".avif", ".jp2")
_CLASS_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt")
# Some editors begin a text with it.
_MARK = "\ufeff"
# Numbers of a line with a box.
_BOX = 5
_TEXT_BYTES_MAX = 64 << 20


def is_yolo(path: str) -> bool:
    """Whether it is a folder with pictures and labels, or with splits that have both."""
    return any(_splits(path))


def _splits(root: str) -> Iterator[tuple[str, str, str]]:
    """Each split, the only one without a name, with its two folders.

    Beside one that has both, one that lacks its labels is a split, too, or else it would be lost.
    """
    pictures, labels = os.path.join(root, _IMAGES), os.path.join(root, _LABELS)
    if _places.is_dir(pictures) and _places.is_dir(labels):
        inner, others = _folders(pictures), _folders(labels)
        for name in sorted(inner | others if inner & others else ()):
            yield name, os.path.join(pictures, name), os.path.join(labels, name)
        if not inner & others:
            yield "", pictures, labels
        return
    if not _places.is_dir(root):
        return
    found = []
    for name in sorted(_folders(root)):
        inside = os.path.join(root, name)
        pictures, labels = os.path.join(inside, _IMAGES), os.path.join(inside, _LABELS)
        if _places.is_dir(pictures):
            found.append((name, pictures, labels))
    if any(_places.is_dir(texts) for _, _, texts in found):
        yield from found


def _folders(path: str) -> set[str]:
    return {each.name for each in _places.scan(path) if each.is_dir() and each.name[0] != "."}


class YoloSource(PictureTable):
    """A row for each picture, in the order of the names: `label`, and `box` or `outline`.

    Both are lists with an item for each object. A picture without a text has no objects.
    """

    what = "YOLO folder"
    meant = ("columns", "drop", "cast", "split", "follow_links")

    def __init__(self, path: str, options: SourceOptions) -> None:
        """List the pictures, and read the labels; see `open_source` for arguments and errors."""
        found = {name: (pictures, labels) for name, pictures, labels in _splits(path)}
        split = split_of(list(found), options.split, path)
        self._pictures_in, self._labels_in = found[split]
        if not _places.is_dir(self._labels_in):
            raise ValueError(
                f"{self._labels_in} is missing: make it if the pictures have no objects, or pack "
                "them as files"
            )
        if split and options.split is None:
            _check_beside(path)
        self._names = self._class_names(path)
        super().__init__(path, options)
        self.classes = self._names

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Boxes, or outlines if one line has other than five numbers."""
        texts = self._list_all()
        self._has_outlines = False
        label_bytes = 0
        for number, text in enumerate(self._texts):
            for _, values in self._objects(number) if text else ():
                self._has_outlines |= len(values) + 1 != _BOX
            label_bytes += texts[number]
        self.counted(label_bytes)
        pa = pyarrow()
        numbers = pa.field("item", pa.float64(), nullable=False)
        shape = pa.list_(numbers) if self._has_outlines else pa.list_(numbers, _BOX - 1)
        lists = [
            ("label", pa.int64()),
            ("outline" if self._has_outlines else "box", shape),
        ]
        fields = [("name", pa.string()), ("image", pa.binary())]
        fields += [(name, pa.list_(pa.field("item", t, nullable=False))) for name, t in lists]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def rows(self, begin: int, end: int) -> list[dict[str, Any]]:
        """Names and objects of some pictures."""
        rows = []
        for number in range(begin, end):
            found = list(self._objects(number)) if self._texts[number] else []
            shapes = "outline" if self._has_outlines else "box"
            name = os.path.relpath(self.pictures[number].path, self._pictures_in)
            row = {"name": name, "label": [label for label, _ in found]}
            rows.append({**row, shapes: [values for _, values in found]})
        return rows

    def stamp(self) -> str:
        """Return a hash of the pictures, and of the texts beside them."""
        return super().stamp() + stamp_of_files(text for text in self._texts if text)

    def _list_all(self) -> list[int]:
        """Find the pictures and the texts of labels; return the sizes of these."""
        self.pictures, self._texts = [], []
        sizes = []
        for path in _walk(self._pictures_in):
            name = check_text(os.path.relpath(path, self._pictures_in), self._pictures_in)
            stem = os.path.splitext(name)[0]
            if not _is_picture(name):
                self.unread[HIDDEN if "/." in f"/{name}" else "files that are no pictures"] += 1
                continue
            text = os.path.join(self._labels_in, f"{stem}.txt")
            is_there = _places.is_file(text)
            self.pictures.append(picture_at(self._pictures_in, name, self.options))
            self._texts.append(text if is_there else "")
            sizes.append(_places.size_of(text) if is_there else 0)
            if sizes[-1] > _TEXT_BYTES_MAX:
                raise ValueError(f"{text} has {sizes[-1]} bytes, too many for labels")
        if not self.pictures:
            raise ValueError(f"{self._pictures_in} has no pictures: there is nothing to pack")
        texts = {path for path in _walk(self._labels_in) if _is_text(path)}
        for lost in sorted(texts - set(self._texts)):
            raise ValueError(f"{lost} has labels, and there is no picture of that name")
        self.files = tuple(self._class_files)
        return sizes

    def _objects(self, number: int) -> Iterator[tuple[int, list[float]]]:
        path = self._texts[number]
        with _places.open_text(path, errors="replace") as file:
            for place, line in enumerate(file, start=1):
                if not (words := line.removeprefix(_MARK).split()):
                    continue
                label = int(words[0]) if words[0].isdecimal() else -1
                try:
                    values = [float(word) for word in words[1:]]
                except ValueError:
                    values = []
                is_known = 0 <= label < (len(self._names) or 1 << 62)
                if not is_known or len(values) < _BOX - 1 or not all(map(math.isfinite, values)):
                    raise ValueError(
                        f"{path}: line {place} is {line.strip()!r:.60}, not the number of a class "
                        f"{f'below {len(self._names)} ' if self._names else ''}and at least four "
                        "numbers"
                    )
                yield label, values

    def _class_names(self, root: str) -> tuple[str, ...]:
        paths = [os.path.join(root, name) for name in _CLASS_FILES]
        self._class_files = [path for path in paths if _places.is_file(path)][:1]
        if not self._class_files:
            return ()
        (path,) = self._class_files
        with _places.open_text(path) as file:
            if path.endswith(".txt"):
                lines = file.read().removeprefix(_MARK).rstrip().split("\n")
                if not all(map(str.strip, lines)) and len(lines) > 1:
                    raise ValueError(f"{path} has a blank line between the names of classes")
                return tuple(line.strip() for line in lines if line.strip())
            yaml = needed("yaml", f"{path}", "pyyaml")
            try:
                names = (_described(yaml, file) or {}).get("names")
            except (yaml.YAMLError, AttributeError, RecursionError) as error:
                said = str(error).partition("\n")[0]
                raise ValueError(f"{path} is no list of classes: {said}") from None
        if isinstance(names, dict) and set(names) == set(map(str, range(len(names)))):
            names = [names[str(number)] for number in range(len(names))]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path}: `names` is no list of classes, nor 0, 1, ... with a name")
        return tuple(names)


def _described(yaml: Any, file: TextIO) -> Any:  # noqa: ANN401 - a module, and any YAML
    """The content of a text of YAML, in which scalars are text, and each key is there once.

    Else a class called no would be False, and 1.10 the number 1.1.
    """

    class Words(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: Mapping[str, Any] = MappingProxyType({})

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401
            found = super().construct_mapping(node, deep)
            if len(found) < len(node.value):
                raise yaml.YAMLError("a key is there twice")
            return found

    return yaml.load(file, Loader=Words)


def _check_beside(root: str) -> None:
    """Check that no pictures and labels lie beside the folders of the only split."""
    for folder, is_such in ((_IMAGES, _is_picture), (_LABELS, _is_text)):
        path = os.path.join(root, folder)
        for name in sorted(_places.names_in(path)) if _places.is_dir(path) else ():
            if is_such(name) and _places.is_file(os.path.join(path, name)):
                raise ValueError(
                    f"{os.path.join(path, name)} is in no split, beside folders of splits: "
                    "move it, or say which split with --split"
                )


def _is_picture(path: str) -> bool:
    suffix = os.path.splitext(path)[1]
    return suffix.lower() in _SUFFIXES and not os.path.basename(path).startswith(".")


def _is_text(path: str) -> bool:
    name = os.path.basename(path)
    return name.lower().endswith(".txt") and name != "classes.txt" and not name.startswith(".")


def _walk(folder: str) -> Iterator[str]:
    """All files, sorted."""
    for parent, folders, names in _places.walk(folder):
        folders.sort()
        for link in (os.path.join(parent, n) for n in folders):
            if _places.is_link(link):
                raise ValueError(f"{link} is a symbolic link to a folder: copy the folder instead")
        yield from (os.path.join(parent, name) for name in sorted(names))
