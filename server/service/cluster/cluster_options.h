#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/cluster/records.h"
#include "server/service/access/tokens.h"
#include "server/service/cluster/pull_pace.h"

namespace ffrecord::server {

// How a daemon takes part in a cluster. A value; ClusterService has it for its rooms.
struct ClusterOptions {
  std::string node;       // Id; also of its member.
  std::string advertise;  // host:port at which others reach this daemon.
  std::string daemon;     // Its id, for operators who are to let it in.
  std::string domain;
  std::uint32_t weight = 1;
  std::uint32_t feature_level = cluster::kFeatureLevel;  // That this program knows.
  std::uint8_t replicas = 2;                             // Replicas of each published extent.
  bool approves_members = false;  // While it leads, new nodes join without an operator.
  // Hash of `origins`; must be equal on all nodes.
  std::uint64_t origins_hash = 0;
  std::chrono::milliseconds lease{10'000};
  std::chrono::milliseconds down_grace{600'000};
  std::chrono::milliseconds upload_grace{600'000};
  // How long the extents of a removed name stay, for those who read them.
  std::chrono::milliseconds delete_grace{86'400'000};
  // Takes the names into the cluster that the daemon published before it joined.
  bool adopt = false;
  // At which this node copies extents that it lacks; 0: as fast as it goes.
  std::uint64_t pull_bytes_per_s = 0;
  PullClock pull_clock = {};
  const TokenKeys* token_keys = nullptr;  // Outlives the service. Null: nobody shows a token.
  net::TlsFiles tls = {};                 // As the daemon serves; without a certificate: no TLS.
  // Told when a name has come to stand for other files; null: for nothing. Must not block.
  std::function<void(const DatasetManifest* before, const DatasetManifest* after)> on_name = {};
  // Whether files of names may lie at that address; empty: at none. Fails for people.
  std::function<Result<void>(const std::string& address)> check_origin = {};
};

}  // namespace ffrecord::server
