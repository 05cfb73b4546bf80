"""The files of each split, as the `README.md` of a folder of Hugging Face's hub describes them."""

import os
import re
from collections.abc import Iterator
from typing import Any

from ffrecord.pack import _places
from ffrecord.pack._beside import is_about_data
from ffrecord.pack._source import needed

_README = "README.md"
_CHARS_MAX = 1 << 22
# YAML between two lines of three dashes, in front of the text.
_FRONT = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", re.DOTALL)
_CONFIGS = re.compile(r"^configs[ \t]*:", re.MULTILINE)
# Parts of patterns that are no plain characters, and what some are as regular expressions.
_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[[^]]+\]")
_EXPRESSIONS = {"**/": "(.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def check_described(path: str, split: str, files: list[str]) -> None:
    """Check that a description of the folder, if there is one, has a split of just these files.

    It may make a split of files that are called otherwise, which would be left out.

    Raises:
        ValueError: it has none, or is no such description.
        ImportError: PyYAML, which it takes to read it, is not installed.
    """
    configs = list(_configs(path))
    if not configs:
        return
    names = [os.path.relpath(file, path) for file in files]
    known = _all_data(path) if any(each.get("data_files") for each in configs) else []
    for config in configs:
        folder = str(config.get("data_dir") or ".")
        if not config.get("data_files"):
            prefix = "" if folder in (".", "./") else folder.strip("/") + "/"
            if all(name.startswith(prefix) for name in names):
                return
            continue
        for patterns in _by_split(config["data_files"]).values():
            meant = [re.compile(_expression(os.path.join(folder, each))) for each in patterns]
            if {name for name in known if any(one.fullmatch(name) for one in meant)} == {*names}:
                return
    raise ValueError(
        f"{os.path.join(path, _README)} describes no split of just the files of {split}, "
        f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}: name the files to pack"
    )


def _configs(path: str) -> Iterator[dict[str, Any]]:
    readme = os.path.join(path, _README)
    if not _places.is_file(readme):
        return
    with _places.open_text(readme, errors="replace") as file:
        front = _FRONT.match(file.read(_CHARS_MAX))
    if front is None or not _CONFIGS.search(front[1]):
        return
    yaml = needed("yaml", readme, "pyyaml")
    try:
        found = yaml.safe_load(front[1])["configs"]
        yield from (dict(each) for each in found or ())
    except (yaml.YAMLError, TypeError, KeyError, ValueError, RecursionError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"{readme}: its configs are no list of files: {said}") from None


def _by_split(found: Any) -> dict[str, list[str]]:  # noqa: ANN401 - of any YAML
    """The patterns of each split; those without a name are of one."""
    if isinstance(found, dict):
        return {str(name): _texts(paths) for name, paths in found.items()}
    splits: dict[str, list[str]] = {}
    for each in found if isinstance(found, list) else [found]:
        named = each if isinstance(each, dict) else {"path": each}
        splits.setdefault(str(named.get("split", "")), []).extend(_texts(named.get("path")))
    return splits


def _texts(found: Any) -> list[str]:  # noqa: ANN401 - of any YAML
    return [str(each) for each in (found if isinstance(found, list) else [found])]


def _expression(pattern: str) -> str:
    """A regular expression for a pattern of `datasets`, in which * stops at a slash."""
    pattern = os.path.normpath(pattern)
    made, end = "", 0
    for part in _PARTS.finditer(pattern):
        made += re.escape(pattern[end : part.start()])
        made += _EXPRESSIONS.get(part[0], part[0].replace("[!", "[^"))
        end = part.end()
    return made + re.escape(pattern[end:])


def _all_data(path: str) -> list[str]:
    """Names of all files of data, from the folder on."""
    found = []
    for parent, folders, names in _places.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        own = [name for name in names if name[0] != "." and not is_about_data(name)]
        found += [os.path.relpath(os.path.join(parent, name), path) for name in own]
    return found
