"""Goal: versions of datasets stay what they were published as, wherever they are kept.

Method: the same test at a daemon, in a folder and in a bucket: publish, list, compare, tag, and
open or pull again; then what differs between the places.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from ffrecord import archive, catalogue
from ffrecord.errors import ConflictError
from object_store import Store

PLACES = ["daemon", "folder", "bucket"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "daemon") as running:
        yield running


@pytest.fixture(params=PLACES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where datasets are kept; names are appended."""
    if request.param == "daemon":
        daemon: Daemon = request.getfixturevalue("daemon")
        return daemon.address().rstrip("/")
    if request.param == "folder":
        (tmp_path / "sets").mkdir()
        return str(tmp_path / "sets")
    request.getfixturevalue("store")
    return f"s3://bucket/{tmp_path.name}"


def make(path: Path, first: int, count: int = 20, columns: str = "i64") -> Path:
    with ffrecord.Writer(path, {"number": columns}) as writer:
        for number in range(first, first + count):
            writer.write({"number": number})
    return path


def numbers(root: str, name: str, folder: Path) -> list[int]:
    """The records of a dataset, read as that place is read."""
    where = f"{root}/{name}"
    if not root.startswith("ffrecord://"):
        place, _, version = where.rpartition("@") if "@" in name else (where, "", None)
        archive.pull(place, folder, version=version)
        found = catalogue.show(where)
        where = [str(folder / file.name) for file in found.files]  # type: ignore[assignment]
    with ffrecord.open(where) as reader:
        return [int(one["number"]) for one in reader.read(range(len(reader)))]


