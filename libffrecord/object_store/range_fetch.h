#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/object_store/object_store.h"

namespace ffrecord::object_store {

// Bytes [offset_bytes, offset_bytes + destination.size()) of one object, at least one.
struct ObjectRange {
  const ObjectStore* store = nullptr;  // Borrowed, as the next three.
  std::string_view key;
  const ObjectVersion* version = nullptr;  // Null: any version, which is put into `found`.
  std::span<std::byte> destination;
  std::uint64_t offset_bytes = 0;

  // Set by FetchRanges. An empty object has no range, but a version: kOk, and nothing is read.
  std::optional<Error> error;
  ObjectVersion found;
};

// Fetches all ranges, one request for each, at most `in_flight_max` under way at a time.
//
// A request that fails for the moment (no connection, cut short, no bytes for a while, 429, 5xx) is
// made again with back-off until the store's timeout has passed since the first; one that is late
// is made a second time, and the first answer counts. An answer about another version of the object
// is an error (kConflict). Other errors: kNotFound, kDenied, kUnavailable, kDeadlineExceeded,
// kInvalidArgument (no ranges, encoded content).
//
// Calls `arrived` on the calling thread once for each range, as soon as its error or its bytes are
// there. Once `patience` is over, cancels what is under way and fails with kDeadlineExceeded; no
// destination is written to after that. Fails as a whole only as HttpTransfers does.
Result<void> FetchRanges(std::span<ObjectRange> ranges, std::uint32_t in_flight_max,
                         const std::function<void(ObjectRange&)>& arrived, Patience& patience);

}  // namespace ffrecord::object_store
