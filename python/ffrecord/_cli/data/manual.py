"""ffrecord completion and ffrecord man, made from the texts of the commands themselves."""

import re
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

from ffrecord import __version__
from ffrecord._base.destination import destination_path
from ffrecord._cli.data.new_file import new_file
from ffrecord._cli.data.values import dumps

_PROGRAMS = ("ffrecord", "ffrecord-pack")
_SHELLS = ("bash", "zsh", "fish")


def _program(name: str) -> click.Command:
    from ffrecord._cli.main import cli
    from ffrecord._cli.pack import command

    return cli if name == "ffrecord" else command


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.option(
    "--command",
    "name",
    type=click.Choice(_PROGRAMS),
    default="ffrecord",
    show_default=True,
    help="The command to complete.",
)
def completion(shell: str, name: str) -> None:
    """Print the script that makes SHELL complete ffrecord's commands, options and files.

    bash: add the line eval "$(ffrecord completion bash)" to ~/.bashrc. zsh: add the same line with
    zsh to ~/.zshrc. fish: ffrecord completion fish > ~/.config/fish/completions/ffrecord.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    click.echo(kind(_program(name), {}, name, variable).source())


@click.command()
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def man(folder: str, as_json: bool) -> None:
    """Write a manual page for each command to FOLDER, such as ~/.local/share/man/man1.

    Replaces the pages of those names that are there.
    """
    place = destination_path(folder, "the folder")
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for name in _PROGRAMS:
        for title, text in pages(name):
            with new_file(place / f"{title}.1", True) as file:
                file.write(text.encode())
            written.append(f"{title}.1")
    click.echo(dumps({"pages": written}) if as_json else f"wrote {len(written)} pages to {folder}")


def pages(program: str) -> Iterator[tuple[str, str]]:
    """Name and text, in the language of man, of the page of each command of a program."""
    yield from _pages(_program(program), click.Context(_program(program), info_name=program))


def _pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    title = context.command_path.replace(" ", "-")
    yield title, _page(command, context, title)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _pages(below, click.Context(below, info_name=name, parent=context))


def _page(command: click.Command, context: click.Context, title: str) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [
        f'.TH "{_escape(title.upper())}" 1 "" "FFRecord {_escape(__version__)}"',
        ".SH NAME",
        f"{_escape(title)} \\- {_escape(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        _escape(usage),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        ".SH OPTIONS",
    ]
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            lines += [".TP", _escape(record[0]), _escape(record[1]) or "\\&"]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                page = f"{title}-{name}"
                short = _escape(below.get_short_help_str(200))
                lines += [".TP", f"\\fB{_escape(page)}\\fR(1)", short]
    lines += [
        ".SH EXIT STATUS",
        "0 done; 1 declined, or nothing found; 2 wrong usage or input; 3 damage found; 4 the",
        "environment refused; 130 interrupted.",
    ]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.replace("\b", ""))):
        if number:
            yield ".PP"
        yield _escape(" ".join(paragraph.split()))


def _escape(text: str) -> str:
    """Text as man takes it for itself: no line of it is a request."""
    safe = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe
