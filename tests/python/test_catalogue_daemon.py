"""Goal: a version at a daemon or in a cluster is opened by name, and states tell which it was.

Method: real daemons; publications and removals that were cut off are made by their own steps.
"""

import errno
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch.utils.data as data

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from cluster import cluster_in, kill
from daemon import Daemon
from ffrecord import archive, catalogue
from ffrecord._cli.tokens import make_token
from ffrecord.errors import ConflictError, CorruptionError
from ffrecord.torch import DataLoader, Dataset, Sampler


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "daemon") as running:
        yield running


def make(path: Path, first: int, count: int = 20) -> Path:
    with ffrecord.Writer(path, {"number": "i64"}) as writer:
        for number in range(first, first + count):
            writer.write({"number": number})
    return path


def numbers(reader: ffrecord.Reader) -> list[int]:
    return [int(one["number"]) for one in reader.read(range(len(reader)))]


def test_a_reader_keeps_its_version_when_a_newer_one_appears(
    daemon: Daemon, tmp_path: Path
) -> None:
    place = daemon.address("team/train")
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1.0")
    reader, unread = ffrecord.open(place), ffrecord.open(place)
    assert reader.versions == ("team/train@1.0",)

    catalogue.publish(make(tmp_path / "b.ffr", 100), place, "2.0")

    assert numbers(pickle.loads(pickle.dumps(reader))) == numbers(reader) == list(range(20))
    assert numbers(unread) == list(range(20))
    assert ffrecord.open(place).versions == ("team/train@2.0",)
    views = ffrecord.concat([reader.subset([1, 2]), ffrecord.open(f"{place}@2.0")])
    assert views.versions == ("team/train@1.0", "team/train@2.0")
    assert "@1.0" not in str(unread.where)


def test_a_dataset_without_versions_is_opened_as_before(daemon: Daemon, tmp_path: Path) -> None:
    file = make(tmp_path / "a.ffr", 0)
    place = daemon.address("plain")
    ffrecord.publish(file, place)

    assert ffrecord.open(place).versions == ()
    with pytest.raises(ConflictError, match="is a dataset without versions; remove it, or choose"):
        catalogue.publish(file, place, "1.0")
    with pytest.raises(FileNotFoundError, match="plain has no versions"):
        ffrecord.open(f"{place}@1.0")
    with pytest.raises(FileNotFoundError, match="nothing"):
        ffrecord.open(daemon.address("nothing"))
    with pytest.raises(ValueError, match="is not NAME@VERSION"):
        ffrecord.open(f"{place}@")
    with pytest.raises(ValueError, match="names a version: publish and remove versions with"):
        ffrecord.publish(file, f"{place}@1.0")
    assert [each.name for each in ffrecord.list_published(daemon.address())] == ["plain"]


def test_a_removed_version_is_gone_and_its_name_is_not_used_again(
    daemon: Daemon, tmp_path: Path
) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = daemon.address("train")
    catalogue.publish(one, place, "1")
    catalogue.publish(two, place, "2", tags=["best"])
    reader = ffrecord.open(f"{place}@2")
    batch = reader.read([0])

    catalogue.remove(f"{place}@2")

    assert int(batch[0]["number"]) == 20
    assert ffrecord.open(place).versions == ("train@1",)
    for gone in ("@2", "@best"):
        with pytest.raises(FileNotFoundError, match=r"was removed|no version or tag"):
            ffrecord.open(f"{place}{gone}")
    with pytest.raises(ConflictError, match="was removed, and is not used again"):
        catalogue.publish(two, place, "2")
    with pytest.raises(FileNotFoundError, match="was removed"):
        catalogue.remove(f"{place}@2")
    names = [each.name for each in ffrecord.list_published(place)]
    assert not any(".versions/2" in name for name in names)

    catalogue.remove(f"{place}@1")

    with pytest.raises(FileNotFoundError, match="train has no versions; all that it had were remo"):
        ffrecord.open(place)
    assert "0 versions: all were removed" in cli.ok("ffrecord", "ls", daemon.address())
    for flag in ((), ("--overwrite",)):  # The remedy is not a flag that is refused then.
        refused = cli.run("ffrecord", "publish", str(one), place, *flag)
        assert refused.returncode == 4
        assert "has versions, or had some; give the files one" in refused.stderr


