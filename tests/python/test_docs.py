"""The pages say what works: commands run as they are printed, and links lead somewhere.

Method: cut the code blocks out of a page and run them in an empty folder.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import ffrecord

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """All code blocks of one language."""
    return [code for found, code in BLOCK.findall((ROOT / page).read_text()) if found == language]


def test_commands_of_the_readme_pack_a_folder_of_classes(tmp_path: pathlib.Path) -> None:
    if shutil.which("ffrecord-pack") is None:
        pytest.skip("the commands are not installed")
    for label in ("cats", "dogs"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        (tmp_path / "pictures" / label / "one.png").write_bytes(os.urandom(500))
    with ffrecord.Writer(tmp_path / "broken.ffr") as writer:
        writer.write(b"whole")  # Repair exits 3 where something is lost.
    packing = next(code for code in blocks("README.md", "sh") if "ffrecord-pack" in code)

    done = subprocess.run(
        ["bash", "-euc", packing], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.ffr").stat().st_size > 1000
    assert [bytes(record) for record in ffrecord.open(tmp_path / "new.ffr")] == [b"whole"]


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not broken


def test_the_examples_of_the_loaders_page_print_what_they_say(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(blocks("docs/loader.md", "python"))
    monkeypatch.chdir(tmp_path)

    exec(compile(code, "docs/loader.md", "exec"), {})

    printed = "[  0 900 999]\n(2, 1024) [   0  700  712 1024]\n"
    assert capsys.readouterr().out == printed
