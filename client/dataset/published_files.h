#pragma once

#include <memory>
#include <span>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// The files that a published name stands for, and how to hint at what will be read of them.
struct PublishedFiles {
  std::shared_ptr<const RangeReader> files;  // In the order of the manifest.
  PrefetchHinter hinter;
  DatasetManifest manifest;
};

// The files that are published under one name at `locations`: a daemon, or nodes of a cluster.
//
// Fails as Cluster::Find, with kNotFound if there is no such name, kInvalidArgument if it has no
// files, kUnavailable, kDeadlineExceeded.
Result<PublishedFiles> OpenPublished(std::span<const net::Location> locations,
                                     const SessionOptions& options);

}  // namespace ffrecord::client
