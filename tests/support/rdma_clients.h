#pragma once

// Daemons and their clients over RDMA, for tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <ffrecord/client/dataset.h>

#include "daemon.h"
#include "endpoint_pairs.h"
#include "test_file.h"

namespace ffrecord::client::rdma {

using namespace std::chrono_literals;
using server::Server;
using test::Daemon;

constexpr SessionOptions kAuto{20s, Transport::kAuto};
constexpr SessionOptions kTcp{20s, Transport::kTcp};
constexpr SessionOptions kRdma{20s, Transport::kRdma};

inline Server::Options Offering(Server::Options::Transport transport) {
  Server::Options options;
  options.transport = transport;
  return options;
}

inline std::vector<std::string> Records(std::size_t count, std::size_t size) {
  std::mt19937 random(11);
  std::vector<std::string> records(count);
  for (std::string& record : records) {
    record.resize(size);
    for (char& c : record) c = static_cast<char>(random());
  }
  return records;
}

// Skipped where there is no device.
class RdmaClientTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!net::test::TestRdmaDevice()) GTEST_SKIP() << net::test::TestRdmaDevice().error().message;
  }

  // All records, in one batch, over the link that `options` choose.
  static void ExpectReads(const RecordReader& reader, const std::vector<std::string>& records) {
    std::vector<std::uint64_t> indices(records.size());
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = i;
    const auto batch = reader.ReadBatch(indices);
    ASSERT_TRUE(batch) << batch.error().message;
    for (std::size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(batch.value().statuses()[i], ErrorCode::kOk) << i;
      ASSERT_TRUE(std::ranges::equal(batch.value().record(i), std::as_bytes(std::span(records[i]))))
          << i;
    }
  }
  static std::string Linked(const std::string& uri, const SessionOptions& options) {
    const auto link = ProbeDaemon(uri, options);
    return link ? link.value().transport : link.error().message;
  }
};

}  // namespace ffrecord::client::rdma
