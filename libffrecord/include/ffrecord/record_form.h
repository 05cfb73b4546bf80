#pragma once

#include <cstdint>

namespace ffrecord {

// How the bytes of a sample in a file of another kind become a record.
enum class RecordForm : std::uint32_t {
  kPlain = 0,  // They are the record.
  kMds = 1,    // A sample of an MDS shard.
  kTar = 2,    // The members of a tar, with their headers: a sample of WebDataset, or one file.
};

}  // namespace ffrecord
