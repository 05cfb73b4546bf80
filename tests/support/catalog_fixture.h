#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"
#include "libffrecord/base/clock.h"
#include "memory_store.h"
#include "new_extents.h"
#include "server/service/catalog/catalog.h"
#include "server/service/catalog/upload_records.h"
#include "temp_folder.h"

namespace ffrecord::server {

// A store whose commits fail as a disk that is full does, or lose their reply, and go through a
// HomeDisk as those of a daemon's own store.
class FailingStore final : public BlockingStore {
 public:
  explicit FailingStore(BlockingStore& store) : store_(store) {}
  Result<std::optional<KeyValue>> Get(std::string_view key) override { return store_.Get(key); }
  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    return store_.List(prefix, after, limit);
  }
  Result<Outcome> TryCommit(const Commit& commit) override {
    if (home == nullptr) return Write(commit);
    return home->Run(MakesRoom(commit.puts), [&] { return Write(commit); });
  }
  HomeDisk* home = nullptr;  // None: its commits go straight to the store.
  bool fails = false;
  std::function<bool()> is_full;
  bool loses_reply = false;

 private:
  Result<Outcome> Write(const Commit& commit) {
    if (fails || (is_full && is_full())) return Error{ErrorCode::kIo, "no space", ENOSPC};
    auto outcome = store_.TryCommit(commit);
    if (loses_reply) return Error{ErrorCode::kIo, "no answer", EIO};
    return outcome;
  }

  BlockingStore& store_;
};

// A catalog over a store in memory and a real folder; Open() again is a start after a kill.
class CatalogTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() { OpenOn({"extents"}, 0); }

  void OpenOn(const std::vector<std::string>& disk_names, std::size_t missing_count) {
    catalog_.reset();
    auto published = ReadPublishedNames(store_).value();
    ExtentStore::Disks disks;
    disks.missing_count = missing_count;
    for (const std::string& name : disk_names)
      disks.present.push_back(Disk::Open(folder_ / name).value());
    extents_ = ExtentStore::Open(std::move(disks), published.Extents()).value();
    home_.emplace(HomeDisk::Options{.folder = folder_.path(), .reserve_bytes = 64 << 10});
    home_->BeOneWith(*extents_->disks().front());
    store_.home = &*home_;
    auto catalog = Catalog::Open(store_, *extents_, *home_,
                                 {std::chrono::seconds(60), quotas_, kept_}, std::move(published));
    ASSERT_TRUE(catalog) << catalog.error().message;
    catalog_ = std::move(catalog).value();
  }

  // As Catalog::BeginPut, and has the file made.
  Result<std::optional<ExtentWriter>> BeginPut(const net::PutBegin& begin,
                                               std::string_view owner_prefix = "") {
    auto place = FFR_TRY(catalog_->BeginPut(begin, owner_prefix));
    if (!place) return std::optional<ExtentWriter>();
    return std::optional(FFR_TRY(test::Open(*std::move(place))));
  }

  // An extent of upload `upload`, sealed; what a manifest says of it.
  ManifestExtent Put(std::uint64_t upload, std::uint32_t number, std::string_view data) {
    const ManifestExtent extent{MakeExtentId(upload, number, 0), data.size(),
                                Xxh3(test::AsBytes(data))};
    auto writer = BeginPut({extent.id, extent.size_bytes});
    EXPECT_TRUE(writer) << writer.error().message;
    EXPECT_TRUE(writer.value());
    EXPECT_TRUE(writer.value()->Append(test::AsBytes(data)));
    const auto sealed = catalog_->Seal(*writer.value(), {extent.id, extent.xxh3});
    EXPECT_TRUE(sealed) << sealed.error().message;
    return extent;
  }

  static std::vector<std::byte> ManifestOf(const std::vector<ManifestExtent>& extents) {
    DatasetManifest manifest;
    for (const auto& extent : extents)
      manifest.files.push_back(
          {"file-" + std::to_string(manifest.files.size()), extent.size_bytes, {extent}});
    return EncodeDatasetManifest(manifest).value();
  }

  Result<net::RevisionReply> Publish(const std::string& name,
                                     const std::vector<ManifestExtent>& extents,
                                     net::Publish::Mode mode = net::Publish::Mode::kCreate,
                                     std::uint64_t expected = 0, std::uint64_t attempt = 0) {
    return catalog_->Publish({mode, attempt == 0 ? next_attempt_++ : attempt, expected, name},
                             ManifestOf(extents));
  }

  // All upkeep of a daemon, once.
  Result<std::uint64_t> CollectAt(Clock::time_point now) {
    home_->Look();
    FFR_TRY(catalog_->GiveUpUploads(now));
    Result<std::uint64_t> count = std::uint64_t{0};
    for (const auto& disk : extents_->disks()) {
      auto unlinked = catalog_->UnlinkOn(*disk);
      if (unlinked && count) unlinked = unlinked.value() + count.value();
      if (count) count = std::move(unlinked);
    }
    FFR_TRY(catalog_->ForgetUnlinked());
    return count;
  }

  std::uint64_t Collect(std::chrono::seconds later = {}) {
    const auto collected = CollectAt(Clock::now() + later);
    EXPECT_TRUE(collected) << collected.error().message;
    return collected.value();
  }

  static constexpr auto kCreate = net::Publish::Mode::kCreate;
  static constexpr auto kReplace = net::Publish::Mode::kReplace;
  static constexpr auto kSwap = net::Publish::Mode::kSwap;

  std::map<std::string, std::uint64_t> quotas_;
  std::vector<ExtentId> kept_;
  test::TempFolder folder_;
  std::unique_ptr<BlockingStore> memory_ = test::MakeMemoryStore();
  FailingStore store_{*memory_};
  std::unique_ptr<ExtentStore> extents_;
  std::optional<HomeDisk> home_;
  std::unique_ptr<Catalog> catalog_;
  std::uint64_t next_attempt_ = 100;
};

}  // namespace ffrecord::server
