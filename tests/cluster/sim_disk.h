#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "server/cluster/machine.h"

namespace ffrecord::test {

// The disks of one simulated node. They outlive its crashes; what is known in memory does not.
class SimDisk final : public server::cluster::LocalExtents {
 public:
  struct Replica {
    ManifestExtent extent;
    server::cluster::Body bytes = {};             // Of manifests only.
    server::cluster::TimePoint since;             // Of the world.
    bool is_rotten = false;                       // Its bytes are not those of its checksum,
    bool is_known_bad = false;                    // and the node has found that out
    server::cluster::TimePoint known_since = {};  // by that time of the world.
    bool is_dropping = false;
  };

  std::optional<ManifestExtent> Find(const ExtentId& id) const override {
    const auto found = replicas.find(id);
    if (found == replicas.end() || found->second.is_known_bad || found->second.is_dropping)
      return std::nullopt;
    return found->second.extent;
  }
  std::vector<ManifestExtent> All() const override {
    std::vector<ManifestExtent> all;
    for (const auto& [id, replica] : replicas)
      if (!replica.is_dropping) all.push_back(replica.extent);
    return all;
  }
  std::vector<ExtentId> InMotion() const override {
    std::vector<ExtentId> moving(pulling.begin(), pulling.end());
    for (const auto& [id, replica] : replicas)
      if (replica.is_dropping) moving.push_back(id);
    return moving;
  }
  // The simulation changes them as it likes: what they are now.
  std::uint64_t ChangeCount() const override {
    std::uint64_t digest = 0;
    for (const auto& [id, replica] : replicas) {
      const std::uint64_t state =
          (replica.is_known_bad ? 1U : 0U) + (replica.is_dropping ? 2U : 0U);
      digest += Xxh3(id, state) ^ replica.extent.xxh3;
    }
    return digest;
  }
  bool HasRoomFor(std::uint64_t) const override { return true; }
  std::optional<server::cluster::TimePoint> LastHeard(std::uint64_t upload) const override {
    const auto found = heard.find(upload);
    if (found == heard.end()) return std::nullopt;
    return found->second;
  }

  bool HasGood(const ManifestExtent& extent) const {
    const auto found = replicas.find(extent.id);
    return found != replicas.end() && found->second.extent == extent && !found->second.is_rotten &&
           !found->second.is_dropping;
  }
  // The node crashes: drops that were begun are undone, copies that were begun are gone.
  void Crash() {
    pulling.clear();
    heard.clear();
    for (auto& [id, replica] : replicas) replica.is_dropping = replica.is_known_bad = false;
  }

  std::map<ExtentId, Replica> replicas;
  std::vector<ExtentId> pulling;
  std::map<std::uint64_t, server::cluster::TimePoint> heard;
};

}  // namespace ffrecord::test