def test_a_removal_that_was_cut_off_is_completed(daemon: Daemon, tmp_path: Path) -> None:
    place, file = daemon.address("train"), make(tmp_path / "a.ffr", 0)
    catalogue.publish(file, place, "1")
    catalogue.remove(f"{place}@1")
    ffrecord.publish(file, f"{place}/.versions/1")  # As if it had ended before its last step.

    catalogue.remove(f"{place}@1")

    assert not any(".versions" in each.name for each in ffrecord.list_published(place))


def test_a_publication_that_was_cut_off_is_continued_or_named(
    daemon: Daemon, tmp_path: Path
) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = daemon.address("train")
    ffrecord.publish(one, f"{place}/.versions/1")  # As if it had ended before its last step.

    assert catalogue.ls(daemon.address()) == []
    with pytest.raises(FileNotFoundError):
        ffrecord.open(f"{place}@1")
    with pytest.raises(ConflictError, match=r"with other files, and that did not end: remove"):
        catalogue.publish(two, place, "1")
    assert catalogue.publish(one, place, "1").record_count == 20
    assert numbers(ffrecord.open(f"{place}@1")) == list(range(20))


def test_data_that_was_replaced_is_not_read_as_the_version(daemon: Daemon, tmp_path: Path) -> None:
    place = daemon.address("train")
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1")
    ffrecord.publish(make(tmp_path / "b.ffr", 20), f"{place}/.versions/1", replace=True)

    with pytest.raises(CorruptionError, match="its data was replaced"):
        len(ffrecord.open(f"{place}@1"))


@pytest.mark.parametrize("change", ["more", "other", "none"])
def test_a_state_of_another_version_is_refused_by_both_names(
    daemon: Daemon, tmp_path: Path, change: str
) -> None:
    place = daemon.address("team/train")
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1.0")
    files = {"more": (0, 30), "other": (5, 20), "none": (0, 20)}[change]
    catalogue.publish(make(tmp_path / "b.ffr", *files), place, "1.1")

    def loader(version: str) -> DataLoader:  # type: ignore[type-arg]
        dataset = Dataset(f"{place}@{version}")
        return DataLoader(dataset, batch_sampler=Sampler(dataset, global_batch=4, seed=3))

    before = loader("1.0")
    batches = iter(before)
    next(batches)
    state = json.loads(json.dumps(before.state_dict()))
    ckpt.save(tmp_path / "run", 1, {"loader": state}, group="alone")
    saved = ckpt.load(tmp_path / "run", group="alone")["loader"]  # type: ignore[index]

    assert "team/train@1.0" in json.dumps(saved)
    after = loader("1.1")
    if change == "none":  # The same records: another name for the same stream.
        after.load_state_dict(saved)
        assert "team/train@1.1" in json.dumps(after.state_dict())
        return
    with pytest.raises(
        ValueError, match=r"the state is of team/train@1\.0, the dataset is team/train@1\.1"
    ):
        after.load_state_dict(saved)
    again = loader("1.0")
    again.load_state_dict(saved)
    assert [b["number"].tolist() for b in again] == [b["number"].tolist() for b in batches]


def test_a_state_of_torchs_own_sampler_names_versions(daemon: Daemon, tmp_path: Path) -> None:
    place = daemon.address("train")
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1")
    catalogue.publish(make(tmp_path / "b.ffr", 7), place, "2")
    both = data.ConcatDataset([Dataset(f"{place}@1"), Dataset(f"{place}@2")])
    state = DataLoader(both, batch_size=4, shuffle=True).state_dict()
    assert state["versions"] == ["train@1", "train@2"]

    other = data.ConcatDataset([Dataset(f"{place}@2"), Dataset(f"{place}@1")])
    with pytest.raises(ValueError, match="is of train@1, train@2, the dataset is train@2, train@1"):
        DataLoader(other, batch_size=4, shuffle=True).load_state_dict(state)


