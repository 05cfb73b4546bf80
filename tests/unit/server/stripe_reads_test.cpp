// Goal: a member of a stripe that is read where it is not comes there once, whoever waits for it;
// failures are told, and tried again later; damage is found and counts as absence.
// Method: a store on one disk; the test brings extents, or fails to.

#include "server/service/cluster/stripe_reads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <optional>

#include "bytes.h"
#include "daemon.h"
#include "libffrecord/base/checksum.h"
#include "server/service/cluster/node_extents.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::Eventually;
using namespace std::chrono_literals;

class StripeReadsTest : public testing::Test {
 protected:
  StripeReadsTest() { Make(1ms); }
  ~StripeReadsTest() override {
    Release();
    reads_.reset();
  }
  void Make(std::chrono::milliseconds retry) {
    reads_ = std::make_unique<StripeReads>(
        *store_,
        [this](const ManifestExtent& extent, const cluster::StripePlace& place) -> Result<void> {
          ++brought_;
          place_ = place.member;
          may_end_.get_future().wait();
          if (fails_) return Error{ErrorCode::kNotFound, "too few members"};
          return extents_.Write(extent, test::AsBytes(text_));
        },
        retry);
    reads_->Change(nullptr, manifest_);
  }
  void Release() {
    if (!std::exchange(is_released_, true)) may_end_.set_value();
  }
  // Once it has ended, and can be waited for again.
  void AwaitEnd(std::uint64_t brought, std::uint64_t failed) {
    EXPECT_TRUE(Eventually([&] {
      return reads_->brought().value() == brought && reads_->failed().value() == failed;
    }));
    may_end_ = {};
    is_released_ = false;
  }
  ErrorCode RefusalOf(const ExtentPtr& extent) const { return extent->refusal.load(); }

