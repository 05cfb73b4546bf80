"""Files in a folder of data that are no data, but about it."""

import os

# Names of texts in a folder that are no data; then suffixes of files beside shards: descriptions
# that tools write (dataset_info.json, 00000_stats.json, 00000.idx), and checksums.
_ABOUT = ("readme", "license", "licence", "notice", "changelog", "citation")
_CHECKSUMS = ("md5", "sha1", "sha256", "sha512", "xxh64", "xxh128")
_BESIDE = (".md", ".json", ".yaml", ".yml", ".idx", *(f".{name}" for name in _CHECKSUMS))
# Marks that Spark and its relatives leave in a folder of tables. Other names with an underscore in
# front may be data.
_MARKS = ("_success", "_metadata", "_common_metadata")
_NUMBERED_MARKS = ("_started_", "_committed_")


def is_about_data(name: str) -> bool:
    """Whether a file is about others: README, LICENSE.txt, dataset_info.json, _SUCCESS."""
    base = os.path.basename(name).lower()
    stem, suffix = os.path.splitext(base)
    if suffix in _BESIDE or base in _MARKS or base.startswith(_NUMBERED_MARKS):
        return True
    named = stem in _ABOUT or stem.removesuffix("sums") in _CHECKSUMS or stem == "checksums"
    return named and suffix in ("", ".txt", ".rst")
