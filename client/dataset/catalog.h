#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/daemons.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/storage_messages.h"

namespace ffrecord::client {

// The names that a daemon, or the nodes of a cluster, serve. Calls fail also as Daemons::Run does.
// Thread-safe.
class Catalog {
 public:
  explicit Catalog(Daemons daemons) : daemons_(std::move(daemons)) {}

  // What `name` stands for. Fails with kNotFound, kInvalidArgument for a bad name.
  struct Resolved {
    DatasetManifest manifest;
    std::uint64_t revision = 0;
  };
  Result<Resolved> Resolve(std::string_view name, net::Deadline deadline) const;

  // Makes `name` stand for `manifest`, whose extents an Upload has brought; returns the revision.
  // Nothing is visible before, all of it after. With Mode::kSwap the name must be at
  // `expected_revision`. Fails with kConflict if the name is not as `mode` wants it, or if extents
  // of the manifest are gone because the upload was abandoned too long; kIo (ENOSPC).
  Result<std::uint64_t> Publish(std::string_view name, const DatasetManifest& manifest,
                                net::Publish::Mode mode, std::uint64_t expected_revision,
                                net::Deadline deadline) const;

  // Fails as a publication of `size_bytes` under `name` would for want of room: kIo with ENOSPC or
  // EDQUOT. A daemon that knows no such question has no objection.
  Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes,
                         net::Deadline deadline) const;

  // The names that begin with `prefix`, sorted.
  Result<std::vector<net::ListReply::Entry>> List(std::string_view prefix,
                                                  net::Deadline deadline) const;

  // Fails with kNotFound, and with kConflict if the name is not at `expected_revision`; 0: any.
  Result<void> Remove(std::string_view name, net::Deadline deadline,
                      std::uint64_t expected_revision = 0) const;

 private:
  Daemons daemons_;
};

}  // namespace ffrecord::client
