#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// Names that were removed after the metadata was put back to an older state, while nobody has
// confirmed it: a rebuild leaves them away, though nodes have known them, or what replaced them.

// The record of the metadata, if it is known and nobody has confirmed it.
std::optional<HistoryRecord> UnconfirmedIn(const View& view);
// Adds to a commit that removes the name what tells of it. Nothing, if the metadata is confirmed.
void NoteRemoval(const View& view, const std::string& name, MetaStore::Commit& commit);
// Whether the name, which a node has known like this up to that mark, was removed since.
bool WasRemovedSince(const View& view, const HistoryMark& mark, const std::string& name,
                     const DatasetRecord& known);

// Names that were removed or replaced, by their tombstones.

// Prefix of the keys of the tombstones for what a name had at that revision. A name has one
// revision only once, so its tombstone has a key of its own.
std::string NameTombstonePrefix(std::uint64_t revision);
// The revision that the attempt gave to its name, if the name was replaced or removed since and the
// grace of that is not over.
std::optional<std::uint64_t> RevisionBefore(const View& view, std::uint64_t attempt);

}  // namespace ffrecord::server::cluster
