#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/segment_reader.h"
#include "client/checkpoint/step_digests.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {

// The segments that this process has read and found whole, each with the file that held it. A save
// that shares a segment, and retention, read only segments that are not here. Thread-safe.
class VerifiedSegments {
 public:
  static VerifiedSegments& Process();

  // `file` is CommittedStep::IdentityOf() the segment's file: a file that was written again since
  // is another one. A verification is forgotten after kAge.
  bool Has(const SegmentId& segment, const std::string& file) const;
  void Add(const SegmentId& segment, std::string file);

 private:
  static constexpr std::chrono::hours kAge{24};
  static constexpr std::size_t kCountMax = 1 << 16;  // Bounds memory: some 200 bytes each.

  struct Verified {
    std::string file;
    Clock::time_point when;
  };
  mutable std::mutex mutex_;  // Guards what follows.
  std::unordered_map<std::string, Verified> segments_;
};

// A segment and the file that holds it.
struct SegmentInFile {
  std::string name;
  SegmentOfPart segment;
};

// The segments of `parts`, which are in rank order, in the files of a step.
std::vector<SegmentInFile> FilesOf(std::span<const PartManifest> parts);

// Whether every block of `segments` is as it was written, and all tensors in them are those that
// were saved; reads those that this process has not verified yet. Fails if they cannot be read for
// reasons that say nothing of them: kUnavailable, kDeadlineExceeded, kDenied.
Result<bool> AreWhole(const CommittedStep& files, std::span<const SegmentInFile> segments);

}  // namespace ffrecord::client
