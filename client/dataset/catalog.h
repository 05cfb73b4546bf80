#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/change_tries.h"
#include "client/dataset/cluster.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/storage_messages.h"

namespace ffrecord::client {

// The names that a daemon, or the nodes of a cluster, serve. Calls fail also as Cluster::Run does.
// Thread-safe.
class Catalog {
 public:
  explicit Catalog(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  // The dataset that `name` stands for. Fails with kNotFound, kInvalidArgument for a bad name.
  struct Resolved {
    DatasetManifest manifest;
    std::uint64_t revision = 0;
  };
  Result<Resolved> Resolve(std::string_view name, net::Deadline deadline) const;

  // Whether `name` stands for something, before it is published: where the daemons do not know of
  // it and cannot tell whether that is the newest, or where the token may not read, it does not.
  // The publication decides.
  Result<bool> IsTaken(std::string_view name, net::Deadline deadline) const;

  // Makes `name` stand for `manifest`, whose extents an Upload has brought; returns the revision.
  // Nothing is visible before, all of it after. With Mode::kSwap the name must be at
  // `expected_revision`. Fails with kConflict if the name is not as `mode` wants it, or if extents
  // of the manifest are gone because the upload was abandoned too long, or if others changed the
  // name while it was not known whether this publication had its effect; kIo (ENOSPC).
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
  // Also with 0, what others published since the removal may have had its effect stays: kConflict.
  Result<void> Remove(std::string_view name, net::Deadline deadline,
                      std::uint64_t expected_revision = 0) const;

 private:
  // The revision that a change rests on, as some daemon knows it; 0: there is no such name. The
  // daemon that carries the change out compares it with the newest one. None: this client may not
  // look. `what` it asks for, in messages.
  using Base = std::optional<std::uint64_t>;
  Result<Base> FindBase(std::string_view name, const char* what, net::Deadline deadline,
                        Cluster::Absence absence = Cluster::Absence::kIsAnAnswer) const;
  Result<std::uint64_t> PublishOnce(const net::Publish& publish,
                                    std::span<const std::byte> manifest, ChangeTries& tries,
                                    net::Deadline deadline) const;
  Result<std::uint64_t> Replace(net::Publish publish, std::span<const std::byte> manifest,
                                net::Deadline deadline) const;
  Result<void> RemoveOnce(const net::Delete& request, ChangeTries& tries,
                          net::Deadline deadline) const;

  std::shared_ptr<Cluster> cluster_;
};

}  // namespace ffrecord::client
