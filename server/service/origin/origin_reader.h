#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::server {

// A file of an origin, as it was when it was published.
struct OriginFile {
  FileOrigin origin;
  std::uint64_t size_bytes = 0;

  bool operator==(const OriginFile&) const = default;
};

class OriginStores;  // The buckets that were read, with their credentials.

// Reads files of origins: objects of S3-compatible stores, and files of folders that all nodes
// share. It uses the credentials of the daemon, and reads nothing outside of its options' places.
// Thread-safe.
class OriginReader {
 public:
  struct Options {
    // s3://BUCKET, s3://BUCKET/PREFIX or absolute folders, without a slash at the end.
    std::vector<std::string> allowed = {};
    // For each request to a store, retries included: many of them may share a slow link.
    std::chrono::milliseconds timeout{60'000};
  };
  explicit OriginReader(Options options);

  // Which of the allowed places that address is in, the longest of them; none: in no place.
  std::optional<std::size_t> PlaceOf(std::string_view address) const;
  // Whether daemons may read that address. Fails with kDenied, and with kInvalidArgument if it is
  // no address of one object or file.
  Result<void> Check(std::string_view address) const;

  // Bytes [offset_bytes, offset_bytes + size_bytes) of the file, in order, piece by piece to
  // `take`. Waits; ends early once the thread's patience is over.
  //
  // Fails with kConflict if the file has another size or version than `file` says, kNotFound,
  // kDenied, kIo, kUnavailable, kDeadlineExceeded; with kInvalidArgument as Check and where this
  // build has no object stores; and as `take`. The message names the address. The bytes are not
  // verified.
  using TakePiece = std::function<Result<void>(std::span<const std::byte>)>;
  Result<void> Read(const OriginFile& file, std::uint64_t offset_bytes, std::uint64_t size_bytes,
                    const TakePiece& take) const;

 private:
  const Options options_;
  const std::shared_ptr<OriginStores> stores_;
};

// The error for a file that is no longer as it was published.
Error OriginChanged(const OriginFile& file, const std::string& what);

// The same for the same places in any order, and 0 for none: to compare nodes by.
std::uint64_t OriginsHash(std::vector<std::string> places);

std::shared_ptr<OriginStores> MakeOriginStores(std::chrono::milliseconds timeout);
// As OriginReader::Read, of an object.
Result<void> ReadOriginObject(OriginStores& stores, const OriginFile& file,
                              std::uint64_t offset_bytes, std::uint64_t size_bytes,
                              const OriginReader::TakePiece& take);

}  // namespace ffrecord::server
