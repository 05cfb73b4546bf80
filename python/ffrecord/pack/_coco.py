"""COCO: a JSON file with the arrays `images`, `annotations` and `categories`, beside pictures.

The format is described at cocodataset.org/#format-data.
"""

import json
import os
import re
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord._tables.formats import pyarrow
from ffrecord.errors import CorruptionError
from ffrecord.pack import _places
from ffrecord.pack._json_arrays import NotJsonError, elements_of
from ffrecord.pack._json_types import ConflictingTypesError, JsonType, joined_fields, type_of_value
from ffrecord.pack._pictures import PictureTable, picture_at
from ffrecord.pack._source import SourceOptions, check_key

# One of these is near an end of the file: arrays are in any order.
_MARKS = (b'"images"', b'"annotations"')
_LOOK_BYTES = 1 << 16
# Names that a row has already.
_OURS = ("name", "image", "annotations")


def is_coco(path: str) -> bool:
    """By its name, and the names of its arrays."""
    if not path.endswith(".json") or not _places.is_file(path):
        return False
    with _places.open_input(path) as file:
        head = file.read(_LOOK_BYTES)
        file.seek(max(0, _places.size_of(path) - _LOOK_BYTES))
        text = head + file.read()
    return head.lstrip()[:1] == b"{" and any(mark in text for mark in _MARKS)


