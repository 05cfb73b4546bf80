"""Named versions of datasets: published, listed, compared, tagged; at daemons and at stores.

At a daemon or in a cluster, the files of a version are the published dataset
`NAME/.versions/VERSION`; elsewhere they are stored as `archive.push` stores them, each once for all
versions. The version appears when the list of versions names it (`catalogue_document`).
"""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ffrecord import _ffrecord
from ffrecord._base import clock
from ffrecord._base.addresses import (
    SCHEME,
    VERSION,
    VERSIONS,
    Target,
    below,
    split_version,
    target_from_root,
    with_version,
)
from ffrecord._read.locations import Where
from ffrecord._read.named_versions import Located
from ffrecord._read.reader import Reader
from ffrecord._read.reader import open as open_records
from ffrecord._store import archive, published
from ffrecord._store.catalogue_document import (
    Document,
    Version,
    VersionFile,
    change,
    name_of,
    read,
)
from ffrecord._store.catalogue_places import places
from ffrecord.errors import ConflictError, CorruptionError

# A list of versions is read whole; a card is for people.
_CARD_BYTES_MAX = 256 << 10
_LINE_CHARACTERS_MAX = 1000


@dataclass(frozen=True)
class Dataset:
    """One dataset with versions.

    Attributes:
        name: without its place.
        address: its place.
        versions: in the order of their publication; empty if all were removed.
        tags: the version that each tag stands for.
        problem: why its versions cannot be listed; empty if they are.
    """

    name: str
    address: str
    versions: tuple[Version, ...]
    tags: dict[str, str]
    problem: str = ""


@dataclass(frozen=True)
class Difference:
    """The differences of two versions.

    Attributes:
        before, after: the versions.
        is_same: both have the same records in the same order.
        columns_added, columns_removed: types by column.
        columns_changed: type before and after by column.
        files_added, files_removed, files_changed, files_same: names of files.
        record_count, size_bytes: by how much these have grown.
        shared_bytes: size of the files that are stored once for both.
    """

    before: Version
    after: Version
    is_same: bool
    columns_added: dict[str, str]
    columns_removed: dict[str, str]
    columns_changed: dict[str, tuple[str, str]]
    files_added: tuple[str, ...]
    files_removed: tuple[str, ...]
    files_changed: tuple[str, ...]
    files_same: tuple[str, ...]
    record_count: int
    size_bytes: int
    shared_bytes: int


