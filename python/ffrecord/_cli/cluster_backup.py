"""`ffrecord cluster backup|restore|rebuild|confirm`: the metadata, saved and put back."""

import base64
import binascii
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

import click

from ffrecord import _ffrecord
from ffrecord._base.folders import sync_folder
from ffrecord._cli.console import confirm as ask
from ffrecord._cli.options import json_option, timeout_option
from ffrecord._cli.units import Name, show_size
from ffrecord.errors import CorruptionError

_FORMAT = "ffrecord cluster backup 1"
_LISTED_MAX = 100

Key = tuple[str, int, bytes]

_timeout = timeout_option(60.0, "Time limit in seconds of each request.")
_as_json = json_option()
_address = click.argument("address", type=Name())
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command()
@_address
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@_timeout
@_as_json
def backup(address: str, file: pathlib.Path, timeout_s: float, as_json: bool) -> None:
    """Save the metadata of the cluster at ADDRESS to FILE.

    The backup is consistent. FILE is replaced only once the backup is complete.
    """
    revision, keys = _ffrecord.read_metadata(address, timeout_s=timeout_s)
    write_backup(file, revision, keys)
    names = _count_names(keys)
    facts = {"file": str(file), "names": names, "keys": len(keys), "revision": revision}
    text = f"{file}: {names} names, {len(keys)} keys of revision {revision}"
    click.echo(json.dumps(facts) if as_json else text)


def _count_names(keys: list[Key]) -> int:
    return sum(key.startswith("datasets/") for key, _, _ in keys)


@click.command()
@_address
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path))
@_yes
@click.option("--dry-run", is_flag=True, help="Check FILE, and put nothing back.")
@_timeout
@_as_json
def restore(
    address: str, file: pathlib.Path, yes: bool, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Restore the backup FILE into the empty etcd of the cluster at ADDRESS.

    Afterwards the cluster serves again, but removes no data until `ffrecord cluster confirm`.
    To publish again the names that are newer than the backup, run `ffrecord cluster rebuild`.
    """
    number, keys = read_backup(file)
    facts = {"names": _count_names(keys), "keys": len(keys), "dry_run": dry_run}
    if dry_run:
        text = f"{file} is whole: {facts['names']} names, {len(keys)} keys would be put back"
        click.echo(json.dumps(facts) if as_json else text)
        return
    if not yes:
        ask(f"put {len(keys)} keys into the etcd of {address}?")
    _ffrecord.restore_metadata(address, number, keys, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"{len(keys)} keys are put back. Nothing is removed until `ffrecord cluster confirm"
        f" {address}`; before, see what `ffrecord cluster rebuild {address}` finds"
    )


@click.command()
@_address
@click.option("--dry-run", is_flag=True, help="Only list what differs.")
@click.option(
    "--remove-returned",
    is_flag=True,
    help="Remove names that were removed before and have returned. Their data is kept.",
)
@_timeout
@_as_json
def rebuild(
    address: str, dry_run: bool, remove_returned: bool, timeout_s: float, as_json: bool
) -> None:
    """Publish again the names that the nodes of the cluster at ADDRESS know and etcd lacks.

    Use it after etcd was lost, restored from a backup, or put back to an older snapshot. Every node
    keeps all names on its disks; `rebuild` uses those of the node that has seen most. It also fills
    an etcd that has no data of the cluster. Nodes remove no data before `ffrecord cluster confirm`.
    """
    work = "rebuild and remove" if remove_returned else "rebuild"
    found = json.loads(
        _ffrecord.work_on_metadata(address, "compare" if dry_run else work, timeout_s=timeout_s)
    )
    click.echo(json.dumps(found) if as_json else "\n".join(describe(found)))


@click.command()
@_address
@_yes
@click.option("--dry-run", is_flag=True, help="Only list what would be lost.")
@_timeout
@_as_json
def confirm(address: str, yes: bool, dry_run: bool, timeout_s: float, as_json: bool) -> None:
    """Let the nodes of the cluster at ADDRESS remove data again, after `rebuild`.

    First lists the names that the nodes know and etcd still lacks. These names are then lost, and
    their data may be removed.
    """
    found = json.loads(_ffrecord.work_on_metadata(address, "compare", timeout_s=timeout_s))
    # A person who is asked reads it; a program gets one object, at the end.
    if not as_json or not (yes or dry_run):
        click.echo("\n".join(describe(found)), err=as_json)
    if not dry_run:
        if not yes:
            ask("confirm the metadata? What it lacks may be removed from the nodes' disks")
        _ffrecord.confirm_metadata(address, int(found["incarnation"], 16), timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps({**found, "confirmed": not dry_run}))
    elif not dry_run:
        click.echo("confirmed")


def describe(found: dict[str, Any]) -> list[str]:
    """For people: what a comparison has found, or a rebuild has left."""
    lines = [
        f"metadata     incarnation {found['incarnation']}, which nobody has confirmed",
        f"why          {found['why']}",
        f"compared     with what node {found['witness'] or 'nobody'} has known",
    ]
    if found["silent"]:
        lines += [
            f"silent       {', '.join(found['silent'])}: they may have known more",
            "             names cannot be listed before they have answered a rebuild, or `confirm`",
        ]
    if found["changed"]:
        lines.append(f"rebuilt      {found['changed']} names")
    count = found["difference_count"]
    lines.append(f"differences  {count}")
    lines += [
        f"  {one['kind']:<9} {one['name']} ({one['file_count']} files,"
        f" {show_size(one['size_bytes'])})"
        for one in found["differences"][:_LISTED_MAX]
    ]
    if count > _LISTED_MAX:
        lines.append(f"  and {count - _LISTED_MAX} others: see --json")
    return lines


def write_backup(file: pathlib.Path, revision: int, keys: list[Key]) -> None:
    """Write a backup whole and durably, or not at all: a line for each key, then a checksum."""
    head = {"format": _FORMAT, "revision": revision, "count": len(keys)}
    lines = [json.dumps(head)]
    for key, at, value in keys:
        text = base64.b64encode(value).decode()
        lines.append(json.dumps({"key": key, "revision": at, "value": text}))
    body = "".join(f"{line}\n" for line in lines).encode()
    end = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
    with tempfile.NamedTemporaryFile(
        dir=file.absolute().parent, prefix=f".{file.name}.", delete=False
    ) as new:
        try:
            new.write(body + end)
            new.flush()
            os.fsync(new.fileno())
            pathlib.Path(new.name).replace(file)
        except BaseException:
            pathlib.Path(new.name).unlink(missing_ok=True)
            raise
    sync_folder(file.absolute().parent)


def read_backup(file: pathlib.Path) -> tuple[int, list[Key]]:
    """Read a backup; a number that tells it from others, and its keys.

    Raises:
        CorruptionError: it is no backup, or it is damaged.
    """
    body = file.read_bytes()
    begin = body.rfind(b"\n", 0, len(body) - 1) + 1
    digest = hashlib.sha256(body[:begin])
    try:
        end = json.loads(body[begin:])
        head, *lines = [json.loads(line) for line in body[:begin].splitlines()]
        if head["format"] != _FORMAT or end["sha256"] != digest.hexdigest():
            raise ValueError
        keys = [
            (line["key"], line["revision"], base64.b64decode(line["value"], validate=True))
            for line in lines
        ]
        if len(keys) != head["count"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise CorruptionError(
            f"{file}: this is no backup of a cluster's metadata, or it is damaged; use another one"
        ) from error
    return int.from_bytes(digest.digest()[:8], "little") or 1, keys
