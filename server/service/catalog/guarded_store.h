#pragma once

#include <memory>

#include "server/metadata/blocking_store.h"
#include "server/storage/home_disk.h"

namespace ffrecord::server {

// Over another store, whose disk is `home`: commits are refused, timed and given the reserve as
// HomeDisk says. A commit makes room if it puts nothing but tombstones and the generation. Both
// outlive it. Fails also as HomeDisk::Run.
std::unique_ptr<BlockingStore> MakeGuardedStore(BlockingStore& store, HomeDisk& home);

}  // namespace ffrecord::server
