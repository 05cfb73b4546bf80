#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include <ffrecord/result.h>

#include "client/checkpoint/segment_image.h"

namespace ffrecord::client {

// A segment on its way to its target.
struct SegmentFile {
  std::string name;  // format.md, "Checkpoint": part-00003/seg-0000.
  SegmentImage image;
};

// Writes all of `segments` as new files below `folder`, whose subfolders exist, and makes them
// durable: several threads, each with several pieces on their way, past the page cache if `direct`
// and the file system allows it. Room for all is reserved first. Files appear under their names
// whole or not at all, as those of an AtomicFile; a failed write or sync is never retried.
//
// Pieces with tensors that are not stable go first; `released`, if given, is called once, on any
// of the threads, when those tensors are not read any more.
//
// Fails with kIo (ENOSPC before anything is written), kConflict if a file exists, kDenied.
Result<void> WriteSegmentFiles(const std::filesystem::path& folder, std::span<SegmentFile> segments,
                               bool direct, const std::function<void()>& released);

}  // namespace ffrecord::client
