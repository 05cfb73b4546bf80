"""Named, versioned datasets with cards, at a daemon, in a cluster, in a folder or in a bucket."""

from ffrecord._store.catalogue import (
    Dataset,
    Difference,
    diff,
    ls,
    publish,
    remove,
    search,
    show,
    tag,
    untag,
    versions,
)
from ffrecord._store.catalogue_document import Version, VersionFile

__all__ = [
    "Dataset",
    "Difference",
    "Version",
    "VersionFile",
    "diff",
    "ls",
    "publish",
    "remove",
    "search",
    "show",
    "tag",
    "untag",
    "versions",
]
