"""The pages say what works: commands run as they are printed, and links lead somewhere.

Method: cut the code blocks out of a page and run them in an empty folder.
"""

import ast
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile

import click
import pytest

import ffrecord
from ffrecord._cli.main import cli
from ffrecord._cli.pack import command as pack_command
from ffrecord.pack import SourceOptions, open_source, pack

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
MIGRATING = ROOT / "docs" / "guides" / "migrating.md"
# Pages whose blocks run in an empty folder, without any preparation.
RUN = sorted(
    page.relative_to(ROOT / "docs")
    for page in (ROOT / "docs").rglob("*.md")
    if re.search(r"^```(python|sh)\b", page.read_text(), re.MULTILINE) and page.name != "packing.md"
)
# A page that imports one of these is skipped where it is not installed.
PACKAGES = (
    *("torch", "PIL", "pyarrow", "tqdm", "accelerate", "pytorch_lightning", "transformers"),
    *("torchdata", "datasets", "ray", "grain", "jax", "tensorflow", "mlflow", "wandb"),
)
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


def anchors(page: pathlib.Path) -> set[str]:
    """What headings of a page are called in links, as GitHub and MkDocs make it."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}#{anchor}")
    assert len(pages) > 20
    assert not broken


def test_pages_that_the_code_names_are_there() -> None:
    pages = {page.name for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    sources = [
        path
        for room in ("libffrecord", "client", "server", "python")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".h", ".cpp", ".py", ".pyi")
    ]
    named = {
        name
        for path in sources
        for name in re.findall(r"\b([\w-]+\.md)\b", path.read_text("utf-8"))
    }
    assert "format.md" in named
    assert named <= pages


@pytest.mark.parametrize("page", RUN, ids=str)
def test_the_blocks_of_a_page_run_and_print_what_they_say(
    page: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    text = (ROOT / "docs" / page).read_text()
    for command in ("ffrecord", "ffrecord-pack", "ffrecordd", "torchrun"):
        if re.search(rf"^{command} ", text, re.MULTILINE) and shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")
    for package in PACKAGES:
        if re.search(rf"^(import|from) ({package}|ffrecord.{package})\b", text, re.MULTILINE):
            pytest.importorskip(package)

    done = subprocess.run(
        [sys.executable, HERE / "run_page.py", ROOT / "docs" / page],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nprint(1 + 1)      # 3\n```\n", "nothing printed '3'"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "page.md:5 fails"),
        ("```sh\ntrue\nfalse\ntrue\n```\n", "exit status 1"),
    ],
)
def test_a_block_that_does_not_do_what_the_page_says_is_noticed(
    text: str, complaint: str, tmp_path: pathlib.Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)

    done = subprocess.run(
        [sys.executable, HERE / "run_page.py", page],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert complaint in done.stderr


def command_lines() -> list[tuple[str, list[str]]]:
    """Page, and words of each command of ours in blocks that are only shown."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [
        (page.name, words)
        for page in pages
        for language, code in BLOCK.findall(page.read_text())
        if language in ("shell", "sh")
        for line in code.replace("\\\n", " ").splitlines()
        if (words := shlex.split(line, comments=True)) and words[0] in ("ffrecord", "ffrecord-pack")
    ]


def unknown_words(words: list[str]) -> list[str]:
    """Those that our command line does not know, up to `--`: subcommands and options."""
    command: click.Command = pack_command if words[0] == "ffrecord-pack" else cli
    rest = words[1 : words.index("--") if "--" in words else None]
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return [name]
        command = found
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in rest if word.startswith("--") and word.split("=")[0] not in known]


def test_commands_that_pages_show_have_those_names_and_options() -> None:
    lines = command_lines()
    assert len(lines) > 30
    assert [(page, *unknown_words(words)) for page, words in lines if unknown_words(words)] == []
    assert unknown_words(["ffrecord", "checkpoint", "burn", "x"]) == ["burn"]
    assert unknown_words(["ffrecord-pack", "--fast", "a", "b"]) == ["--fast"]


def test_every_flag_of_the_daemon_is_on_the_page_of_settings() -> None:
    program = shutil.which("ffrecordd")
    if program is None:
        pytest.skip("ffrecordd is not installed")
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    flags = set(re.findall(r"--[a-z][a-z-]+", said)) - {"--help", "--version"}
    page = (ROOT / "docs/reference/settings.md").read_text()
    assert len(flags) > 15
    assert flags <= set(re.findall(r"--[a-z][a-z-]+", page))


def test_every_metric_is_on_its_page() -> None:
    rooms = (ROOT / "server/service").rglob("*.*")
    code = "".join(path.read_text() for path in sorted(rooms))
    page = (ROOT / "docs/reference/metrics.md").read_text()
    metrics = set(re.findall(r'"(ffrecord_\w+)"', code))
    assert len(metrics) > 30
    assert metrics == set(re.findall(r"`(ffrecord_\w+)`", page))


