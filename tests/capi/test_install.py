"""What is installed is what an outsider needs, and no more.

Goal: C and C++ programs build against the installed library with what pkg-config says, shared and
static, and the library shows its own names only.
Method: install the build folder named by FFRECORD_BUILD_DIR below a temporary folder; compile the
examples of docs/examples from there with all warnings, run them, and read the symbol table.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = {".c": ["cc", "-std=c11"], ".cpp": ["c++", "-std=c++20"]}

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("cc", "c++", "pkg-config", "nm", "meson")),
    reason="needs cc, c++, pkg-config, nm and meson",
)


def run(*command: str | pathlib.Path, **environment: str) -> str:
    """Run a command that must succeed; return what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


class Installed:
    """The library below a folder of its own, as a package would carry it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Install what is tagged for developers."""
        self.folder = folder
        run(
            *("meson", "install", "-C", os.environ["FFRECORD_BUILD_DIR"], "--no-rebuild"),
            *("--quiet", "--tags", "devel", "--destdir", folder),
        )
        self.library = next(folder.rglob("libffrecord.so")).parent
        self.environment = {
            "PKG_CONFIG_SYSROOT_DIR": str(folder),
            "PKG_CONFIG_PATH": str(self.library / "pkgconfig"),
        }

    def flags(self, *options: str) -> list[str]:
        """What pkg-config says; its own paths only, for the rest of the machine is no sysroot."""
        words = run("pkg-config", *options, "ffrecord", **self.environment).split()
        return [
            word
            for word in words
            if not word.startswith(("-I", "-L")) or word[2:].startswith(str(self.folder))
        ]

    def build(self, source: pathlib.Path, program: pathlib.Path, *flags: str) -> None:
        """Compile and link an example."""
        run(*COMPILERS[source.suffix], *WARNINGS, source, *flags, "-o", program)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """One installation for all tests."""
    return Installed(tmp_path_factory.mktemp("installed"))


def symbols(library: pathlib.Path) -> list[str]:
    """Names that the library defines for others, as C++ reads them."""
    lines = run("nm", "--dynamic", "--defined-only", "--demangle", library).splitlines()
    return [line.split(maxsplit=2)[2] for line in lines]


def test_examples_pack_and_read_through_the_shared_library(
    installed: Installed, tmp_path: pathlib.Path
) -> None:
    flags = installed.flags("--cflags", "--libs")
    for name in ("pack_and_read.cpp", "read_batch.c"):
        installed.build(EXAMPLES / name, tmp_path / name.partition(".")[0], *flags)
    path = {"LD_LIBRARY_PATH": str(installed.library)}

    packed = run(tmp_path / "pack_and_read", tmp_path / "train.ffr", **path)
    read = run(tmp_path / "read_batch", tmp_path / "train.ffr", "17", "999", "17", **path)

    assert packed.startswith("packed 1000 records\n")
    labels = re.findall(r"^label (\d+): picture (\d+)$", packed, re.MULTILINE)
    assert len(labels) == 4
    assert all(label == picture for label, picture in labels)
    # A label of eight bytes, "picture " and the number.
    assert read == "record 17: 18 bytes\nrecord 999: 19 bytes\nrecord 17: 18 bytes\n"


def test_example_in_c_packs_appends_checks_and_finds(
    installed: Installed, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "find_by_key"
    installed.build(EXAMPLES / "find_by_key.c", program, *installed.flags("--cflags", "--libs"))

    def find(key: str, lines: str) -> str:
        return subprocess.run(
            [program, tmp_path / "animals.ffr", key],
            env=os.environ | {"LD_LIBRARY_PATH": str(installed.library)},
            input=lines,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert find("dog", "cat meow\ndog woof woof\n") == "2 records, whole\nrecord 1: woof woof\n"
    assert find("cow", "cow moo\n") == "3 records, whole\nrecord 2: moo\n"
    assert find("owl", "") == "3 records, whole\nno record has the key owl\n"


def test_example_tells_a_missing_file(installed: Installed, tmp_path: pathlib.Path) -> None:
    flags = installed.flags("--cflags", "--libs")
    installed.build(EXAMPLES / "read_batch.c", tmp_path / "read_batch", *flags)

    done = subprocess.run(
        [tmp_path / "read_batch", "missing.ffr", "0"],
        env=os.environ | {"LD_LIBRARY_PATH": str(installed.library)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "missing.ffr" in done.stderr


@pytest.mark.parametrize("name", ["pack_and_read.cpp", "read_batch.c"])
def test_examples_build_with_the_static_library(
    installed: Installed, tmp_path: pathlib.Path, name: str
) -> None:
    flags = installed.flags("--static", "--cflags", "--libs")
    flags[flags.index("-lffrecord")] = str(installed.library / "libffrecord.a")
    installed.build(EXAMPLES / name, tmp_path / "program", *flags)

    assert "libffrecord" not in run("ldd", tmp_path / "program")


def test_library_shows_the_c_functions_of_the_header_and_its_own_classes(
    installed: Installed,
) -> None:
    header = (installed.folder / next(installed.folder.rglob("ffrecord.h"))).read_text()
    declared = set(re.findall(r"\b(ffr_\w+)\(", header))
    shown = symbols(installed.library / "libffrecord.so")

    assert {name for name in shown if not name.startswith("ffrecord::")} == declared
    assert any(name.startswith("ffrecord::RecordReader::Open") for name in shown)


def test_library_has_a_soname_of_its_major_version(installed: Installed) -> None:
    found = run("readelf", "--dynamic", installed.library / "libffrecord.so")
    assert "Library soname: [libffrecord.so.0]" in found
    assert (installed.library / "libffrecord.so.0").exists()


def test_only_public_headers_are_installed(installed: Installed) -> None:
    found = {path.name for path in installed.folder.rglob("*.h")}
    public = [ROOT / "libffrecord" / "include", ROOT / "client" / "include"]
    assert found == {path.name for folder in public for path in folder.rglob("*.h")}


def test_programs_of_the_project_install_without_the_library(tmp_path: pathlib.Path) -> None:
    # What the wheel takes: pyproject.toml, tool.meson-python.args.
    tags = "runtime,python-runtime"
    planned = run(
        *("meson", "install", "-C", os.environ["FFRECORD_BUILD_DIR"], "--no-rebuild"),
        *("--dry-run", "--tags", tags, "--destdir", tmp_path),
    )
    assert f"--tags={tags}" in (ROOT / "pyproject.toml").read_text()
    assert "Installing" in planned
    assert "libffrecord" not in planned
    assert "include/ffrecord" not in planned
