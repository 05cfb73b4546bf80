#pragma once

#include <string>

#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Reads the whole extent, through the page cache, from which it is served, and compares it with its
// checksum. Empty: it is not damaged, or its file cannot be checked now. Ends early once the
// thread's patience is over.
std::string WhyDamaged(const Extent& extent);

}  // namespace ffrecord::server
