#pragma once

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dataset_cluster.h"

namespace ffrecord::test {

// A cluster, and kFileCount files of kRecordCount records in a folder that all of its nodes may
// read from: a test publishes them as a name of class origin. Settings of nodes are those that the
// members say when StartNodes() is called.
class OriginCluster : public DatasetCluster {
 protected:
  void Adjust(const std::string& node, server::Server::Options& options) override {
    auto& origins = options.cluster->origins;
    if (node != without_) origins.reader.allowed = allowed_;
    if (lease_) options.cluster->service.lease = *lease_;
    origins.reader.timeout = std::chrono::seconds(1);
    origins.free_bytes_min = 0;
    origins.retry = std::chrono::milliseconds(50);
    options.cluster->service.feature_level = level_;
  }

  Result<void> Publish(const std::string& name, const std::vector<std::string>& files,
                       bool replace = false) {
    auto published = client::PublishFromOrigin(files, Address(name), replace, Options(), {});
    if (published) AwaitKnown(name);
    return published;
  }
  // The cached extents of a node.
  static std::size_t CachedOn(const Node& node) {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(node.daemon->data() / "origin-cache"))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  }
  std::size_t CachedCount() const {
    std::size_t count = 0;
    for (const Node& node : nodes_) count += node.daemon ? CachedOn(node) : 0;
    return count;
  }
  static std::filesystem::path ACachedFileOf(const Node& node) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(node.daemon->data() / "origin-cache"))
      if (entry.is_regular_file()) return entry.path();
    return {};
  }
  void Hide() const { std::filesystem::rename(folder_ / "shared", folder_ / "hidden"); }
  void Show() const { std::filesystem::rename(folder_ / "hidden", folder_ / "shared"); }

  std::vector<std::string> allowed_{(folder_ / "shared").string(), "s3://bucket"};
  std::uint32_t level_ = server::cluster::kFeatureLevel;
  std::string without_;  // This node has no setting `origins`.
  std::optional<std::chrono::milliseconds> lease_;
};

}  // namespace ffrecord::test
