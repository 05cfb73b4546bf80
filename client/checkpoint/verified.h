#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/segment_reader.h"
#include "client/checkpoint/step_digests.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {

// The segments that this process has read and found whole, each with the files that held it: a copy
// elsewhere is another one. A save that shares a segment, and retention, read only segments that
// are not here. SegmentReader takes out what it finds damaged. Thread-safe.
class VerifiedSegments {
 public:
  static VerifiedSegments& Process();

  // `file` is CommittedStep::IdentityOf() the segment's file: a file that was written again since
  // is another one. A verification is forgotten after kAge.
  bool Has(const SegmentId& segment, const std::string& file) const;
  void Add(const SegmentId& segment, std::string file);
  // `copy` was made of `file`, of which Has() said so: it is as whole, for as long.
  void AddCopy(const SegmentId& segment, const std::string& file, std::string copy);
  // A reader of the segment calls this when some of it is not as it was written. Forgets all files
  // of it: they may be copies of each other.
  void Forget(const SegmentId& segment);

 private:
  static constexpr std::chrono::hours kAge{24};
  static constexpr std::size_t kCountMax = 1 << 16;  // Bounds memory: some 200 bytes each.
  using File = std::pair<SegmentId, std::string>;

  // Requires the lock.
  std::optional<Clock::time_point> WhenRead(const SegmentId& segment,
                                            const std::string& file) const;
  void Note(const SegmentId& segment, std::string file, Clock::time_point when);
  void ForgetFiles(const SegmentId& segment);

  mutable std::mutex mutex_;  // Guards what follows.
  std::map<File, Clock::time_point> files_;
};

// A segment and the file that holds it.
struct SegmentInFile {
  std::string name;
  SegmentOfPart segment;
};

// The segments of `parts`, which are in rank order, in the files of a step.
std::vector<SegmentInFile> FilesOf(std::span<const PartManifest> parts);

// Whether every block of `segments` is as it was written, and all tensors in them are those that
// were saved; reads those that this process has not verified yet, and of the others asks whether
// they are still there. Fails if they cannot be read or asked for, for reasons that say nothing of
// them: kUnavailable, kDeadlineExceeded, kDenied.
Result<bool> AreWhole(const CommittedStep& files, std::span<const SegmentInFile> segments);

}  // namespace ffrecord::client
