// A client of three scripted nodes, with files of one extent each.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/dataset/cluster.h"
#include "client/dataset/upload.h"
#include "fake_cluster.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

using test::FakeCluster;

constexpr SessionOptions kOptions{std::chrono::seconds(20), Transport::kTcp};
constexpr std::size_t kFileCount = 12;

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() {
    for (std::size_t i = 0; i < kFileCount; ++i)
      contents_.push_back(std::string(1000 + i, static_cast<char>('a' + i)));
  }

  std::vector<net::Location> Locations() const { return {Location(cluster_.seed())}; }
  static net::Location Location(const net::Address& address) {
    net::Location location;
    location.address = address;
    location.name = "x";
    return location;
  }
  std::shared_ptr<Cluster> Find(const SessionOptions& options = kOptions) const {
    auto found = Cluster::Find(Locations(), options);
    EXPECT_TRUE(found) << found.error().message;
    return found ? found.value() : nullptr;
  }

  // Uploads a file of one extent for each of the contents.
  Result<DatasetManifest> Put(Upload& upload) const {
    DatasetManifest manifest;
    for (const std::string& content : contents_) {
      const auto bytes = std::as_bytes(std::span(content));
      manifest.files.push_back(FFR_TRY(upload.PutBytes("f", {&bytes, 1})));
    }
    return manifest;
  }
  // Which nodes have the extent.
  std::set<std::uint16_t> HoldersOf(const ExtentId& id) {
    std::set<std::uint16_t> holders;
    for (std::uint16_t i = 0; i < FakeCluster::kNodeCount; ++i) {
      const auto name = HexOf(id);
      for (const auto& path : cluster_.node(i).Extents())
        if (path.filename() == name) holders.insert(i);
    }
    return holders;
  }
  // Of the first extent of each file.
  void ExpectHolders(const DatasetManifest& manifest, const std::set<std::uint16_t>& holders) {
    for (const ManifestFile& file : manifest.files)
      EXPECT_EQ(HoldersOf(file.extents[0].id), holders);
  }
  static std::string HexOf(const ExtentId& id) {
    std::string hex;
    for (const std::byte one : id) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      hex += kDigits[std::to_integer<std::size_t>(one >> 4)];
      hex += kDigits[std::to_integer<std::size_t>(one & std::byte{15})];
    }
    return hex;
  }
  static std::set<std::uint16_t> OwnersOf(const ExtentId& id) {
    const std::uint32_t slot = SlotOf(id);
    return {FakeCluster::OwnerOf(slot, 0), FakeCluster::OwnerOf(slot, 1)};
  }

  // All files in one batch; each must be right.
  void ReadAll(const RangeReader& files) const {
    std::vector<std::vector<std::byte>> places;
    std::vector<RangeRead> ranges;
    for (std::uint32_t i = 0; i < kFileCount; ++i) {
      places.emplace_back(contents_[i].size());
      ranges.push_back({i, 0, places.back(), ErrorCode::kOk});
    }
    const auto read = files.Read(ranges);
    ASSERT_TRUE(read) << read.error().message;
    for (std::size_t i = 0; i < kFileCount; ++i) {
      ASSERT_EQ(ranges[i].status, ErrorCode::kOk)
          << i << ": " << files.Trouble(static_cast<std::uint32_t>(i), ranges[i].status);
      ASSERT_TRUE(std::ranges::equal(places[i], std::as_bytes(std::span(contents_[i])))) << i;
    }
  }

  mutable FakeCluster cluster_;
  std::vector<std::string> contents_;
};

}  // namespace ffrecord::client
