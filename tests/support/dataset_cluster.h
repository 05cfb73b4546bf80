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
#include <random>
#include <string>
#include <vector>

#include "daemon_cluster.h"
#include "test_file.h"

namespace ffrecord::test {

// A cluster, kFileCount files of kRecordCount records to publish, and what is read of them then.
class DatasetCluster : public DaemonCluster {
 protected:
  static constexpr std::size_t kFileCount = 12;
  static constexpr std::size_t kRecordCount = 20;

  DatasetCluster() {
    std::filesystem::create_directory(folder_ / "shared");
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < kFileCount; ++i) {
      std::vector<std::string> records;
      for (std::size_t j = 0; j < kRecordCount; ++j) records.push_back(RandomText(500 + j, random));
      WriteRecords(PathOf(i), records);
      records_.insert(records_.end(), records.begin(), records.end());
    }
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
  // Until all nodes have heard of the name.
  void AwaitKnown(const std::string& name) const {
    const auto is_known = [&](const Node& node) {
      return node.daemon == nullptr || bool(Client().Resolve(AddressOf(node), name));
    };
    EXPECT_TRUE(Eventually([&] { return std::ranges::all_of(nodes_, is_known); }));
  }
  // The fault in the records of the dataset; empty: there is none.
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

  std::vector<std::string> records_;
};

}  // namespace ffrecord::test