def test_a_token_gives_access_to_the_versions_below_its_prefix(tmp_path: Path) -> None:
    keys, key = tmp_path / "keys", b"k" * 32
    keys.touch(0o600)
    keys.write_text(key.hex() + "\n")
    clients = {"writer": ("team/", ["read", "write"]), "reader": ("team/", ["read"])}
    clients["other"] = ("others/", ["read", "write"])
    clients["inner"] = ("team/train/", ["read", "write"])
    clients["blind"] = ("team/", ["write"])
    for client, (prefix, rights) in clients.items():
        token = make_token(
            key, prefix=prefix, rights=rights, expires_s=int(time.time()) + 600, client=client
        )
        (tmp_path / client).touch(0o600)
        (tmp_path / client).write_text(token + "\n")
    file = make(tmp_path / "a.ffr", 0)
    with Daemon(tmp_path / "daemon", "--token-keys", str(keys)) as daemon:

        def place(client: str, name: str = "team/train") -> str:
            return f"{daemon.address(name)}?token_file={tmp_path / client}"

        made = catalogue.publish(file, place("writer"), "1")
        assert made.address == f"{daemon.address('team/train@1')}?token_file={tmp_path / 'writer'}"
        reader = ffrecord.open(place("reader", "team/train@1"))
        assert numbers(reader) == list(range(20))
        assert reader.versions == ("team/train@1",)
        with pytest.raises(PermissionError):
            catalogue.publish(file, place("reader"), "2")
        with pytest.raises(PermissionError):
            catalogue.tag(place("reader", "team/train@1"), "best")
        for name in ("team/train", "team/train@1"):
            with pytest.raises(PermissionError):
                len(ffrecord.open(place("other", name)))
        assert [each.address for each in catalogue.ls(place("reader", "team/"))] == [
            place("reader")
        ]
        assert catalogue.publish(file, place("inner"), "2").parent == "1"
        with pytest.raises(ConflictError, match="train has versions"):
            ffrecord.publish(file, place("blind"), replace=True)
        assert ffrecord.open(place("reader")).versions == ("team/train@2",)


def test_a_version_at_a_daemon_is_not_pulled(daemon: Daemon, tmp_path: Path) -> None:
    place, file = daemon.address("train"), make(tmp_path / "a.ffr", 0)
    catalogue.publish(file, place, "1", tags=["best"])
    for target in (place, f"{place}@1", f"{place}@best"):
        with pytest.raises(ValueError, match=r"train@1 is at a daemon|train@best is at a daemon"):
            archive.pull(target, tmp_path / "pulled")
    ffrecord.publish(file, daemon.address("plain"))
    with pytest.raises(FileNotFoundError, match="published at a daemon is opened, not pulled"):
        archive.pull(daemon.address("plain"), tmp_path / "pulled")
    catalogue.publish(file, tmp_path / "store", "1")
    with pytest.raises(FileNotFoundError, match=r"store --version 1"):
        archive.pull(f"{tmp_path}/store@1", tmp_path / "pulled")


def test_versions_survive_the_loss_of_a_node(tmp_path: Path) -> None:
    with cluster_in(tmp_path / "cluster") as cluster:
        hosts = ",".join(node.listen for node in cluster.nodes)
        place = f"ffrecord://{hosts}/team/train"
        catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1.0")
        catalogue.publish(
            make(tmp_path / "b.ffr", 20), place, "1.1", durability="ec:2+1", tags=["best"]
        )

        kill(cluster, cluster.nodes[0].name)

        assert numbers(ffrecord.open(f"{place}@1.0")) == list(range(20))
        assert numbers(ffrecord.open(f"{place}@best")) == list(range(20, 40))
        catalogue.tag(f"{place}@1.0", "best")
        assert catalogue.show(f"{place}@best").version == "1.0"
        [listed] = catalogue.ls(f"ffrecord://{hosts}/")
        assert [version.version for version in listed.versions] == ["1.0", "1.1"]