  const std::string text_ = std::string(5'000, 'x');
  const ManifestExtent extent_{MakeExtentId(7, 0, 1), text_.size(), Xxh3(test::AsBytes(text_))};
  const std::shared_ptr<const DatasetManifest> manifest_ = [this] {
    DatasetManifest manifest;
    manifest.code = {2, 1};
    manifest.files = {{"a", 9, {{MakeExtentId(7, 0, 0), 9, 1}}}, {"b", text_.size(), {extent_}}};
    manifest.parity = {{MakeExtentId(7, 1, 0), text_.size(), 2}};
    return std::make_shared<const DatasetManifest>(std::move(manifest));
  }();
  test::TempFolder folder_;
  const std::unique_ptr<ExtentStore> store_ = ExtentStore::Open(folder_ / "extents").value();
  NodeExtents extents_{*store_};
  std::atomic<int> brought_ = 0, place_ = -1;
  std::atomic<bool> fails_ = false;
  std::promise<void> may_end_;
  bool is_released_ = false;
  std::unique_ptr<StripeReads> reads_;
};

TEST_F(StripeReadsTest, ItIsBroughtOnceForAllWhoWaitAndIsAnExtentOfTheNodeThen) {
  const ExtentPtr bound = reads_->Find(extent_.id);
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(bound->size_bytes, text_.size());
  EXPECT_EQ(brought_, 0);  // To bind it brings nothing.
  for (int i = 0; i < 5; ++i) {
    const ExtentPtr awaited = reads_->Use(bound, true);
    EXPECT_EQ(awaited->disk, nullptr);
    EXPECT_EQ(RefusalOf(awaited), ErrorCode::kOk);  // BUSY.
  }
  Release();
  AwaitEnd(1, 0);
  EXPECT_EQ(brought_, 1);
  EXPECT_EQ(place_, 1);
  EXPECT_EQ(reads_->Use(bound, true), store_->Find(extent_.id));
  EXPECT_NE(reads_->Use(bound, false)->disk, nullptr);
}

TEST_F(StripeReadsTest, WhoDoesNotAskForItToBeBroughtIsToldThatItIsNotHere) {
  const ExtentPtr bound = reads_->Find(extent_.id);
  EXPECT_EQ(RefusalOf(reads_->Use(bound, false)), ErrorCode::kNotFound);
  Release();
  reads_.reset();  // What was begun ends first.
  EXPECT_EQ(brought_, 0);
}

TEST_F(StripeReadsTest, SoManyAreBroughtAtATimeAndNoMore) {
  constexpr int kAtATime = 64, kCount = kAtATime + 6;
  DatasetManifest manifest;
  manifest.code = {2, 1};
  for (std::uint32_t i = 0; i < kCount; ++i) {
    manifest.files.push_back({std::to_string(i), 9, {{MakeExtentId(9, i, 0), 9, i}}});
    if (i % 2 == 1) manifest.parity.push_back({MakeExtentId(10, i, 0), 9, i});
  }
  std::promise<void> may_end;
  const auto end = may_end.get_future().share();
  StripeReads reads(*store_, [end](const auto&, const auto&) -> Result<void> {
    end.wait();
    return Error{ErrorCode::kNotFound, "too few members"};
  });
  reads.Change(nullptr, std::make_shared<const DatasetManifest>(manifest));
  for (const ManifestFile& file : manifest.files)
    (void)reads.Use(reads.Find(file.extents.front().id), true);
  may_end.set_value();
  EXPECT_TRUE(Eventually([&] { return reads.failed().value() == kAtATime; }));
  (void)reads.Use(reads.Find(manifest.files.back().extents.front().id), true);
  EXPECT_TRUE(Eventually([&] { return reads.failed().value() == kAtATime + 1; }));
}

TEST_F(StripeReadsTest, AFailureIsToldAndTriedAgainLater) {
  Make(200ms);
  fails_ = true;
  const ExtentPtr bound = reads_->Find(extent_.id);
  (void)reads_->Use(bound, true);
  Release();
  AwaitEnd(0, 1);
  EXPECT_EQ(RefusalOf(reads_->Use(bound, true)), ErrorCode::kNotFound);
  EXPECT_EQ(brought_, 1);

  fails_ = false;
  Release();
  EXPECT_TRUE(Eventually([&] { return reads_->Use(bound, true)->disk != nullptr; }));
  EXPECT_EQ(brought_, 2);
}

TEST_F(StripeReadsTest, WhatNoNameHasInAStripeIsNobodys) {
  EXPECT_EQ(reads_->Find(MakeExtentId(8, 0, 0)), nullptr);
  const ExtentPtr bound = reads_->Find(extent_.id);
  const auto copy = std::make_shared<const DatasetManifest>(*manifest_);
  reads_->Change(nullptr, copy);  // Another name of the same stripe.
  reads_->Change(manifest_, nullptr);
  EXPECT_NE(reads_->Find(extent_.id), nullptr);
  reads_->Change(copy, copy);  // Published again.
  EXPECT_NE(reads_->Use(bound, false), nullptr);
  reads_->Change(copy, nullptr);
  EXPECT_EQ(reads_->Find(extent_.id), nullptr);
  EXPECT_EQ(reads_->Use(bound, true), nullptr);
  EXPECT_EQ(brought_, 0);
}

TEST_F(StripeReadsTest, OtherBytesUnderItsIdAreNotIt) {
  auto other = extent_;
  const std::string text(text_.size(), 'y');
  other.xxh3 = Xxh3(test::AsBytes(text));
  ASSERT_TRUE(extents_.Write(other, test::AsBytes(text)));
  EXPECT_EQ(reads_->Use(reads_->Find(extent_.id), false)->disk, nullptr);
}

TEST_F(StripeReadsTest, WhatAClientDoubtsIsVerifiedAndIfDamagedBroughtAnew) {
  ASSERT_TRUE(extents_.Write(extent_, test::AsBytes(text_)));
  const ExtentPtr here = store_->Find(extent_.id);
  std::fstream file(here->disk->PathOf(here->id), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5);
  file.put('y');
  file.close();

  EXPECT_EQ(RefusalOf(reads_->Doubted(here)), ErrorCode::kOk);  // BUSY while it is looked at.
  EXPECT_TRUE(Eventually([&] { return here->is_bad.load(); }));
  Release();
  EXPECT_TRUE(Eventually([&] {
    const ExtentPtr now = reads_->Use(here, true);
    return now->disk != nullptr && !now->is_bad;
  }));
  EXPECT_EQ(brought_, 1);
  EXPECT_TRUE(extents_.Read(extent_));
}

TEST_F(StripeReadsTest, WhatIsDoubtedInVainIsServedAndNotVerifiedAtOnceAgain) {
  ASSERT_TRUE(extents_.Write(extent_, test::AsBytes(text_)));
  const ExtentPtr here = store_->Find(extent_.id);
  EXPECT_TRUE(Eventually([&] { return reads_->Doubted(here) == here; }));
  EXPECT_EQ(reads_->Doubted(here), here);
  EXPECT_FALSE(here->is_bad);
  EXPECT_EQ(brought_, 0);
}

}  // namespace
}  // namespace ffrecord::server