class CocoSource(PictureTable):
    """A row for each picture, in the order of the file, with the list of its annotations.

    An outline that is a mask (`counts` and `size`) is in the field `rle`, all others are in
    `segmentation`. `label` is the place of the category in the list of classes, which is sorted by
    the categories' ids.
    """

    what = "COCO file"
    meant = ("columns", "drop", "cast", "follow_links")

    def __init__(self, path: str, options: SourceOptions) -> None:
        """Read all but the pictures; see `open_source` for arguments and errors."""
        self._classes: dict[int, str] = {}
        super().__init__(path, options)
        self.classes = tuple(self._classes[number] for number in sorted(self._classes))

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """The columns of all pictures and annotations."""
        try:
            self._read_all()
        except (ConflictingTypesError, RecursionError) as error:
            raise ValueError(f"{self.path}: {error}") from None
        except NotJsonError as error:
            raise CorruptionError(f"{self.path} is truncated, or no JSON: {error}") from None
        self.counted(_places.size_of(self.path))
        if (found := self.read_before()) is not None:
            return found
        pa = pyarrow()
        try:
            about = [pa.field(name, t.arrow(name)) for name, t in self._about.items()]
            notes = [pa.field(n, t.arrow(f"annotations.{n}")) for n, t in self._notes.items()]
        except ConflictingTypesError as error:
            raise ValueError(f"{self.path}: {error}") from None
        fields = [pa.field("name", pa.string(), nullable=False)]
        fields += [pa.field("image", pa.binary(), nullable=False), *about]
        if notes:
            item = pa.field("item", pa.struct(notes), nullable=False)
            fields.append(pa.field("annotations", pa.list_(item), nullable=False))
        return pa.schema(fields)

    def rows(self, begin: int, end: int) -> list[dict[str, Any]]:
        """The file's facts about some pictures."""
        labels = {number: label for label, number in enumerate(sorted(self._classes))}
        rows = []
        with _places.open_input(self.path) as file:
            for number in range(begin, end):
                image = self._again(file, *self._images[number])
                row = {**_about(image), "name": image["file_name"]}
                bounds = self._bounds[number : number + 2]
                notes = (self._again(file, *self._places[i]) for i in range(*bounds))
                row["annotations"] = [self._note(note, labels) for note in notes]
                rows.append(row)
        return rows

    def _read_all(self) -> None:
        is_known = self.read_before() is not None
        ids: array[int] = array("q")
        of_image: array[int] = array("q")
        images, places = array("q"), array("q")
        self._about: dict[str, JsonType] = {}
        self._notes: dict[str, JsonType] = {}
        names: list[str] = []
        with _places.open_input(self.path) as file:
            for field, value, begin, size_bytes in elements_of(file):
                if field == "images":
                    ids.append(self._number(value, "id", "images"))
                    names.append(self._name(value, len(ids)))
                    images.extend((begin, size_bytes))
                    if not is_known:
                        for own in sorted({*_OURS} & value.keys()):
                            raise self._twice(f"image {len(ids)}", own)
                        self._about = joined_fields(self._about, _types(_about(value)), "")
                elif field == "annotations":
                    of_image.append(self._number(value, "image_id", field))
                    places.extend((begin, size_bytes))
                    if not is_known:
                        types = _types(self._note(value, None))
                        self._notes = joined_fields(self._notes, types, field)
                elif field == "categories":
                    number = self._number(value, "id", field)
                    if number in self._classes or not isinstance(value.get("name"), str):
                        raise ValueError(
                            f"{self.path}: the category {number} is there twice, or has no name"
                        )
                    self._classes[number] = value["name"]
        if self._classes and "category_id" in self._notes:
            if "label" in self._notes:
                raise self._twice("an annotation", "label")
            self._notes["label"] = JsonType("int")
        self._images = _pairs(images)
        self._group(np.array(ids, np.int64), np.array(of_image, np.int64), _pairs(places))
        self._find_pictures(names)

    def _group(
        self,
        ids: npt.NDArray[np.int64],
        of_image: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Put the annotations of each picture together, in their order."""
        by_id = np.argsort(ids, kind="stable")
        if (np.diff(ids[by_id]) == 0).any():
            twice = ids[by_id][:-1][np.diff(ids[by_id]) == 0][0]
            raise ValueError(f"{self.path}: there are two images with the id {twice}")
        at = np.searchsorted(ids, of_image, sorter=by_id)
        is_there = at < len(ids)
        is_there[is_there] = ids[by_id[at[is_there]]] == of_image[is_there]
        if not is_there.all():
            raise ValueError(
                f"{self.path}: there are annotations of the image {of_image[~is_there][0]}, and no "
                "such image"
            )
        number = by_id[at]
        order = np.argsort(number, kind="stable")
        self._places = places[order]
        self._bounds = np.searchsorted(number[order], np.arange(len(ids) + 1))

    def _find_pictures(self, names: list[str]) -> None:
        if not names:
            raise ValueError(f"{self.path} has no images: there is nothing to pack")
        if not self.is_wanted("image"):
            self.pictures = [picture_at(self.path)._replace(size_bytes=0)] * len(names)
            return
        folders = list(_folders(self.path))
        for folder in folders:
            if _places.exists(os.path.join(folder, names[0])):
                self.pictures = [picture_at(folder, name, self.options) for name in names]
                return
        raise ValueError(
            f"{self.path}: its first picture, {names[0]}, is in none of {', '.join(folders)}: put "
            "the pictures there, or leave them out with --drop image"
        )

    def _again(self, file: Any, begin: int, size_bytes: int) -> dict[str, Any]:  # noqa: ANN401
        file.seek(begin)
        found: dict[str, Any] = json.loads(file.read(size_bytes))
        return found

    def _note(self, value: dict[str, Any], labels: dict[int, int] | None) -> dict[str, Any]:
        """An annotation as it is packed; with its label if `labels` are given."""
        note = {name: each for name, each in value.items() if name != "image_id"}
        if isinstance(note.get("segmentation"), dict):
            if "rle" in note:
                raise self._twice("an annotation", "rle")
            note["rle"] = note.pop("segmentation")
        if labels and (number := value.get("category_id")) is not None:
            if number not in labels:
                raise ValueError(f"{self.path}: there is no category {number}")
            note["label"] = labels[number]
        return note

    def _twice(self, what: str, name: str) -> ValueError:
        return ValueError(
            f"{self.path}: {what} has a field called '{name}', and so has each record: rename it"
        )

    def _name(self, value: dict[str, Any], number: int) -> str:
        name = value.get("file_name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self.path}: image {number} has no file_name")
        return check_key(name)

    def _number(self, value: Any, name: str, where: str) -> int:  # noqa: ANN401 - of any JSON
        found = value.get(name) if isinstance(value, dict) else None
        if not isinstance(found, int) or isinstance(found, bool) or abs(found) >= 1 << 62:
            raise ValueError(f"{self.path}: one of the {where} has the {name} {found!r:.40}")
        return found


def _folders(path: str) -> Iterable[str]:
    """Where the pictures may be: instances_train2017.json has them in train2017."""
    here = os.path.dirname(path)
    stem = os.path.basename(path).removesuffix(".json")
    split = re.sub(r"^_?(instances|captions|person_keypoints|image_info|annotations)_?", "", stem)
    above = os.path.dirname(here)
    for folder in (here, above):
        for inner in dict.fromkeys(("", "images", split, os.path.join("images", split))):
            yield os.path.join(folder, inner) if inner else folder


def _about(image: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in image.items() if name not in ("file_name", *_OURS)}


def _types(value: dict[str, Any]) -> dict[str, JsonType]:
    return {name: type_of_value(each, name) for name, each in value.items()}


def _pairs(values: "array[int]") -> npt.NDArray[np.int64]:
    return np.array(values, np.int64).reshape(-1, 2)
