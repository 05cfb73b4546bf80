#pragma once

#include <span>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "client/dataset/published_files.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::client {

// Opens the dataset that was published to the daemons at `locations`, at least two, under one name.
// Its bytes come from whichever daemon answers, those of this machine first. A hint goes to one
// daemon, from which this reader then reads while the daemon is well.
//
// A daemon that does not answer, or answers with kIo or kCorruption, is taken to hold the same
// extents, and asked for them like the others. One that does not have the name is left out. Fails
// with kConflict, naming two daemons, if their files differ; else, if no daemon has the name, as
// Catalog::Resolve.
Result<PublishedFiles> OpenReplicas(std::span<const net::Location> locations,
                                    const SessionOptions& options);

}  // namespace ffrecord::client
