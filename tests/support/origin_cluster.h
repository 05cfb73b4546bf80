#pragma once

#include <ffrecord/client/dataset.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon_cluster.h"
#include "test_file.h"

namespace ffrecord::test {

// A cluster, and kFileCount files of kRecordCount records in a folder that all of its nodes may
// read from: a test publishes them as a name of class origin. Settings of nodes are those that the
// members say when StartNodes() is called.
class OriginCluster : public DaemonCluster {
 protected:
  static constexpr std::size_t kFileCount = 12;
  static constexpr std::size_t kRecordCount = 20;

  OriginCluster() {
    std::filesystem::create_directory(folder_ / "shared");
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < kFileCount; ++i) {
      std::vector<std::string> records;
      for (std::size_t j = 0; j < kRecordCount; ++j) records.push_back(RandomText(500 + j, random));
      WriteRecords(PathOf(i), records);
      records_.insert(records_.end(), records.begin(), records.end());
    }
  }
  void Adjust(const std::string& node, server::Server::Options& options) override {
    auto& origins = options.cluster->origins;
    if (node != without_) origins.reader.allowed = allowed_;
    if (lease_) options.cluster->service.lease = *lease_;
    origins.reader.timeout = std::chrono::seconds(1);
    origins.free_bytes_min = 0;
    origins.retry = std::chrono::milliseconds(50);
    options.cluster->service.feature_level = level_;
  }

  std::filesystem::path PathOf(std::size_t i) const {
    return folder_ / "shared" / (std::to_string(100 + i) + ".ffr");
  }
  std::vector<std::string> Paths() const {
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < kFileCount; ++i) paths.push_back(PathOf(i).string());
    return paths;
  }
  std::string Address(const std::string& name) const {
    std::string hosts;
    for (const Node& node : nodes_)
      if (node.daemon) hosts += (hosts.empty() ? "" : ",") + AddressOf(node);
    return "ffrecord://" + hosts + "/" + name;
  }
  static SessionOptions Options(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    SessionOptions options;
    options.timeout = timeout;
    options.transport = Transport::kTcp;
    return options;
  }
  Result<void> Publish(const std::string& name, const std::vector<std::string>& files,
                       bool replace = false) {
    auto published = client::PublishFromOrigin(files, Address(name), replace, Options(), {});
    if (published) AwaitKnown(name);
    return published;
  }
  // Else a later node of the slot may fetch what an earlier one has not heard of yet.
  void AwaitKnown(const std::string& name) const {
    const auto is_known = [&](const Node& node) {
      return node.daemon == nullptr || bool(Client().Resolve(AddressOf(node), name));
    };
    EXPECT_TRUE(Eventually([&] { return std::ranges::all_of(nodes_, is_known); }));
  }
  // What is wrong with the records of the dataset; empty: nothing.
  std::string FaultOf(const std::string& name,
                      std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    const std::vector<std::string> where{Address(name)};
    const auto reader = client::OpenDataset(where, {}, Options(timeout));
    if (!reader) return reader.error().message;
    std::vector<std::uint64_t> indices(reader.value().record_count());
    if (indices.size() != records_.size()) return "another count of records";
    std::iota(indices.begin(), indices.end(), 0);
    const auto batch = reader.value().ReadBatch(indices);
    if (!batch) return batch.error().message;
    for (const std::uint64_t i : indices) {
      const ErrorCode status = batch.value().statuses()[i];
      if (status != ErrorCode::kOk) return reader.value().Describe(i, status);
      if (AsString(batch.value().record(i)) != records_[i]) return "other bytes";
    }
    return "";
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
  static void Rot(const std::filesystem::path& path) {
    std::string bytes = ReadFile(path);
    bytes[bytes.size() / 2] ^= 1;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::uint64_t SumOf(const std::string& metric) const {
    std::uint64_t sum = 0;
    for (const Node& node : nodes_) sum += node.daemon ? Metric(node, metric) : 0;
    return sum;
  }
  void Hide() const { std::filesystem::rename(folder_ / "shared", folder_ / "hidden"); }
  void Show() const { std::filesystem::rename(folder_ / "hidden", folder_ / "shared"); }

  std::vector<std::string> records_;
  std::vector<std::string> allowed_{(folder_ / "shared").string(), "s3://bucket"};
  std::uint32_t level_ = server::cluster::kFeatureLevel;
  std::string without_;  // This node has no setting `origins`.
  std::optional<std::chrono::milliseconds> lease_;
};

}  // namespace ffrecord::test
