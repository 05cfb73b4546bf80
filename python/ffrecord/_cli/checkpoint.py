"""ffrecord checkpoint: look at checkpoints, check them, move them from and to other formats."""

import dataclasses
import errno
import json
import os

import click

import ffrecord.checkpoint as ckpt
import ffrecord.weights as weights
from ffrecord._base import clock
from ffrecord._base.addresses import STAGED, split_places
from ffrecord._cli.console import EXIT_DAMAGE, confirm
from ffrecord._cli.options import (
    check_can_hold,
    dry_run_option,
    json_option,
    overwrite_named,
    timeout_option,
)
from ffrecord._cli.units import Size, Target, show_size
from ffrecord.checkpoint import _staged as staged
from ffrecord.checkpoint._backup import OF_A_STEP, Backup
from ffrecord.checkpoint._retiring import retire
from ffrecord.checkpoint._safetensors import tensor_sizes
from ffrecord.errors import CorruptionError


@click.group()
def checkpoint() -> None:
    """List, verify, copy and convert checkpoints.

    TARGET is a run's folder, ffrecord://HOST/RUN, s3://BUCKET/RUN, 'buddies:TARGET|TARGET', or
    'stage:TARGET>TARGET'.
    """


_as_json = json_option()
# As many bits as a step has where it is stored.
_STEP = click.IntRange(0, (1 << 63) - 1)
_COUNT = click.IntRange(1, (1 << 63) - 1)
_timeout = timeout_option()
_step = click.option("--step", type=_STEP, help="Which step; the latest by default.")


def _committed(target: str, timeout_s: float) -> list[ckpt.Commit]:
    """The steps of TARGET, also those given up: a name without any is a wrong name."""
    commits = ckpt.list(target, given_up=True, timeout_s=timeout_s)
    if not commits:
        raise FileNotFoundError(errno.ENOENT, f"no checkpoint at {target}; check the name")
    return commits


def _one(target: str, step: int | None, timeout_s: float) -> ckpt.Commit:
    """The step of TARGET that was asked for; the newest that can be loaded if none was."""
    commits = _committed(target, timeout_s)
    found = [each for each in commits if (not each.given_up if step is None else step == each.step)]
    if not found:
        raise FileNotFoundError(errno.ENOENT, f"{target} has no step {step}")
    whole = [commit for commit in found if not commit.damage]
    if not whole:
        raise CorruptionError(f"step {found[-1].step} of {target}: {found[-1].damage}")
    return whole[-1]


@checkpoint.command(name="list")
@click.argument("target", type=Target())
@_timeout
@json_option("Print a JSON array with an object for each step.")
def list_(target: str, timeout_s: float, as_json: bool) -> None:
    """List the steps of TARGET, and what is damaged in their manifests; verify reads all bytes."""
    commits = _committed(target, timeout_s)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(commit) for commit in commits]))
        return
    click.echo(f"{'step':>12}{'size':>12}  attempt")
    for commit in commits:
        about = f"damaged: {commit.damage}" if commit.damage else commit.attempt
        about += ", given up" if commit.given_up else ""
        click.echo(f"{commit.step:>12}{show_size(commit.size_bytes):>12}  {about}")