def test_versions_survive_a_kill_of_the_daemon(daemon: Daemon, tmp_path: Path) -> None:
    place = daemon.address("train")
    made = catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1", card="Text")
    daemon.kill()
    daemon.start()
    assert catalogue.show(place) == made
    assert numbers(ffrecord.open(place)) == list(range(20))


def test_a_damaged_list_of_versions_is_named_and_hides_no_other(tmp_path: Path) -> None:
    file, root = make(tmp_path / "a.ffr", 0), tmp_path / "sets"
    for name in ("one", "two"):
        catalogue.publish(file, root / name, "1")
    for damage in (
        {"format": 1},
        {"format": 1, "versions": [], "tags": {"best": "9"}, "removed": []},
        {"format": 1, "versions": [{"version": "../x"}], "tags": {}, "removed": []},
    ):
        step = max(commit.step for commit in ckpt.list(root / "one" / ".catalogue")) + 1
        ckpt.save(root / "one" / ".catalogue", step, damage, group="alone")
        with pytest.raises(CorruptionError, match="not a list of versions"):
            catalogue.show(root / "one")
    ckpt.save(root / "one" / ".catalogue", 9, {"format": 2}, group="alone")
    with pytest.raises(ValueError, match="a later release of ffrecord lists its versions"):
        catalogue.publish(file, root / "one", "2")

    one, two = catalogue.ls(root)
    assert "a later release" in one.problem
    assert [version.version for version in two.versions] == ["1"]


def forged(place: Path, **facts: object) -> None:
    """Save a list of versions as someone who may write could, who is not this program."""
    stored = cast(dict[str, Any], ckpt.load(place / ".catalogue", group="alone", resume=False))
    for name, value in facts.items():
        into = stored if name in stored else stored["versions"][0]
        into[name] = value
    step = max(commit.step for commit in ckpt.list(place / ".catalogue")) + 1
    ckpt.save(place / ".catalogue", step, stored, group="alone")


@pytest.mark.parametrize(
    "facts",
    [
        {"created_s": 10**17},
        {"record_count": 10**30},
        {"schema": {"a": 2}},
        {"schema": {1: "i64"}},
        {"parent": 7},
        {"files": [["a.ffr", "x", 1, "f"]]},
        {"files": [["a.ffr", -5, 1, "f"]]},
        {"files": [["a.ffr", 1, 1, 1]]},
        {"tags": {"1": "1"}},
        {"removed": ["1"]},
    ],
    ids=str,
)
def test_a_forged_list_of_versions_hides_no_other(tmp_path: Path, facts: dict[str, Any]) -> None:
    file, root = make(tmp_path / "a.ffr", 0), tmp_path / "sets"
    for name in ("one", "two"):
        catalogue.publish(file, root / name, "1")
    forged(root / "one", **facts)

    with pytest.raises(CorruptionError, match="not a list of versions"):
        catalogue.show(root / "one")
    one, two = catalogue.ls(root)
    assert "not a list of versions" in one.problem
    assert [version.version for version in two.versions] == ["1"]
    assert [version.dataset for version in catalogue.search("number", root)] == ["two"]
    assert "not a list of versions" in cli.run("ffrecord", "ls", str(root)).stdout


@pytest.mark.parametrize("step", [-1, 2**63])
def test_a_forged_step_of_a_file_is_damage(tmp_path: Path, step: int) -> None:
    place = tmp_path / "train"
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1")
    facts = {"step": step, "size_bytes": 1, "fingerprint": "f"}
    forged(place, stored={"a.ffr": facts})

    with pytest.raises(CorruptionError, match="the list of its files is damaged"):
        archive.pull(place, tmp_path / "pulled")


def test_datasets_of_any_name_in_a_folder_are_listed(tmp_path: Path) -> None:
    file, names = make(tmp_path / "a.ffr", 0), ["step-by-step", "step-1x", "train"]
    for name in names:
        catalogue.publish(file, tmp_path / "sets" / name, "1")

    assert sorted(each.name for each in catalogue.ls(tmp_path / "sets")) == sorted(names)


