"""Goal: shells complete what the commands take, and each command has a manual page.

Method: bash itself completes lines with the script that the command prints; man shows the pages.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cli import ok, run
from ffrecord._cli.data.manual import _escape, pages
from test_cli_flags import commands, options

needs_commands = pytest.mark.skipif(
    shutil.which("ffrecord") is None, reason="the commands are not installed"
)


def completed(line: str, folder: Path, command: str = "ffrecord") -> list[str]:
    """What bash offers for the last word of `line`."""
    words = line.split(" ")
    script = f"""
        eval "$({"ffrecord completion bash --command " + command})"
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words) - 1}
        compopt() {{ :; }}
        function=$(complete -p {command} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function {command}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder
    )
    assert done.stderr == ""
    return done.stdout.split()


@needs_commands
def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert {"sample", "shuffle", "split", "stats", "status"} <= set(
        completed("ffrecord s", tmp_path)
    )
    assert completed("ffrecord hea", tmp_path) == ["head"]
    assert completed("ffrecord checkpoint li", tmp_path) == ["list"]
    assert set(completed("ffrecord head --co", tmp_path)) == {"--count", "--column"}
    assert completed("ffrecord export a b --format web", tmp_path) == ["webdataset"]
    assert "--overwrite" in completed("ffrecord-pack --o", tmp_path, "ffrecord-pack")


# What zsh's own completion would do with the words is printed.
_ZSH = """
compdef() { : }
compadd() { print -l -- "${(@P)@[-1]}" }
_describe() { print -l -- "${(@P)3}" }
eval "$(COMMAND)"
words=(WORDS); CURRENT=$#words
_FUNCTION_completion
"""


@needs_commands
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_as_well(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: apt install {shell}")

    def offered(line: str) -> set[str]:
        program = line.split(" ")[0]
        command = f"ffrecord completion {shell} --command {program}"
        script = f"{command} | source; complete -C {line!r}"
        if shell == "zsh":
            words = " ".join(f"'{word}'" for word in line.split(" "))
            script = _ZSH.replace("COMMAND", command).replace("WORDS", words)
            script = script.replace("FUNCTION", program.replace("-", "_"))
        done = subprocess.run(
            [shell, *(["-f"] if shell == "zsh" else ["-N"]), "-c", script],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert done.stderr == ""
        return {re.split(r"[:\t]", each)[0] for each in done.stdout.splitlines()}

    assert offered("ffrecord hea") == {"head"}
    assert offered("ffrecord head --co") == {"--count", "--column"}
    assert offered("ffrecord checkpoint li") == {"list"}
    assert offered("ffrecord export a b --format web") == {"webdataset"}
    assert "--overwrite" in offered("ffrecord-pack --o")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    script = ok("ffrecord", "completion", shell)
    assert "_FFRECORD_COMPLETE" in script
    assert "_FFRECORD_PACK_COMPLETE" in ok(
        "ffrecord", "completion", shell, "--command", "ffrecord-pack"
    )
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_every_command_has_a_page_with_all_its_options(tmp_path: Path) -> None:
    facts = json.loads(ok("ffrecord", "man", tmp_path / "man1", "--json"))
    assert sorted(os.listdir(tmp_path / "man1")) == sorted(facts["pages"])
    for path, command in commands():
        text = (tmp_path / "man1" / f"ffrecord-{'-'.join(path)}.1").read_text()
        for option in options(command):
            if option.startswith("--"):
                assert option.replace("-", "\\-") in text, (path, option)
    overview = (tmp_path / "man1" / "ffrecord.1").read_text()
    assert "ffrecord\\-head\\fR(1)" in overview
    # A second run replaces them.
    ok("ffrecord", "man", tmp_path / "man1")


@pytest.mark.skipif(shutil.which("groff") is None, reason="apt install groff-base")
def test_man_finds_no_fault_with_the_pages() -> None:
    for program in ("ffrecord", "ffrecord-pack"):
        for title, text in pages(program):
            done = subprocess.run(
                ["groff", "-man", "-Tascii", "-ww", "-P-c"],
                input=text,
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stderr == "", title
            printed = re.sub(".\b", "", done.stdout)  # Bold is a character twice.
            assert "SYNOPSIS" in printed and "EXIT STATUS" in printed


def test_no_text_is_a_request_to_man() -> None:
    assert _escape(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert _escape("'x\n.so y") == "\\&'x .so y"
    assert _escape("a\\b-c") == "a\\eb\\-c"


def test_wrong_arguments_are_answered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for arguments, code in (
        (["completion"], 2),
        (["completion", "cmd.exe"], 2),
        (["man"], 2),
        (["man", ""], 2),
        (["man", str(tmp_path / "file")], 2),
        (["man", str(tmp_path / "file" / "below")], 4),
    ):
        done = run("ffrecord", *arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