def test_the_architecture_has_a_row_for_each_room_of_python() -> None:
    page = (ROOT / "docs/internals/architecture.md").read_text()
    rows = page.split("| room | purpose | may import |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    shown = {room.strip("`"): set(others.split(", ")) - {""} for room, _, others in cells}
    code = ast.parse((ROOT / "tools/dev/check_imports.py").read_text())
    table = next(
        ast.unparse(node.value)
        for node in code.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MAY_IMPORT"
    )
    assert shown == eval(table, {"DOORS": "the doors"})


def test_the_protocol_has_the_right_that_the_daemon_wants_for_each_request() -> None:
    code = (ROOT / "server/service/connection/connection.cpp").read_text()
    rows = code.split(" kRows[] = {")[1].split("\n  };")[0].split("{Type::k")[1:]
    wanted = {}
    for row in rows:
        request = re.sub(r"(?<=.)(?=[A-Z])", "_", row.split(",")[0]).upper()
        if right := re.search(r"Right::k(\w+)", row):
            wanted[request] = right[1].lower()
    page = (ROOT / "docs/reference/protocol.md").read_text()
    table = page.split("| request | right |\n|---|---|\n")[1].split("\n\n")[0]
    shown = {}
    for line in table.splitlines():
        requests, right = (cell.strip() for cell in line.strip("|").split("|"))
        for request in re.findall(r"[A-Z_]{4,}", requests):
            shown[request] = right.split()[0].strip(";")
    assert shown.pop("CLUSTER_MAP") == "none"
    assert len(wanted) > 15
    assert shown == wanted


def test_the_tours_name_what_is_there() -> None:
    page = (ROOT / "docs/internals/tour.md").read_text()
    steps = {
        title: re.findall(r"^\| (\d+) \| `[\w./]+:\w+` \|", text, re.MULTILINE)
        for title, text in re.findall(r"^## (.*)$\n((?:(?!^## ).*\n)*)", page, re.MULTILINE)
    }
    assert set(steps) == {
        "A read of a local batch",
        "The server's half of a read",
        "A save of a checkpoint",
        "A publish",
        "A gradient bucket",
    }
    for title, numbers in steps.items():
        assert numbers == [str(1 + i) for i in range(len(numbers))], title
        assert len(numbers) > 8, title
    places = re.findall(r"`([\w./]+/\w+\.(?:py|h|cpp)):?(\w*)`", page)
    missing = [
        f"{path}:{name}"
        for path, name in places
        if not (ROOT / path).exists()
        or not re.search(rf"\b{name}\b", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert len(places) > 80
    assert not missing


def names_of_benchmarks() -> tuple[set[str], set[str]]:
    """Patterns of the names that benchmarks make, where a field is any word; and all words."""
    patterns, words = set(), set()
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [
                each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else ""
                for each in parts
            ]
            if len("".join(texts)) > 2:  # Not a pattern that every name has.
                patterns.add("".join(re.escape(text) or r"\w+" for text in texts))
                words.update(re.findall(r"[a-z]+", " ".join(texts)))
    return patterns, words


def test_every_measurement_has_a_key_that_a_benchmark_prints() -> None:
    page = (ROOT / "docs/internals/performance.md").read_text()
    rows = re.findall(r"^\| `(\w+)` [A-Z]\*? \| (.*?) \|", page, re.MULTILINE)
    keys = [key for _, cell in rows for key in re.findall(r"`([\w*]+)`", cell) if key[0] != "_"]
    patterns, words = names_of_benchmarks()
    printed = re.compile("|".join(patterns))

    def is_printed(key: str) -> bool:
        own = [word for word in re.split(r"[_*]+", key) if word.isalpha()]
        return bool(printed.fullmatch(key.replace("*", "x"))) and words.issuperset(own)

    assert {name for name, _ in rows} <= {path.stem for path in (ROOT / "benchmarks").rglob("*.py")}
    assert len(keys) > 100
    assert [key for key in keys if not is_printed(key)] == []
    assert not is_printed("cold_images_vs_fioo")
    assert not is_printed("loopbacks_vs_gloo")


def test_the_example_of_the_page_on_packing_packs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    write_shards(tmp_path / "shards")
    monkeypatch.chdir(tmp_path / "shards")
    for number, name in enumerate("ab"):
        os.rename(f"{number}.tar", f"{name}.tar")

    function, *rest = blocks("docs/guides/packing.md", "python")
    pathlib.Path("recipes.py").write_text(function)
    for name in ("cats/1.png", "dogs/2.png"):
        pathlib.Path("pictures", name).parent.mkdir(parents=True)
        image.new("RGB", (300, 200)).save(pathlib.Path("pictures", name))
    exec("\n".join(rest), {})

    assert len(ffrecord.open("train.ffr")) == 2
    assert set(ffrecord.open("thumbnails")[0]) == {"name", "label", "image"}


def test_the_row_on_json_lines_reads_what_was_packed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"x": [1, 2]}\n{"x": null}\n')
    source = open_source(tmp_path / "data.jsonl", SourceOptions(raw=True))
    pack(source, tmp_path / "train.ffr")
    row = re.search(
        r"^\| JSON Lines of any shape \|.*\| `(.*)` \|$", MIGRATING.read_text(), re.MULTILINE
    )
    assert row is not None

    samples = ffrecord.open(tmp_path / "train.ffr")

    found = [eval(row[1], {"json": json, "sample": sample}) for sample in samples]
    assert found == [{"x": [1, 2]}, {"x": None}]


def test_a_tutorial_that_has_ended_trains_nothing_when_it_is_run_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    page = "docs/tutorials/several-ranks.md"
    script = re.search(r"^```python title=\"train.py\"\n(.*?)^```$", *_of(page))
    assert script is not None
    (tmp_path / "train.py").write_text(script[1])
    monkeypatch.chdir(tmp_path)
    exec(blocks(page, "python")[0], {})
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

    for _ in range(2):
        subprocess.run([sys.executable, "train.py"], env={**os.environ, **alone}, check=True)

    assert capfd.readouterr().out.split("\n")[:2] == ["done at step 100"] * 2


def _of(page: str) -> tuple[str, int]:
    return (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