def test_a_name_that_leaves_no_room_for_versions_is_as_before(
    daemon: Daemon, tmp_path: Path
) -> None:
    place, file = daemon.address("n" * 255), make(tmp_path / "a.ffr", 0)
    with pytest.raises(FileNotFoundError, match="nothing is published under the name"):
        len(ffrecord.open(place))
    ffrecord.publish(file, place)
    assert len(ffrecord.open(place)) == 20


def test_a_full_quota_is_no_dead_end(tmp_path: Path) -> None:
    with Daemon(tmp_path / "daemon", "--quotas", "team/=100K") as daemon:
        place = daemon.address("team/train")
        catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1")
        with pytest.raises(OSError, match="quota") as full:
            for step in range(10_000):
                ckpt.save(daemon.address("team/run"), step, {"step": step}, group="alone")
        assert full.value.errno == errno.EDQUOT

        with pytest.raises(OSError, match=r"remove \S+train/.versions/1, then repeat") as refused:
            catalogue.remove(f"{place}@1")
        assert refused.value.errno == errno.EDQUOT
        assert len(ffrecord.open(f"{place}@1")) == 20
        ffrecord.remove_published(f"{place}/.versions/1")
        catalogue.remove(f"{place}@1")

        with pytest.raises(FileNotFoundError, match="was removed"):
            ffrecord.open(f"{place}@1")


