"""The pages say what works: commands run as they are printed, and links lead somewhere.

Method: cut the code blocks out of a page and run them in an empty folder.
"""

import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile

import pytest

import ffrecord

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """All code blocks of one language."""
    return [code for found, code in BLOCK.findall((ROOT / page).read_text()) if found == language]


def write_shards(folder: pathlib.Path) -> None:
    """Two tars of WebDataset, a picture and its caption in each."""
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for extension in ("jpg", "txt"):
                info = tarfile.TarInfo(f"{number}.{extension}")
                info.size = 500
                tar.addfile(info, io.BytesIO(b"x" * 500))


def test_commands_of_the_readme_pack(tmp_path: pathlib.Path) -> None:
    if shutil.which("ffrecord-pack") is None:
        pytest.skip("the commands are not installed")
    for label in ("cats", "dogs"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        (tmp_path / "pictures" / label / "one.png").write_bytes(os.urandom(500))
    write_shards(tmp_path / "shards")
    with ffrecord.Writer(tmp_path / "broken.ffr") as writer:
        writer.write(b"whole")  # Repair exits 3 where something is lost.
    packing = next(code for code in blocks("README.md", "sh") if "ffrecord-pack" in code)

    done = subprocess.run(
        ["bash", "-euc", packing], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.ffr").stat().st_size > 1000
    assert list(ffrecord.open(tmp_path / "web.ffr").read([1, 0])["name"]) == ["1", "0"]
    assert [bytes(record) for record in ffrecord.open(tmp_path / "new.ffr")] == [b"whole"]


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not broken


def test_the_tour_names_what_is_there() -> None:
    places = re.findall(
        r"`([\w./]+/\w+\.(?:py|h|cpp)):?(\w*)`", (ROOT / "docs/internals/tour.md").read_text()
    )
    missing = [
        f"{path}:{name}"
        for path, name in places
        if not (ROOT / path).exists()
        or not re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert len(places) > 20
    assert not missing


def test_the_example_of_the_page_on_packing_packs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "shards")
    monkeypatch.chdir(tmp_path / "shards")
    for number, name in enumerate("ab"):
        os.rename(f"{number}.tar", f"{name}.tar")

    exec("\n".join(blocks("docs/guides/packing.md", "python")), {})

    assert len(ffrecord.open("train.ffr")) == 2


def test_the_examples_of_the_loaders_page_print_what_they_say(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(blocks("docs/guides/loading.md", "python"))
    monkeypatch.chdir(tmp_path)

    exec(compile(code, "docs/guides/loading.md", "exec"), {})

    printed = "[  0 900 999]\n(2, 1024) [   0  700  712 1024]\n"
    assert capsys.readouterr().out == printed
