#pragma once

#include <optional>

#include <ffrecord/result.h>

#include "server/storage/extent_store.h"

namespace ffrecord::test {

// A writer for an extent that has a place, on whichever disk makes its file; for one thread that
// waits for all of them.
inline Result<server::ExtentWriter> Open(server::NewExtent place) {
  for (;;) {
    auto writer = FFR_TRY(place.Open());
    if (writer) return *std::move(writer);
  }
}

inline Result<server::ExtentWriter> Create(server::ExtentStore& store, const ExtentId& id,
                                           std::uint64_t size_bytes) {
  return Open(FFR_TRY(store.Place(id, size_bytes)));
}

}  // namespace ffrecord::test