def test_a_removal_that_would_fail_is_no_dry_run(daemon: Daemon, tmp_path: Path) -> None:
    place = daemon.address("train")
    catalogue.publish(make(tmp_path / "a.ffr", 0), place, "1", tags=["best"])
    for address, message in (
        (place, "has versions, or had some; name the version to remove"),
        (f"{place}@best", "'best' is a tag of version 1; name the version"),
    ):
        for flag in ("--dry-run", "--yes"):
            done = cli.run("ffrecord", "remove", address, flag)
            assert done.returncode == 4
            assert message in done.stderr
    assert "20 records" in cli.run("ffrecord", "remove", f"{place}@1", "--dry-run").stdout


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    file, place = make(tmp_path / "a.ffr", 0), tmp_path / "train"
    with pytest.raises(ValueError, match="one line of at most 1000 characters"):
        catalogue.publish(file, place, "1", description="a\nb")
    with pytest.raises(ValueError, match="the limit is 256 KiB"):
        catalogue.publish(file, place, "1", card="x" * (256 * 1024 + 1))
    with pytest.raises(ValueError, match="must have another name"):
        catalogue.publish(file, place, "1", tags=["1"])
    with pytest.raises(ValueError, match="durability is for versions in a cluster"):
        catalogue.publish(file, place, "1", durability="r2")
    with pytest.raises(ValueError, match="names a version; leave @1 out"):
        catalogue.publish(file, f"{place}@1", "1")
    with pytest.raises(TypeError, match=r"1\.0 cannot be a version: give a str"):
        catalogue.publish(file, place, 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give a list of tags"):
        catalogue.publish(file, place, "1", tags="best")
    with pytest.raises(ValueError, match="the description is not UTF-8"):
        catalogue.publish(file, place, "1", description="\udc80")
    with pytest.raises(TypeError, match="the card is None; give a str"):
        catalogue.publish(file, place, "1", card=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no name"):
        catalogue.publish(file, "ffrecord://localhost:1/", "1")
    with pytest.raises(ValueError, match="the place of the dataset is empty"):
        catalogue.publish(file, "", "1")
    with pytest.raises(ValueError, match="name the version to remove"):
        catalogue.remove("ffrecord://localhost:1/train")
    with pytest.raises(ValueError, match="have files in common, and are not removed"):
        catalogue.remove(f"{place}@1")
    with pytest.raises(ValueError, match="cannot be listed; give a daemon, a folder or a bucket"):
        catalogue.ls("https://localhost/x")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        catalogue.ls(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no versions"):
        archive.pull(place, tmp_path / "pulled", version="1")
    assert not place.exists()


def test_files_that_change_on_the_way_are_no_version(tmp_path: Path) -> None:
    file, place = make(tmp_path / "a.ffr", 0), tmp_path / "train"

    def replace(done: int, total: int) -> None:
        make(tmp_path / "b.ffr", 50).replace(file)

    with pytest.raises(ConflictError, match="were changed while they were stored"):
        catalogue.publish(file, place, "1", progress=replace)
    assert catalogue.ls(tmp_path) == []
    assert catalogue.publish(file, place, "1").record_count == 20


def test_a_dry_run_publishes_nothing(daemon: Daemon, tmp_path: Path) -> None:
    file = make(tmp_path / "a.ffr", 0)
    for place in (daemon.address("train"), str(tmp_path / "train")):
        made = catalogue.publish(file, place, "1", tags=["best"], dry_run=True)
        assert (made.record_count, made.version) == (20, "1")
    assert ffrecord.list_published(daemon.address()) == []
    assert not (tmp_path / "train").exists()


def test_the_commands_show_what_there_is(daemon: Daemon, tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    card, place = tmp_path / "card.md", daemon.address("team/train")
    card.write_text("# Numbers\n\nSmall ones.\n")
    options = ["--description", "Small numbers", "--licence", "CC0-1.0", "--card", str(card)]

    said = cli.ok("ffrecord", "publish", one, place, "--version", "1.0", *options, "--tag", "best")
    assert f"published {place}@1.0: 20 records" in said
    made = json.loads(cli.ok("ffrecord", "publish", one, two, place, "--version", "1.1", "--json"))
    assert (made["version"], made["parent"], made["dry_run"]) == ("1.1", "1.0", False)

    assert cli.ok("ffrecord", "ls", daemon.address()).splitlines()[0] == f"{place}  2 versions"
    shown = cli.ok("ffrecord", "show", f"{place}@best")
    assert "licence      CC0-1.0" in shown
    assert "# Numbers\n\nSmall ones." in shown
    assert json.loads(cli.ok("ffrecord", "show", place, "--json"))["version"] == "1.1"
    assert "team/train@1.0" in cli.ok("ffrecord", "search", "small", daemon.address())
    changes = cli.ok("ffrecord", "diff", f"{place}@1.0", f"{place}@1.1")
    assert "records  20 -> 40" in changes
    assert "+ file b.ffr" in changes
    assert "tagged" in cli.ok("ffrecord", "tag", f"{place}@1.1", "best")
    assert "removed" in cli.ok("ffrecord", "tag", f"{place}@best", "--remove")
    assert "records      20" in cli.ok("ffrecord", "inspect", f"{place}@1.0")
    assert "removed" in cli.ok("ffrecord", "remove", f"{place}@1.1", "--yes")
    refused = cli.run("ffrecord", "publish", two, place, "--version", "1.0")
    assert (refused.returncode, "a version never changes" in refused.stderr) == (4, True)
    misused = cli.run("ffrecord", "publish", two, place, "--licence", "MIT")
    assert (misused.returncode, "need --version" in misused.stderr) == (2, True)


def test_the_commands_keep_versions_in_a_folder(tmp_path: Path) -> None:
    one, two = make(tmp_path / "a.ffr", 0), make(tmp_path / "b.ffr", 20)
    place = tmp_path / "sets" / "train"
    cli.ok("ffrecord", "publish", one, place, "--version", "1")
    cli.ok("ffrecord", "publish", one, two, place, "--version", "2")
    cli.ok("ffrecord", "pull", place, tmp_path / "old", "--version", "1")
    cli.ok("ffrecord", "pull", place, tmp_path / "new")
    assert (len(ffrecord.open(tmp_path / "old")), len(ffrecord.open(tmp_path / "new"))) == (20, 40)
    assert "stored once for both" in cli.ok("ffrecord", "diff", f"{place}@1", f"{place}@2")
