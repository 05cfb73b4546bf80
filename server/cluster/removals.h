#pragma once

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

}  // namespace ffrecord::server::cluster
