"""Fail if a header does not compile on its own, or lacks `#pragma once`.

A header that a source of the build includes before anything else compiles alone, or the build
fails: two of three. Each other one is given to the compiler alone, with the include paths that the
sources nearest to it are built with. A header that passed is not compiled again until it, a header
of ours that it leads to, or a flag changes: the digests of the good ones are kept in
`<build>/headers.json`. A compiler cache, if the build has one, serves a fresh build folder.

Usage: check_headers.py SOURCE_ROOT BUILD_ROOT
"""

import concurrent.futures
import hashlib
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable

import tree

DOORS = (".", "libffrecord/include", "client/include")  # Who may enter, check_layers.py says.
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)', re.MULTILINE)
KEEP = ("-I", "-D", "-std=", "-isystem")


def compiled(root: pathlib.Path, build: pathlib.Path) -> dict[pathlib.Path, str]:
    """The sources of the build that are in the tree, and how each is compiled."""
    entries = json.loads((build / "compile_commands.json").read_text())
    found = {
        pathlib.Path(entry["directory"], entry["file"]).resolve(): entry["command"]
        for entry in entries
    }
    return {
        source: command
        for source, command in found.items()
        if source.is_relative_to(root) and source.suffix == ".cpp"
    }


def commands_by_folder(
    root: pathlib.Path, sources: dict[pathlib.Path, str]
) -> dict[pathlib.Path, list[str]]:
    """Compiler and the flags that matter for parsing, for each folder that has sources."""
    commands: dict[pathlib.Path, list[str]] = {}
    for source, command in sources.items():
        words = shlex.split(command)
        compiler = words[: 2 if pathlib.Path(words[0]).name == "ccache" else 1]
        # Not the private folders of targets, *.p: no header of ours is in them.
        flags = [word for word in words if word.startswith(KEEP) and not word.endswith(".p")]
        flags = [word for word in flags if "_FORTIFY_SOURCE" not in word]
        for at, word in enumerate(words[:-1]):  # -isystem takes its folder as the next word.
            if word == "-isystem":
                flags.append(f"-isystem{words[at + 1]}")
        flags = [word for word in flags if word != "-isystem"]
        known = commands.setdefault(source.parent.relative_to(root), compiler)
        known += [flag for flag in flags if flag not in known]
    return commands


def command_for(header: pathlib.Path, commands: dict[pathlib.Path, list[str]]) -> list[str]:
    """The command of the folders that share the longest path with the header's; all their flags."""

    def shared(folder: pathlib.Path) -> int:
        pairs = zip(folder.parts, header.parent.parts, strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))

    nearest = max(map(shared, commands))
    folders = [folder for folder in sorted(commands) if shared(folder) == nearest]
    return list(dict.fromkeys(word for folder in folders for word in commands[folder]))


def included(root: pathlib.Path, path: pathlib.Path) -> list[pathlib.Path | None]:
    """The headers that a file includes, in its order; None in the place of one that is not ours."""
    folders = [path.parent, *(root / door for door in DOORS)]
    return [
        next((folder / name for folder in folders if (folder / name).is_file()), None)
        for name in INCLUDE.findall(path.read_text())
    ]


def proven(root: pathlib.Path, sources: Iterable[pathlib.Path]) -> set[pathlib.Path]:
    """The headers that a source includes before anything else."""
    first = (next(iter(included(root, source)), None) for source in sources)
    return {header.resolve() for header in first if header is not None}


def reached(root: pathlib.Path, header: pathlib.Path) -> dict[str, bytes]:
    """The header and all headers of ours that it leads to, with their contents."""
    found: dict[str, bytes] = {}
    todo = [header]
    while todo:
        path = todo.pop()
        if str(path) in found:
            continue
        found[str(path)] = path.read_bytes()
        todo += [header for header in included(root, path) if header is not None]
    return found


def digest(root: pathlib.Path, header: pathlib.Path, command: list[str]) -> str:
    """The inputs of the verdict on a header."""
    whole = hashlib.sha256(repr([str(header), command]).encode())
    for name, content in sorted(reached(root, header).items()):
        whole.update(name.encode() + b"\0" + content + b"\0")
    return whole.hexdigest()


def guard_fault(root: pathlib.Path, header: pathlib.Path) -> str:
    """The fault of a header that can be included twice; nothing if it cannot."""
    if "#pragma once" in header.read_text():
        return ""
    return f"{header.relative_to(root).as_posix()}: no #pragma once"


def compile_fault(
    root: pathlib.Path, build: pathlib.Path, header: pathlib.Path, command: list[str]
) -> str:
    """The fault of a header that leans on others; nothing if it stands alone."""
    name = header.relative_to(root).as_posix()
    doors = [f"-I{root / door}" for door in DOORS]
    source = build / "headers" / f"{name.replace('/', '-')}.cpp"
    source.parent.mkdir(exist_ok=True)
    source.write_text(f'#include "{name}"\n')
    output = source.with_suffix(".o")
    run = subprocess.run(
        [*command, *doors, "-w", "-O0", "-c", source, "-o", output],
        # The compiler's output names no folder of this machine: the cache serves every checkout.
        env=os.environ | {"CCACHE_BASEDIR": str(root), "CCACHE_NOHASHDIR": "1"},
        capture_output=True,
        text=True,
        cwd=build,
        check=False,
    )
    output.unlink(missing_ok=True)
    return f"{name}: does not compile alone\n{run.stderr}" if run.returncode else ""


def main(root: pathlib.Path, build: pathlib.Path) -> int:
    """Check every header; print what is wrong; return the exit code."""
    headers = list(tree.files(root, ".h"))
    sources = compiled(root, build)
    if not headers or not sources:
        print("no headers or no compile commands: is this the build folder?", file=sys.stderr)
        return 2
    commands = commands_by_folder(root, sources)
    left = sorted(set(headers) - proven(root, sources))
    command = {header: command_for(header.relative_to(root), commands) for header in left}
    digests = {header: digest(root, header, command[header]) for header in left}
    memory = build / "headers.json"
    good = set(json.loads(memory.read_text())) if memory.exists() else set()
    todo = [header for header in left if digests[header] not in good]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda h: compile_fault(root, build, h, command[h]), todo))
    bad = {header for header, fault in zip(todo, found, strict=True) if fault}
    memory.write_text(json.dumps(sorted(digests[h] for h in left if h not in bad)))
    faults = [fault for fault in (*(guard_fault(root, h) for h in headers), *found) if fault]
    print("\n".join(faults) or f"{len(headers)} headers stand alone")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()))