def publish(
    files: Where,
    place: Target,
    version: str,
    *,
    description: str = "",
    licence: str = "",
    card: str = "",
    tags: Iterable[str] = (),
    durability: str = "replicas",
    timeout_s: float = 30.0,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Version:
    """Publish sealed files as a version of the dataset at `place`; it becomes the newest.

    The version and its card appear together, once all files are there. They never change, and the
    version's name is never used again. If a call has failed, repeat it: files that are there are
    not sent again, and a version that is there already, with the same files and the same card, is
    returned as it is.

    Args:
        files: as for `ffrecord.publish` at a daemon, as for `archive.push` elsewhere.
        place: `ffrecord://host[:port]/name`, a folder, `s3://bucket/name`, or another target of
            `archive.push`.
        version: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, the first a letter or digit.
        description: one line.
        licence: such as `CC-BY-4.0`.
        card: text in Markdown, at most 256 KiB.
        tags: stand for this version from now on, instead of another one.
        durability: as for `ffrecord.publish`; only in a cluster.
        timeout_s: for each call, retries included.
        dry_run: check the arguments and the files, and send nothing.
        progress: called with bytes done and bytes in all.

    Raises:
        ConflictError: the version exists with other files, another card or without one of the tags,
            or was removed; or a dataset without versions has the name; or an earlier call of this
            version, with other files, was not completed.
        CorruptionError: a file is damaged.
        ValueError, TypeError: an argument is malformed.
        OSError: the files cannot be read, or the place cannot be written or reached.
    """
    if isinstance(tags, str):
        raise TypeError(f"tags is {tags!r}; give a list of tags")
    where, wanted = _named(place), tuple(dict.fromkeys(tags))
    said: dict[str, Any] = {"description": description, "licence": licence, "card": card}
    _check_names(version, wanted)
    _check_card(said)
    if durability != "replicas" and not where.startswith(SCHEME):
        raise ValueError(f"durability is for versions in a cluster, and {where} is none")
    document = read(where, timeout_s)
    calls = published.Calls(timeout_s, dry_run, progress)
    facts = _bring(files, document, version, durability, calls)
    made = Version(
        dataset=name_of(where),
        version=version,
        created_s=int(clock.calendar_now()),
        parent=None,  # Known once it is in the list.
        address=with_version(where, version),
        **said,
        **facts,
    )
    if dry_run:
        return document.with_new(made, wanted).find(version)
    return change(where, lambda now: now.with_new(made, wanted), timeout_s).find(version)


def ls(place: Target = "ffrecord://localhost/", *, timeout_s: float = 30.0) -> list[Dataset]:
    """List the datasets with versions at a daemon, in a folder or in a bucket, by name.

    A name in the address of a daemon is a prefix, as for `ffrecord.list_published`.

    Raises:
        ValueError: `place` names a version, or cannot be listed.
        OSError: it cannot be reached or read.
    """
    listed = []
    root = target_from_root(place)
    if root.startswith(SCHEME):
        root = _place(place)
    for each in places(root, timeout_s):
        try:
            document = read(each, timeout_s)
        except FileNotFoundError:
            continue  # Removed meanwhile.
        except (CorruptionError, PermissionError, ValueError) as error:
            listed.append(Dataset(name_of(each), each, (), {}, str(error)))
        else:
            listed.append(_dataset(document))
    return listed


def versions(place: Target, *, timeout_s: float = 30.0) -> Dataset:
    """The versions of one dataset.

    Raises:
        FileNotFoundError: it has none.
    """
    document = read(_place(place), timeout_s)
    document.find(None)
    return _dataset(document)


def show(address: Target, *, timeout_s: float = 30.0) -> Version:
    """The card and the facts of `PLACE@VERSION`, `PLACE@TAG`, or of the newest version of `PLACE`.

    Raises:
        FileNotFoundError: there is no such version.
    """
    place, version = _split(address)
    return read(place, timeout_s).find(version)


def search(
    text: str, place: Target = "ffrecord://localhost/", *, timeout_s: float = 30.0
) -> list[Version]:
    """The versions below `place` in which all words of `text` occur, as `ls` lists them.

    Looks at names, tags, descriptions, licences, cards and columns; case makes no difference.
    """
    words = text.casefold().split()
    return [
        version
        for dataset in ls(place, timeout_s=timeout_s)
        for version in dataset.versions
        if all(word in _words_of(version) for word in words)
    ]


def diff(before: Target, after: Target, *, timeout_s: float = 30.0) -> Difference:
    """Compare two versions, `PLACE@VERSION` each, by what the list of versions says of them.

    Raises:
        FileNotFoundError: there is no such version.
    """
    return _difference(show(before, timeout_s=timeout_s), show(after, timeout_s=timeout_s))


def tag(address: Target, name: str, *, timeout_s: float = 30.0, dry_run: bool = False) -> Version:
    """Let the tag `name` stand for the version `PLACE@VERSION`, instead of another one.

    Changes the list of versions at once, and no data.

    Raises:
        FileNotFoundError: there is no such version.
        ConflictError: `name` is a version.
        ValueError: `name` cannot be a tag.
    """
    place, version = _split(address)
    _check_name("a tag", name)

    def alter(now: Document) -> Document:
        return now.tagged(name, now.find(version).version)

    made = alter(read(place, timeout_s)) if dry_run else change(place, alter, timeout_s)
    return made.find(name)


def untag(address: Target, *, timeout_s: float = 30.0, dry_run: bool = False) -> None:
    """Remove the tag of `PLACE@TAG`; the version stays.

    Raises:
        FileNotFoundError: there is no such tag.
    """
    place, name = _split(address)
    if name is None:
        raise ValueError(f"{place}: name the tag to remove, as PLACE@TAG")
    if dry_run:
        read(place, timeout_s).untagged(name)
    else:
        change(place, lambda now: now.untagged(name), timeout_s)


def remove(address: Target, *, timeout_s: float = 30.0) -> None:
    """Remove the version `ffrecord://host/name@version`, its tags and its data from a daemon.

    Batches that clients have read stay valid. The name of the version is never used again.

    Raises:
        FileNotFoundError: there is no such version.
        ValueError: the version is at a store, where versions have files in common.
    """
    place, version = _split(address)
    if version is None:
        raise ValueError(f"{place}: name the version to remove, as PLACE@VERSION")
    if not place.startswith(SCHEME):
        raise ValueError(
            f"{os.fsdecode(address)}: versions at a store have files in common, and are not removed"
        )
    document = read(place, timeout_s)
    if version not in document.removed:  # Else an earlier removal did not end.
        _take_off(place, version, timeout_s)
        published.remove_if_there(_data(place, version), timeout_s)
    elif not published.remove_if_there(_data(place, version), timeout_s):
        document.find(version)


def check_removable(address: Target, *, timeout_s: float = 30.0) -> Version:
    """The version that `remove` would remove.

    Raises:
        FileNotFoundError: there is no such version.
    """
    place, version = _split(address)
    document = read(place, timeout_s)
    if version is not None:
        document.refuse_unless_version(version)
    return document.find(version)


def locate(place: str, version: str | None, timeout_s: float) -> Located:
    """The data that `ffrecord.open` reads for a version, a tag, or the newest version (None)."""
    found = read(place, timeout_s).find(version)
    return Located(found.address, _data(place, found.version), found.label, found.fingerprint)


def _take_off(place: str, version: str, timeout_s: float) -> None:
    """Take a version off the list.

    Raises:
        OSError: there is no space for a list; what makes some is in the message.
    """
    try:
        change(place, lambda now: now.without(version), timeout_s)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"{with_version(place, version)} stays: there is no space for the new list of versions "
            f"({error.strerror}); remove {_data(place, version)}, then repeat",
        ) from None


