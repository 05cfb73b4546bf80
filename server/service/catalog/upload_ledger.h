#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "libffrecord/format/dataset_manifest.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Bytes that uploads have been given room for and that no name holds yet, by the prefix that their
// client may write to. In memory only: at a start Add() gets what there is of open uploads.
class UploadLedger {
 public:
  // An extent that is noted already keeps its owner, and the larger size: whichever of its writers
  // comes first may seal it. Requires that its upload is on record, or nobody gives it up.
  void Add(const ExtentId& id, std::uint64_t size_bytes, std::string_view owner_prefix);
  void Remove(const ExtentId& id);
  void RemoveUpload(std::uint64_t upload);

  // Bytes of clients that can write below `prefix` only, without that extent.
  std::uint64_t SizeBelow(std::string_view prefix, const ExtentId& but_not) const;

 private:
  struct Entry {
    std::uint64_t size_bytes = 0;
    std::string owner_prefix;
  };
  std::unordered_map<ExtentId, Entry, HashExtentId> entries_;
  std::map<std::string, std::uint64_t, std::less<>> sizes_;  // By owner's prefix.
};

}  // namespace ffrecord::server
