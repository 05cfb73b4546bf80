"""The base of datasets whose pictures are files, and whose labels are in other files."""

import hashlib
import os
from typing import Any, NamedTuple

from ffrecord._tables.formats import pyarrow
from ffrecord.pack import _places
from ffrecord.pack._row_table import RowTable
from ffrecord.pack._source import SourceOptions
from ffrecord.pack._table import ROWS_BYTES


class Picture(NamedTuple):
    """A file, as it was when the folder was listed."""

    path: str
    size_bytes: int
    version: str


class PictureTable(RowTable):
    """A row for each picture: its name, the bytes of its file, and what is known of it.

    A source defines `arrow_schema`, which fills `pictures` and calls `counted`, and `rows`.
    """

    pictures: list[Picture]

    def rows(self, begin: int, end: int) -> list[dict[str, Any]]:
        """The known facts of some pictures, without their bytes."""
        raise NotImplementedError

    def counted(self, label_bytes: int) -> None:
        """Set what follows from the pictures, beside so many bytes of labels."""
        self.row_count = len(self.pictures)
        self.size_bytes = label_bytes + sum(picture.size_bytes for picture in self.pictures)
        self.key = "name"

    def stamp(self) -> str:
        """Return a hash of paths, sizes and times of all files."""
        found = hashlib.sha256(super().stamp().encode())
        for picture in self.pictures:
            found.update(os.fsencode(picture.path))
            found.update(f"\0{picture.size_bytes}\0{picture.version}\n".encode())
        return found.hexdigest()[:32]

    def rows_at_once(self) -> int:
        """So many that large pictures do not take much memory."""
        largest = max((picture.size_bytes for picture in self.pictures), default=0)
        return max(1, min(super().rows_at_once(), 8 * ROWS_BYTES // max(largest, 1)))

    def read(self, names: list[str], begin: int, end: int) -> Any:  # noqa: ANN401 - pyarrow's
        """Return some rows."""
        rows = self.rows(begin, end)
        if "image" in names:
            for row, picture in zip(rows, self.pictures[begin:end], strict=True):
                row["image"] = self._content(picture)
        schema = pyarrow().schema([self.found.field(name) for name in names])
        return pyarrow().Table.from_pylist(rows, schema=schema)

    def _content(self, picture: Picture) -> bytes:
        content, version = _places.read(picture.path)
        if len(content) != picture.size_bytes or version != picture.version:
            raise ValueError(
                f"{picture.path} was changed after it was listed: pack the dataset when nothing "
                "writes to it any more"
            )
        return content


def picture_at(folder: str, name: str = "", options: SourceOptions | None = None) -> Picture:
    """A file of a dataset, in this folder or in one in it.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no file, but a device, for example; or a link, or in one, and options do
            not say to follow links.
    """
    path = folder
    for part in name.split("/") if name else ():
        path = os.path.join(path, part)
        if not (options and options.follow_links) and _places.is_link(path):
            raise ValueError(f"{path} is a symbolic link: --follow-links packs what it leads to")
    return Picture(path, *_places.look_at_regular(path))