def _data(place: str, version: str) -> str:
    return below(place, f"{VERSIONS}/{version}")


def _bring(
    files: Where, document: Document, version: str, durability: str, calls: published.Calls
) -> dict[str, Any]:
    """Bring the data of a version to its place, unless the version is there; return its facts.

    Raises:
        ConflictError: the name of the version or of the dataset is taken.
    """
    where, timeout_s = document.place, calls.timeout_s
    if document.has(version):  # Perhaps an earlier call was not told so: the facts decide.
        with open_records(files, timeout_s=timeout_s) as local:
            return _facts(local)
    document.refuse_taken(version)
    if document.step < 0:
        _refuse_steps(where, timeout_s)
    if where.startswith(SCHEME):
        return _publish_at_daemon(files, where, version, durability, calls)
    return _store_files(files, where, calls)


def _publish_at_daemon(
    files: Where, where: str, version: str, durability: str, calls: published.Calls
) -> dict[str, Any]:
    """Publish the data of a version, or find it published by a call that has not ended.

    Raises:
        ConflictError: the name is that of a dataset without versions, or of other data.
    """
    timeout_s, data = calls.timeout_s, _data(where, version)
    if _has_plain(where, timeout_s):
        raise ConflictError(
            errno.EEXIST,
            f"{where} is a dataset without versions; remove it, or choose another name",
        )
    try:
        published.send(files, data, durability, calls)
    except ConflictError:
        if not published.is_there(data, timeout_s):
            raise
    with open_records(files, timeout_s=timeout_s) as local:
        if calls.dry_run:
            return _facts(local)
        fingerprint = local.fingerprint
    with Reader(data, timeout_s=timeout_s) as served:
        if served.fingerprint == fingerprint:
            return _facts(served)
    raise ConflictError(
        errno.EEXIST,
        f"{with_version(where, version)} was being published with other files, and that did not "
        f"end: remove {data}, or choose another version",
    )


def _has_plain(where: str, timeout_s: float) -> bool:
    """Whether the name is that of a dataset without versions, as far as this client may look."""
    try:
        return published.is_there(where, timeout_s)
    except PermissionError:
        return False


def _refuse_steps(where: str, timeout_s: float) -> None:
    """Raise ConflictError if the place has steps: `pull` would not find them behind versions."""
    try:
        has_some = bool(_ffrecord.list_steps(where, timeout_s))
    except PermissionError:  # As for _has_plain.
        return
    if has_some:
        raise ConflictError(
            errno.EEXIST,
            f"{where} has what push or a checkpoint has stored there; choose another name",
        )