def test_versions_are_published_listed_and_read(root: str, tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = f"{root}/team/train"

    made = catalogue.publish(
        one, place, "1.0", description="Small numbers", licence="CC0-1.0", card="# Card\n\nText."
    )
    more = catalogue.publish([one, two], place, "1.1", tags=["best"])

    assert (made.record_count, made.parent, made.licence) == (20, None, "CC0-1.0")
    assert (more.record_count, more.parent, more.tags) == (40, "1.0", ("best",))
    assert made.schema == {"number": "i64"}
    with ffrecord.open(one) as local:
        assert made.fingerprint == local.fingerprint
    [listed] = catalogue.ls(root)
    assert listed.address == place
    assert [version.version for version in listed.versions] == ["1.0", "1.1"]
    assert catalogue.show(f"{place}@1.0") == made
    assert catalogue.show(place).version == catalogue.show(f"{place}@best").version == "1.1"
    assert catalogue.show(f"{place}@1.0").card == "# Card\n\nText."
    for name, count in [("@1.0", 20), ("@1.1", 40), ("@best", 40), ("", 40)]:
        folder = tmp_path / f"pulled{name}"
        assert numbers(root, f"team/train{name}", folder) == list(range(count)), name


def test_a_version_never_changes(root: str, tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = f"{root}/train"
    made = catalogue.publish(one, place, "1.0", tags=["stable"])

    with pytest.raises(ConflictError, match=r"train@1\.0 exists already, with other files"):
        catalogue.publish(two, place, "1.0")
    with pytest.raises(ConflictError, match=r"is a tag of version 1\.0"):
        catalogue.publish(two, place, "stable")
    with pytest.raises(ConflictError, match="is a version, and cannot be a tag"):
        catalogue.publish(two, place, "2.0", tags=["1.0"])
    with pytest.raises(ConflictError, match="has versions"):
        if root.startswith("ffrecord://"):
            ffrecord.publish(two, place, replace=True)
        else:
            archive.push(two, place)

    assert catalogue.show(place) == made
    assert numbers(root, "train", tmp_path / "pulled") == list(range(20))


def test_a_tag_moves_at_once_and_may_be_removed(root: str, tmp_path: Path) -> None:
    place = f"{root}/train"
    for number in range(3):
        catalogue.publish(make(tmp_path / f"{number}.ffr", number), place, f"v{number}")

    assert catalogue.tag(f"{place}@v0", "best").version == "v0"
    assert catalogue.tag(f"{place}@v1", "best").tags == ("best",)
    assert catalogue.show(f"{place}@v0").tags == ()
    assert catalogue.tag(f"{place}@best", "kept").version == "v1"
    assert catalogue.versions(place).tags == {"best": "v1", "kept": "v1"}

    catalogue.untag(f"{place}@best")

    with pytest.raises(FileNotFoundError, match="no version or tag 'best'; it has v0, v1, v2"):
        catalogue.show(f"{place}@best")
    with pytest.raises(FileNotFoundError, match="no tag 'v1'"):
        catalogue.untag(f"{place}@v1")
    with pytest.raises(FileNotFoundError, match="no version or tag 'v9'"):
        catalogue.tag(f"{place}@v9", "best")


def test_a_difference_names_columns_files_and_what_is_shared(root: str, tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = f"{root}/train"
    catalogue.publish(one, place, "1")
    catalogue.publish([one, two], place, "2")
    (tmp_path / "c").mkdir()
    catalogue.publish(make(tmp_path / "c" / "a.ffr", 0, 30, "f32"), place, "3")

    grown = catalogue.diff(f"{place}@1", f"{place}@2")
    other = catalogue.diff(f"{place}@2", f"{place}@3")

    assert not grown.is_same
    assert (grown.record_count, grown.files_added, grown.files_same) == (20, ("b.ffr",), ("a.ffr",))
    shares = not root.startswith("ffrecord://")
    assert grown.shared_bytes == (one.stat().st_size if shares else 0)
    assert other.columns_changed == {"number": ("i64", "f32")}
    assert (other.files_changed, other.files_removed) == (("a.ffr",), ("b.ffr",))
    assert catalogue.diff(f"{place}@1", f"{place}@1").is_same


def test_search_looks_at_cards_and_columns(root: str, tmp_path: Path) -> None:
    speech, image = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 5)
    catalogue.publish(speech, f"{root}/speech", "1", description="Spoken digits", card="16 kHz")
    catalogue.publish(image, f"{root}/images", "1", licence="CC-BY-4.0", tags=["small"])

    def found(text: str) -> list[str]:
        return [version.label.rpartition("/")[2] for version in catalogue.search(text, root)]

    assert found("spoken KHZ") == ["speech@1"]
    assert found("cc-by") == found("small") == ["images@1"]
    assert found("number") == ["images@1", "speech@1"]
    assert found("nothing like it") == []


def test_versions_published_at_once_are_all_there(root: str, tmp_path: Path) -> None:
    files = [make(tmp_path / f"{number}.ffr", number) for number in range(4)]
    place, failures = f"{root}/train", []
    barrier = threading.Barrier(len(files))

    def run(number: int) -> None:
        barrier.wait()
        try:
            catalogue.publish(files[number], place, f"v{number}", tags=["last"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(files))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert failures == []
    found = catalogue.versions(place)
    assert sorted(version.version for version in found.versions) == ["v0", "v1", "v2", "v3"]
    assert found.versions[-1].tags == ("last",)
    assert [v.parent for v in found.versions] == [None, *(v.version for v in found.versions[:-1])]


def test_files_of_one_name_published_at_once_are_each_their_version(
    root: str, tmp_path: Path
) -> None:
    files = [tmp_path / str(number) / "a.ffr" for number in range(3)]
    for number, file in enumerate(files):
        file.parent.mkdir()
        make(file, 100 * number)
    failures = []
    barrier = threading.Barrier(len(files))

    def run(number: int) -> None:
        barrier.wait()
        try:
            catalogue.publish(files[number], f"{root}/train", f"v{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(files))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert failures == []
    for number in range(len(files)):
        found = numbers(root, f"train@v{number}", tmp_path / f"pulled{number}")
        assert found == list(range(100 * number, 100 * number + 20))


def test_a_slash_at_the_end_makes_no_difference(tmp_path: Path, store: object) -> None:
    file = make(tmp_path / "a.ffr", 0)
    for place in (str(tmp_path / "sets"), f"s3://bucket/{tmp_path.name}"):
        catalogue.publish(file, f"{place}/", "1")
        assert catalogue.show(place).version == "1"
        assert archive.pull(f"{place}/", tmp_path / "pulled", version="1")
        (tmp_path / "pulled" / "a.ffr").unlink()


def test_a_bucket_that_lists_a_change_late_loses_none(tmp_path: Path, store: Store) -> None:
    place = f"s3://bucket/{tmp_path.name}"
    files = [make(tmp_path / f"{first}.ffr", first) for first in range(3)]
    catalogue.publish(files[0], place, "1")
    lists: dict[str, list[bytes]] = {}
    serve = store.app

    def serve_old_lists(
        environ: dict[str, Any], start_response: Callable[..., object]
    ) -> list[bytes]:
        query = environ["QUERY_STRING"]
        if "list-type" not in query:
            return list(serve(environ, start_response))
        if query not in lists:
            lists[query] = list(serve(environ, start_response))
        else:
            size = str(sum(map(len, lists[query])))
            start_response("200 OK", [("Content-Type", "text/xml"), ("Content-Length", size)])
        return lists[query]

    store.app = serve_old_lists
    catalogue.versions(place)
    for version, file in (("2", files[1]), ("3", files[2])):
        catalogue.publish(file, place, version)
    store.app = serve

    assert [each.version for each in catalogue.versions(place).versions] == ["1", "2", "3"]


def test_characters_of_patterns_in_a_bucket_are_plain(tmp_path: Path, store: object) -> None:
    file = make(tmp_path / "a.ffr", 0)
    for name in ("a[1]", "a1", "a?b", "axb"):
        catalogue.publish(file, f"s3://bucket/{tmp_path.name}/{name}", "1")

    for name in ("a[1]", "a?b"):
        place = f"s3://bucket/{tmp_path.name}/{name}"
        assert [each.name for each in catalogue.ls(place)] == [name]


def test_a_pushed_dataset_keeps_its_place(root: str, tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = f"{root}/train"
    archive.push(one, place)

    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="has what push or a checkpoint has stored there"):
            catalogue.publish(two, place, "1", dry_run=dry_run)

    archive.push([one, two], place)
    assert archive.pull(place, tmp_path / "pulled") == ["a.ffr", "b.ffr"]


def test_one_version_published_at_once_is_that_of_one(root: str, tmp_path: Path) -> None:
    files = [make(tmp_path / f"{number}.ffr", number) for number in range(3)]
    place = f"{root}/train"
    results: list[object] = [None] * len(files)
    barrier = threading.Barrier(len(files))

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = catalogue.publish(files[number], place, "1.0")
        except ConflictError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(files))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    done = [isinstance(each, catalogue.Version) for each in results]
    assert done.count(True) == 1, results
    winner = done.index(True)
    assert catalogue.show(f"{place}@1.0") == results[winner]
    assert numbers(root, "train@1.0", tmp_path / "pulled") == list(range(winner, winner + 20))


def test_a_call_that_is_repeated_after_its_commit_succeeds(root: str, tmp_path: Path) -> None:
    files, place = [make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)], f"{root}/train"
    card: dict[str, Any] = {"description": "first", "card": "# Card", "tags": ["best"]}
    made = catalogue.publish(files, place, "1.0", **card)
    catalogue.publish(make(tmp_path / "c.ffr", 40), place, "1.1")
    changes = len(ckpt.list(f"{root}/train/.catalogue"))

    again = catalogue.publish(files, place, "1.0", **card)
    tried = catalogue.publish(files, place, "1.0", **card, dry_run=True)

    assert again == tried == made
    assert catalogue.tag(f"{place}@1.0", "best") == made
    assert len(ckpt.list(f"{root}/train/.catalogue")) == changes
    assert [each.version for each in catalogue.versions(place).versions] == ["1.0", "1.1"]
    for other in ({**card, "description": "second"}, {"card": "# Card"}):
        with pytest.raises(ConflictError, match="with other files or another card"):
            catalogue.publish(files, place, "1.0", **other)
    with pytest.raises(ConflictError, match="with other files or another card"):
        catalogue.publish(files[::-1], place, "1.0", **card)
    catalogue.tag(f"{place}@1.1", "best")
    with pytest.raises(ConflictError, match="'best' does not stand for it"):
        catalogue.publish(files, place, "1.0", **card)
    assert catalogue.show(f"{place}@best").version == "1.1"


def test_one_version_of_the_same_files_may_be_published_at_once(root: str, tmp_path: Path) -> None:
    file, place = make(tmp_path / "a.ffr", 0), f"{root}/train"
    barrier = threading.Barrier(3)

    def run(_: int) -> catalogue.Version:
        barrier.wait()
        return catalogue.publish(file, place, "1.0", tags=["best"])

    with futures.ThreadPoolExecutor(3) as threads:
        made = list(threads.map(run, range(3)))

    assert made == [catalogue.show(f"{place}@1.0")] * 3
    assert numbers(root, "train@1.0", tmp_path / "pulled") == list(range(20))


@pytest.mark.parametrize("version", ["", "-1", "a b", "a@b", "a/b", "x" * 65, "é"])
def test_a_bad_version_is_refused(root: str, tmp_path: Path, version: str) -> None:
    with pytest.raises(ValueError, match="cannot be a version: write 1 to 64 characters"):
        catalogue.publish(make(tmp_path / "a.ffr", 0), f"{root}/train", version)
    assert catalogue.ls(root) == []
