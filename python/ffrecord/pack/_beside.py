"""Files in a folder of data that are no data, but about it."""

import os

# Names of texts in a folder that are no data; then suffixes of files beside shards: descriptions
# that tools write (dataset_info.json, 00000_stats.json, 00000.idx), and checksums.
_ABOUT = ("readme", "license", "licence", "notice", "changelog", "citation")
_CHECKSUMS = ("md5", "sha1", "sha256", "sha512", "xxh64", "xxh128")
_BESIDE = (".md", ".json", ".yaml", ".yml", ".idx", *(f".{name}" for name in _CHECKSUMS))


def is_about_data(name: str) -> bool:
    """Whether a file is about others: README, LICENSE.txt, dataset_info.json, SHA256SUMS."""
    stem, suffix = os.path.splitext(os.path.basename(name).lower())
    if suffix in _BESIDE:
        return True
    named = stem in _ABOUT or stem.removesuffix("sums") in _CHECKSUMS or stem == "checksums"
    return named and suffix in ("", ".txt", ".rst")
