"""The list of a dataset's versions: one small document for each dataset, beside its data.

The document is the newest step of the checkpoints at `PLACE/.catalogue`. A change saves it as the
next step, which fails if another process has saved that step meanwhile: then the change is made
again, on what that process has saved. So it is changed at once or not at all, at a daemon, in a
cluster, at an object store and in a folder alike.
"""

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ffrecord.checkpoint as ckpt
from ffrecord import _ffrecord
from ffrecord._base.addresses import (
    CATALOGUE,
    SCHEME,
    SEVERAL,
    VERSION,
    below,
    split_places,
    with_version,
)
from ffrecord.errors import ConflictError, CorruptionError

# Raised when an older release could not read the document any more.
_FORMAT = 1
# A change is made again so many times if others are faster each time.
_TRIES_MAX = 200


@dataclass(frozen=True)
class VersionFile:
    """One file of a version."""

    name: str
    size_bytes: int
    record_count: int
    fingerprint: str


@dataclass(frozen=True)
class Version:
    """One version of a dataset: its card, and the facts about its records. It never changes.

    Attributes:
        dataset: the name of the dataset, without its place.
        version: the version's own name.
        created_s: when it was published, in seconds since 1970.
        parent: the version that was the newest before; None for the first.
        description: one line.
        licence: such as `CC-BY-4.0`.
        card: text in Markdown.
        schema: type by column, as `Reader.schema`.
        fingerprint: that of `Reader.fingerprint`.
        record_count, size_bytes: of all files.
        files: in the order of the records.
        tags: the tags that stand for this version when it was listed; these move.
        address: what `show` and `diff` take, and at a daemon `ffrecord.open`. `archive.pull` takes
            the place and, separately, `version`.
    """

    dataset: str
    version: str
    created_s: int
    parent: str | None
    description: str
    licence: str
    card: str
    schema: dict[str, str]
    fingerprint: str
    record_count: int
    size_bytes: int
    files: tuple[VersionFile, ...]
    tags: tuple[str, ...] = ()
    address: str = ""
    # At a store: what identifies each stored file, as in a list of `archive.push`.
    stored: Mapping[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """Name and version, as the states of loaders record them."""
        return f"{self.dataset}@{self.version}"


@dataclass(frozen=True)
class Document:
    """All versions of one dataset, in the order of their publication.

    `removed` are the names of versions that were removed: these are never used again, so what was
    recorded about a version stays true.
    """

    place: str
    step: int = -1
    versions: tuple[Version, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def find(self, name: str | None) -> Version:
        """The version of that name or tag; None: the newest.

        Raises:
            FileNotFoundError: there is none; the message names those that there are.
        """
        if name is None and self.versions:
            return self.versions[-1]
        wanted = self.tags.get(name or "", name)
        for version in self.versions:
            if version.version == wanted:
                return version
        raise FileNotFoundError(errno.ENOENT, self._not_found(name))

    def _not_found(self, name: str | None) -> str:
        if name is not None and name in self.removed:
            return f"{with_version(self.place, name)} was removed"
        if not self.versions:
            were_some = "; all that it had were removed" if self.removed else ""
            return f"{self.place} has no versions{were_some}"
        there = [version.version for version in self.versions]
        shown = ", ".join(there[-5:]) + (" and earlier ones" if len(there) > 5 else "")
        return f"{self.place} has no version or tag {name!r}; it has {shown}"

    def refuse_unless_version(self, name: str) -> None:
        """Raise FileNotFoundError if no version has this name; that of a tag is none."""
        if name in self.tags:
            raise FileNotFoundError(
                errno.ENOENT,
                f"{self.place}: {name!r} is a tag of version {self.tags[name]}; name the version",
            )
        if name not in {version.version for version in self.versions}:
            raise FileNotFoundError(errno.ENOENT, self._not_found(name))

    def refuse_taken(self, name: str) -> None:
        """Raise ConflictError if a new version cannot have this name."""
        where = with_version(self.place, name)
        if self.has(name):
            raise ConflictError(
                errno.EEXIST,
                f"{where} exists already, with other files or another card, and a version never "
                "changes; choose another",
            )
        if name in self.removed:
            raise ConflictError(
                errno.EEXIST, f"{where} was removed, and is not used again; choose another version"
            )
        if name in self.tags:
            raise ConflictError(
                errno.EEXIST,
                f"{where} is a tag of version {self.tags[name]}; choose another version",
            )

    def has(self, name: str) -> bool:
        """Whether there is a version of this name."""
        return any(version.version == name for version in self.versions)

    def with_new(self, version: Version, tags: tuple[str, ...]) -> "Document":
        """The document with a version more, the newest, and its tags.

        This document, if it has exactly that: an earlier call was carried out, and its caller has
        not heard of it.

        Raises:
            ConflictError: the name is taken.
        """
        if any(self._is_same(there, version) for there in self.versions):
            self._refuse_moved(version.version, tags)
            return self
        self.refuse_taken(version.version)
        made = replace(version, parent=self.versions[-1].version if self.versions else None)
        more = replace(self, versions=(*self.versions, made))
        for tag in tags:
            more = more.tagged(tag, version.version)
        return more

    def _is_same(self, there: Version, made: Version) -> bool:
        """Whether `there` is what the call that has made `made` publishes; not when it did."""

        def facts(version: Version) -> tuple[object, ...]:
            # A daemon's names of files are for people: two of one name get different ones there.
            is_served = self.place.startswith(SCHEME)
            files = [replace(each, name="" if is_served else each.name) for each in version.files]
            said = version.description, version.licence, version.card
            return version.version, *said, dict(version.schema), version.fingerprint, files

        return facts(there) == facts(made)

    def _refuse_moved(self, version: str, tags: tuple[str, ...]) -> None:
        """Raise ConflictError if a tag does not stand for a version; others may have moved it."""
        for tag in tags:
            if self.tags.get(tag) != version:
                raise ConflictError(
                    errno.EEXIST,
                    f"{with_version(self.place, version)} exists already, with these files and this"
                    f" card, and {tag!r} does not stand for it; ffrecord tag moves a tag",
                )

    def tagged(self, tag: str, version: str) -> "Document":
        """The document with a tag that stands for a version from then on; this one, if it does.

        Raises:
            FileNotFoundError: there is no such version.
            ConflictError: the tag is the name of a version.
        """
        found = self.find(version)
        if tag in {each.version for each in self.versions} | {*self.removed}:
            raise ConflictError(
                errno.EEXIST, f"{self.place}: {tag!r} is a version, and cannot be a tag too"
            )
        if self.tags.get(tag) == found.version:
            return self
        return replace(self, tags={**self.tags, tag: found.version})

    def untagged(self, tag: str) -> "Document":
        """The document without a tag.

        Raises:
            FileNotFoundError: there is no such tag.
        """
        if tag not in self.tags:
            raise FileNotFoundError(errno.ENOENT, f"{self.place} has no tag {tag!r}")
        return replace(self, tags={key: of for key, of in self.tags.items() if key != tag})

    def without(self, name: str) -> "Document":
        """The document without a version and its tags.

        Raises:
            FileNotFoundError: there is no such version.
        """
        self.refuse_unless_version(name)
        return replace(
            self,
            versions=tuple(each for each in self.versions if each.version != name),
            tags={key: of for key, of in self.tags.items() if of != name},
            removed=(*self.removed, name),
        )


def has_versions(place: str, timeout_s: float) -> bool:
    """Whether a dataset has, or has had, versions."""
    return bool(_ffrecord.list_steps(below(place, CATALOGUE), timeout_s))


def read(place: str, timeout_s: float, known: int = -1) -> Document:
    """The versions of the dataset at `place`; none if it has no document.

    `known`: a step that is there, which a store need not list yet.

    Raises:
        CorruptionError: the document is damaged, or none.
        ValueError: a later release has written it.
    """
    run = below(place, CATALOGUE)
    step = max([known, *_ffrecord.list_steps(run, timeout_s)])
    if step < 0:
        return Document(place)
    try:
        stored: Any = ckpt.load(run, step=step, group="alone", resume=False, timeout_s=timeout_s)
    except CorruptionError as error:
        raise CorruptionError(
            f"{run}, step {step}: the newest list of versions is damaged ({error}); remove that "
            "step with ffrecord.checkpoint.remove, and publish what its change added again"
        ) from None
    return _decoded(place, step, stored)


def change(place: str, alter: Callable[[Document], Document], timeout_s: float) -> Document:
    """Save what `alter` makes of the document, which may have been changed by others meanwhile.

    `alter` may be called several times, and may raise. Nothing is saved if it changes nothing.

    Raises:
        ConflictError: others have changed it all the time.
    """
    run = below(place, CATALOGUE)
    known = -1
    for _ in range(_TRIES_MAX):
        made = alter(now := read(place, timeout_s, known))
        if made is now:
            return now
        try:
            ckpt.save(run, now.step + 1, _encoded(made), group="alone", timeout_s=timeout_s)
        except ConflictError as error:
            known = now.step + 1
            if known not in _ffrecord.list_steps(run, timeout_s):
                _raise_unless_there(place, known, timeout_s, error)
            continue
        return _settled(replace(made, step=now.step + 1))
    raise ConflictError(errno.EEXIST, f"{place}: others go on changing its versions; try again")


def _raise_unless_there(place: str, step: int, timeout_s: float, error: ConflictError) -> None:
    """Raise the error unless it is due to a step that a store does not list yet."""
    try:
        read(place, timeout_s, step)
    except FileNotFoundError:
        raise error from None


def name_of(place: str) -> str:
    """The name of the dataset at a place: at a daemon all of it, elsewhere the last segment."""
    if place.startswith(SCHEME):
        return place.removeprefix(SCHEME).partition("?")[0].partition("/")[2]
    if place.startswith(SEVERAL):
        return name_of(split_places(place)[2][0])
    return place.rstrip("/").rpartition("/")[2]


def is_file_name(name: object) -> bool:
    """Whether it can be the name of a file in a folder: names come from outside."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and "\0" not in name
    )


def is_count(number: object) -> bool:
    """Whether it can be a count, a size or a step: numbers come from outside."""
    return type(number) is int and 0 <= number < 1 << 63


_TEXTS = ("version", "description", "licence", "card", "fingerprint")
_COUNTS = ("created_s", "record_count", "size_bytes")
# A calendar ends there.
_YEAR_10000_S = 253_402_300_800


def _encoded(document: Document) -> dict[str, Any]:
    versions = []
    for version in document.versions:
        facts: dict[str, Any] = {key: getattr(version, key) for key in (*_TEXTS, *_COUNTS)}
        facts |= {"parent": version.parent, "schema": dict(version.schema)}
        facts["files"] = [
            [file.name, file.size_bytes, file.record_count, file.fingerprint]
            for file in version.files
        ]
        facts["stored"] = {name: dict(each) for name, each in version.stored.items()}
        versions.append(facts)
    return {
        "format": _FORMAT,
        "versions": versions,
        "tags": dict(document.tags),
        "removed": list(document.removed),
    }


def _decoded(place: str, step: int, stored: Any) -> Document:  # noqa: ANN401 - from outside
    """The document that was stored; it comes from outside, and names paths."""
    trouble = f"{below(place, CATALOGUE)}, step {step}: not a list of versions"
    if not isinstance(stored, dict) or not isinstance(stored.get("format"), int):
        raise CorruptionError(trouble)
    if stored["format"] > _FORMAT:
        raise ValueError(f"{place}: a later release of ffrecord lists its versions; upgrade")
    try:
        tags = dict(stored["tags"])
        versions = tuple(_version(place, facts) for facts in stored["versions"])
        removed = tuple(stored["removed"])
        names = [*(version.version for version in versions), *tags, *removed]
        _check(all(map(_is_name, names)) and len(set(names)) == len(names))
        _check(set(tags.values()) <= {version.version for version in versions})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"{trouble} ({error})") from None
    return _settled(Document(place, step, versions, tags, removed))


def _settled(document: Document) -> Document:
    """The document whose versions know their tags."""
    tags = {
        version.version: tuple(
            sorted(tag for tag, of in document.tags.items() if of == version.version)
        )
        for version in document.versions
    }
    versions = (replace(each, tags=tags[each.version]) for each in document.versions)
    return replace(document, versions=tuple(versions))


def _version(place: str, facts: dict[str, Any]) -> Version:
    values = {key: facts[key] for key in (*_TEXTS, *_COUNTS)}
    files = tuple(VersionFile(*each) for each in facts["files"])
    stored, schema = dict(facts["stored"]), dict(facts["schema"])
    texts = [*(values[key] for key in _TEXTS), *schema, *schema.values()]
    counts = [values[key] for key in _COUNTS]
    for file in files:
        texts.append(file.fingerprint)
        counts += [file.size_bytes, file.record_count]
    _check(all(type(each) is str for each in texts))
    _check(all(map(is_count, counts)) and values["created_s"] < _YEAR_10000_S)
    _check(all(is_file_name(file.name) for file in files) and all(map(is_file_name, stored)))
    name, parent = values["version"], facts["parent"]
    _check(_is_name(name) and (parent is None or _is_name(parent)))
    return Version(
        dataset=name_of(place),
        parent=parent,
        schema=schema,
        files=files,
        address=with_version(place, name),
        stored=stored,
        **values,
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and VERSION.fullmatch(name) is not None


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("a name or a number in it is invalid")