@checkpoint.command()
@click.argument("target", type=Target())
@_step
@click.option(
    "--against",
    metavar="OTHER",
    help="Compare the tensors with those of another step: its number, or TARGET/step-000001200; or "
    "with those in a safetensors file.",
)
@click.option(
    "--every-place", is_flag=True, help="Read every copy that the places of a 'stage:' target have."
)
@click.option("--all", "all_steps", is_flag=True, help="Verify all steps, oldest first.")
@click.option(
    "--repeat",
    "repeat_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="With --all: do it again so long after it has ended, until something is damaged.",
)
@_timeout
@_as_json
def verify(
    target: str,
    step: int | None,
    against: str | None,
    every_place: bool,
    all_steps: bool,
    repeat_s: float | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Verify every byte of a checkpoint; exit with status 3 if any is damaged or differs."""
    if repeat_s is not None and not all_steps:
        raise click.UsageError("--repeat needs --all")
    if all_steps:
        if step is not None or against is not None:
            raise click.UsageError("--all takes neither --step nor --against")
        _verify_all(target, every_place, repeat_s, timeout_s, as_json)
        return
    other = int(against) if against is not None and against.isdecimal() else against
    damage = ckpt.verify(
        target,
        "latest" if step is None else step,
        against=other,
        every_place=every_place,
        timeout_s=timeout_s,
    )
    if as_json:
        click.echo(json.dumps({"damage": damage}))
    else:
        click.echo("\n".join(damage) if damage else "no damage found")
    if damage:
        raise click.exceptions.Exit(EXIT_DAMAGE)


def _verify_all(
    target: str, every_place: bool, repeat_s: float | None, timeout_s: float, as_json: bool
) -> None:
    """Verify all steps, once or until one is damaged. A run may have none yet if this repeats."""
    while True:
        commits = ckpt.list(target, timeout_s=timeout_s)
        if not commits and repeat_s is None:
            _committed(target, timeout_s)
        is_damaged = False
        for commit in commits:
            try:
                damage = ckpt.verify(
                    target, commit.step, every_place=every_place, timeout_s=timeout_s
                )
            except FileNotFoundError:
                continue  # Retention has removed it meanwhile.
            is_damaged |= bool(damage)
            if as_json:
                click.echo(json.dumps({"step": commit.step, "damage": damage}))
            else:
                click.echo(f"step {commit.step}: " + ("; ".join(damage) or "no damage found"))
        if is_damaged:
            raise click.exceptions.Exit(EXIT_DAMAGE)
        if repeat_s is None:
            return
        clock.sleep(repeat_s)


@checkpoint.command()
@click.argument("target", type=Target())
@click.argument("first", type=_STEP)
@click.argument("second", type=_STEP)
@_timeout
@_as_json
def diff(target: str, first: int, second: int, timeout_s: float, as_json: bool) -> None:
    """Show the differences between the steps FIRST and SECOND."""
    found = ckpt.diff((target, first), (target, second), timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    for sign, paths in (("-", found.only_first), ("+", found.only_second), ("~", found.different)):
        for path in paths:
            click.echo(f"{sign} {path}")


@checkpoint.command()
@click.argument("target", type=Target())
@click.argument("file", type=click.Path())
@_step
@click.option("--prefix", default="", help="Only tensors below this path, such as model.")
@click.option("--overwrite", is_flag=True, help="Replace FILE.")
@click.option(
    "--file-size",
    type=Size(),
    help="FILE is a new folder, for files of this size and an index, as Hugging Face has them.",
)
@click.option(
    "--dtype", help="With --file-size: convert floating-point numbers, to bfloat16 for example."
)
@dry_run_option("Check TARGET, the names of the tensors and FILE, and write nothing.")
@_timeout
@_as_json
def export(
    target: str,
    file: str,
    step: int | None,
    prefix: str,
    overwrite: bool,
    file_size: int | None,
    dtype: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Write the tensors of a checkpoint to FILE, in the safetensors format."""
    if file_size is None and dtype is not None:
        raise click.UsageError("--dtype needs --file-size")
    if file_size is not None:
        if overwrite:
            raise click.UsageError(
                "--overwrite replaces one file: with --file-size, name a new folder"
            )
        _export_folder(target, file, step, prefix, file_size, dtype, dry_run, timeout_s, as_json)
        return
    if os.path.isdir(file):
        raise click.UsageError(f"{file} is a folder; for several files in it, say --file-size 5GiB")
    with overwrite_named(file, overwrite):
        commit = ckpt.export_safetensors(
            target,
            file,
            step="latest" if step is None else step,
            prefix=prefix,
            overwrite=overwrite,
            dry_run=dry_run,
            timeout_s=timeout_s,
        )
    facts = {"step": commit.step, "file": file, "dry_run": dry_run}
    text = f"step {commit.step} {'would be' if dry_run else 'is'} in {file}"
    click.echo(json.dumps(facts) if as_json else text)


def _export_folder(
    target: str,
    folder: str,
    step: int | None,
    prefix: str,
    file_size: int,
    dtype: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    if dtype is not None:
        import torch  # noqa: F401 - which converts
    made = weights.export(
        target,
        folder,
        step="latest" if step is None else step,
        prefix=prefix,
        dtype=dtype,
        file_bytes_max=file_size,
        group="alone",
        dry_run=dry_run,
        timeout_s=timeout_s,
    )
    facts = {"step": made.step, "files": list(made.files), "file": folder, "dry_run": dry_run}
    where = f"{len(made.files)} files in {folder}" if len(made.files) > 1 else folder
    text = f"step {made.step} {'would be' if dry_run else 'is'} in {where}"
    click.echo(json.dumps(facts) if as_json else text)


@checkpoint.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("target", type=Target())
@click.option("--step", type=_STEP, required=True, help="Step to save as.")
@click.option("--prefix", default="", help="Path to save the tensors under, such as model.")
@dry_run_option("Check the header of FILE, and that TARGET has no such step; save nothing.")
@_timeout
@_as_json
def import_(
    file: str,
    target: str,
    step: int,
    prefix: str,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Save the tensors of FILE, in the safetensors format, as a step of TARGET."""
    if dry_run:
        sizes = tensor_sizes(file)
        check_can_hold(target)
        there = ckpt.list(target, timeout_s=timeout_s)
        if step in [commit.step for commit in there if not commit.damage]:
            raise FileExistsError(errno.EEXIST, f"{target} has a step {step} already")
        facts = {"step": step, "tensors": len(sizes), "size_bytes": sum(sizes), "dry_run": True}
        text = (
            f"would save {len(sizes)} tensors, {show_size(sum(sizes))}, as step {step} of {target}"
        )
        click.echo(json.dumps(facts) if as_json else text)
        return
    commit = ckpt.import_safetensors(file, target, step, prefix=prefix, timeout_s=timeout_s)
    text = f"step {commit.step} of {target}: {show_size(commit.size_bytes)}"
    click.echo(json.dumps(dataclasses.asdict(commit)) if as_json else text)


_dry_copy = dry_run_option("Show which steps would be copied, and copy nothing.")


@checkpoint.command()
@click.argument("target", type=Target())
@click.argument("remote", type=Target())
@_step
@click.option("--compress", is_flag=True, help="Compress the tensors at REMOTE.")
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Read the copies that REMOTE has, and copy damaged ones again (default), or only look for "
    "their files.",
)
@_dry_copy
@_timeout
@_as_json
def push(
    target: str,
    remote: str,
    step: int | None,
    compress: bool,
    verify: bool,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Copy a step of TARGET to REMOTE; by default all that are not there, or damaged there."""
    _committed(target, timeout_s)
    if dry_run:
        check_can_hold(remote)
    if step is None:
        backup = Backup(target, remote, compress=compress, verify=verify, timeout_s=timeout_s)
        copied = _pushed(backup, dry_run)
    elif dry_run:
        copied = _lacking(_one(target, step, timeout_s), remote, timeout_s)
    else:
        copied = [ckpt.copy(target, remote, step, compress=compress, timeout_s=timeout_s)]
    _show_copied(copied, remote, as_json, dry_run=dry_run)


def _pushed(backup: Backup, dry_run: bool) -> list[ckpt.Commit]:
    """The steps that were copied, or would be; if one cannot be, after the others."""
    failures: list[Exception] = []
    copied = []
    for commit in backup.lacking()[0]:
        try:
            if dry_run:
                backup.check(commit)
            copied.append(commit if dry_run else backup.bring(commit))
            if not dry_run:  # A staged target has places behind its first.
                staged.saved(backup.target, copied[-1], replaces=False)
        except OF_A_STEP as error:
            if commit in backup.here():
                failures.append(error)
    if failures:
        raise failures[0]
    return copied


@checkpoint.command()
@click.argument("remote", type=Target())
@click.argument("target", type=Target())
@_step
@_dry_copy
@_timeout
@_as_json
def pull(
    remote: str, target: str, step: int | None, dry_run: bool, timeout_s: float, as_json: bool
) -> None:
    """Copy a step of REMOTE to TARGET."""
    if dry_run:
        check_can_hold(target)
        lacking = _lacking(_one(remote, step, timeout_s), target, timeout_s)
        _show_copied(lacking, target, as_json, dry_run=True)
        return
    copied = ckpt.copy(remote, target, "latest" if step is None else step, timeout_s=timeout_s)
    _show_copied([copied], target, as_json)


@checkpoint.command()
@click.argument("target", type=Target())
@click.option("--compress", is_flag=True, help="Compress the tensors at the last place.")
@_timeout
@_as_json
def flush(target: str, compress: bool, timeout_s: float, as_json: bool) -> None:
    """Copy to the later places of TARGET, 'stage:PLACE>PLACE', the steps that they lack."""
    if not target.startswith(STAGED):
        raise click.UsageError(f"{target} has no later places; name them: 'stage:PLACE>PLACE'")
    places = split_places(target)[2]
    staged = ckpt.stage(
        *places, compress=compress, on_full="wait", on_failure="warn", timeout_s=timeout_s
    )
    _committed(staged.address, timeout_s)
    staged.flush()
    if as_json:
        click.echo(json.dumps({"places": [dataclasses.asdict(each) for each in staged.stats()]}))
        return
    for each in staged.stats():
        click.echo(f"{each.copied} steps copied to {each.place}: {show_size(each.copied_bytes)}")


def _lacking(commit: ckpt.Commit, where: str, timeout_s: float) -> list[ckpt.Commit]:
    """The step, if `where` does not have it.

    Raises:
        FileExistsError: it has another save of that step.
    """
    there = {found.step: found for found in ckpt.list(where, timeout_s=timeout_s)}
    if there.get(commit.step) == commit:
        return []
    if commit.step in there and not there[commit.step].damage:
        what = f"{where} has another save of step {commit.step}"
        raise FileExistsError(errno.EEXIST, f"{what}; remove it first")
    return [commit]


def _show_copied(
    copied: list[ckpt.Commit], where: str, as_json: bool, *, dry_run: bool = False
) -> None:
    if as_json:
        steps = [dataclasses.asdict(commit) for commit in copied]
        click.echo(json.dumps({"copied": steps, "dry_run": dry_run}))
        return
    verb = "would be" if dry_run else "is"
    for commit in copied:
        click.echo(f"step {commit.step} {verb} at {where}: {show_size(commit.size_bytes)}")
    if not copied:
        click.echo(f"all steps are already at {where}")


@checkpoint.command()
@click.argument("target", type=Target())
@click.option("--keep-last", type=_COUNT, required=True, help="Keep this many of the newest steps.")
@click.option("--keep-every", type=_COUNT, help="Also keep every step that is a multiple of this.")
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Count a step as kept only if all its bytes verify (default), or if its manifests do.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option("Show what would be removed, and remove nothing.")
@_timeout
@_as_json
def prune(
    target: str,
    keep_last: int,
    keep_every: int | None,
    verify: bool,
    yes: bool,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Remove old steps of TARGET. Only whole steps count as kept."""

    def old() -> list[ckpt.Commit]:
        return ckpt.prune(
            target,
            keep_last=keep_last,
            keep_every=keep_every,
            verify=verify,
            dry_run=True,
            timeout_s=timeout_s,
        )

    _committed(target, timeout_s)
    saves = old()
    steps = [commit.step for commit in saves]
    if dry_run:
        listed = " ".join(map(str, steps)) or "none"
        facts = {"removed": [], "would_remove": steps, "dry_run": True}
        click.echo(json.dumps(facts) if as_json else f"would remove {len(steps)} steps: {listed}")
        return
    if steps and not yes:
        confirm(f"Remove {len(steps)} steps, {steps[0]} to {steps[-1]}?")
        still = set(old())  # Much may have happened before the answer.
        saves = [commit for commit in saves if commit in still]
    removed = [commit.step for commit in retire(target, saves, timeout_s)]
    click.echo(json.dumps({"removed": removed}) if as_json else f"removed {len(removed)} steps")