def _store_files(files: Where, where: str, calls: published.Calls) -> dict[str, Any]:
    timeout_s = calls.timeout_s
    with open_records(files, timeout_s=timeout_s) as local:
        facts = _facts(local)
    _, stored = archive.store_files(
        files, where, timeout_s=timeout_s, dry_run=calls.dry_run, progress=calls.progress
    )
    with open_records(files, timeout_s=timeout_s) as local:
        if _facts(local) != facts:
            raise ConflictError(
                errno.EEXIST, f"{where}: the files were changed while they were stored; try again"
            )
    return {**facts, "stored": stored}


def _facts(reader: Reader) -> dict[str, Any]:
    """The facts about records that a list of versions has."""
    files = tuple(
        VersionFile(
            os.path.basename(file.name), file.size_bytes, file.record_count, file.fingerprint
        )
        for file in reader.files
    )
    return {
        "schema": reader.schema,
        "fingerprint": reader.fingerprint,
        "record_count": len(reader),
        "size_bytes": sum(file.size_bytes for file in files),
        "files": files,
    }


def _difference(before: Version, after: Version) -> Difference:
    old, new = before.schema, after.schema
    files = {file.name: file for file in before.files}
    later = {file.name: file for file in after.files}
    both = [name for name in later if name in files]
    same = tuple(name for name in both if files[name] == later[name])
    shared = [
        name
        for name in same
        if name in before.stored
        and before.stored[name] == after.stored.get(name)
        and split_version(before.address)[0] == split_version(after.address)[0]
    ]
    return Difference(
        before=before,
        after=after,
        is_same=before.fingerprint == after.fingerprint,
        columns_added={name: new[name] for name in new if name not in old},
        columns_removed={name: old[name] for name in old if name not in new},
        columns_changed={
            name: (old[name], new[name]) for name in old if new.get(name, old[name]) != old[name]
        },
        files_added=tuple(name for name in later if name not in files),
        files_removed=tuple(name for name in files if name not in later),
        files_changed=tuple(name for name in both if files[name] != later[name]),
        files_same=same,
        record_count=after.record_count - before.record_count,
        size_bytes=after.size_bytes - before.size_bytes,
        shared_bytes=sum(later[name].size_bytes for name in shared),
    )


def _dataset(document: Document) -> Dataset:
    return Dataset(name_of(document.place), document.place, document.versions, dict(document.tags))


def _words_of(version: Version) -> str:
    parts = [version.label, version.description, version.licence, version.card]
    return "\n".join([*parts, *version.tags, *version.schema]).casefold()


def _split(address: Target) -> tuple[str, str | None]:
    place, version = split_version(target_from_root(address))
    return place if place.startswith(SCHEME) else place.rstrip("/") or place, version


def _place(place: Target) -> str:
    """A place, without a version.

    Raises:
        ValueError: it has one, or has no name.
    """
    where, version = _split(place)
    if version is not None:
        raise ValueError(f"{os.fsdecode(place)} names a version; leave @{version} out")
    if not where:
        raise ValueError("the place of the dataset is empty: is a variable of the shell not set?")
    return where


def _named(place: Target) -> str:
    """The place of a dataset that is published; as `_place`, and it has a name."""
    where = _place(place)
    if not name_of(where):
        raise ValueError(f"{where} has no name; give that of the dataset behind the last slash")
    return where


def _check_names(version: str, tags: tuple[str, ...]) -> None:
    _check_name("a version", version)
    for each in tags:
        _check_name("a tag", each)
    if version in tags:
        raise ValueError(f"{version!r} is the version; a tag must have another name")


def _check_card(said: dict[str, Any]) -> None:
    for what, text in said.items():
        if not isinstance(text, str):
            raise TypeError(f"the {what} is {text!r}; give a str")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the {what} is not UTF-8 text") from None
    for what in ("description", "licence"):
        if len(said[what]) > _LINE_CHARACTERS_MAX or len(said[what].splitlines()) > 1:
            raise ValueError(
                f"the {what} must be one line of at most {_LINE_CHARACTERS_MAX} characters; write "
                "more in the card"
            )
    if (size := len(said["card"].encode())) > _CARD_BYTES_MAX:
        raise ValueError(f"the card has {size} bytes; the limit is 256 KiB")


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} cannot be {what}: give a str, such as '1.0'")
    if not VERSION.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be {what}: write 1 to 64 characters of A-Z a-z 0-9 . _ -, beginning "
            "with a letter or digit"
        )
