// Goal: a disk that does not answer stops no other.
// Method: an engine that takes reads of one folder and never ends them, shared with another folder.

#include "server/service/read/disk_reader.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "bytes.h"
#include "new_extents.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using test::AsBytes;
using test::TempFolder;
using namespace std::chrono_literals;

// Room for DiskReader::kDepth requests, those that hang included.
class HangingEngine final : public IoEngine {
 public:
  HangingEngine(std::string hangs, bool& is_over) : hangs_(std::move(hangs)), is_over_(is_over) {}

  std::string_view name() const noexcept override { return "hanging"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    std::uint32_t taken = 0;
    for (IoRequest* const request : requests) {
      if (in_flight() == DiskReader::kDepth) break;
      const auto path =
          std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(request->fd)).string();
      if (path.find(hangs_) != std::string::npos)
        hanging_.push_back(request);
      else
        FFR_TRY(inner_->Submit({&request, 1}));
      ++taken;
    }
    return taken;
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    if (inner_->in_flight() > 0) return inner_->Wait(done, count_min, timeout);
    std::uint32_t count = 0;
    for (; is_over_ && !hanging_.empty() && count < done.size(); ++count) {
      done[count] = hanging_.back();
      done[count]->result = -EIO;
      hanging_.pop_back();
    }
    return count;
  }
  std::uint32_t in_flight() const noexcept override {
    return inner_->in_flight() + static_cast<std::uint32_t>(hanging_.size());
  }

 private:
  const std::string hangs_;
  bool& is_over_;
  std::unique_ptr<IoEngine> inner_ = MakeThreadsEngine(DiskReader::kDepth).value();
  std::vector<IoRequest*> hanging_;
};

TEST(DiskReaderTest, ADiskThatHangsLeavesOthersTheirPart) {
  const TempFolder folder;
  ExtentStore::Disks disks;
  for (const char* const name : {"hung", "good"})
    disks.present.push_back(Disk::Open(folder / name).value());
  const auto store = ExtentStore::Open(std::move(disks)).value();
  const std::string data(1000, 'x');
  ExtentPtr hung;
  ExtentPtr good;
  for (std::uint32_t i = 0; !hung || !good; ++i) {
    auto writer = test::Create(*store, MakeExtentId(1, 0, i), data.size()).value();
    ASSERT_TRUE(writer.Append(AsBytes(data)));
    const ExtentPtr extent = writer.Seal(Xxh3(AsBytes(data))).value();
    (extent->disk == store->disks()[0].get() ? hung : good) = extent;
  }
  bool is_over = false;
  DiskReader reader(std::make_unique<HangingEngine>("/hung/", is_over), {16, 0, 2'000'000, 2});

  constexpr std::uint32_t kCount = 5000;
  std::uint32_t started = 0;
  for (; started < kCount && reader.HasRoomFor(*hung); ++started)
    reader.Start({1, 1, started}, {&hung, 0, 1000});
  EXPECT_EQ(started, 1000U);  // Half of the memory; more than the engine has room for.
  EXPECT_TRUE(reader.HasRoomFor(*good));
  std::vector<DiskReader::Completed> completed;
  for (std::uint32_t i = 0; i < 200; ++i) reader.Start({1, 2, i}, {&good, 0, 1000});
  for (int i = 0; i < 1000 && completed.size() < 200; ++i) ASSERT_TRUE(reader.Poll(1ms, completed));
  ASSERT_EQ(completed.size(), 200U);
  for (const auto& one : completed) EXPECT_EQ(one.ticket.batch, 2U);

  is_over = true;
  for (int i = 0; i < 1000 && completed.size() < 1200; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  EXPECT_EQ(completed.size(), 1200U);
  EXPECT_EQ(hung->disk->reads().error_count(), 1000U);
  EXPECT_EQ(good->disk->reads().error_count(), 0U);
  EXPECT_EQ(reader.held_bytes(), 1'200'000U);
  EXPECT_TRUE(reader.HasRoomFor(*hung));
  reader.Release(1'200'000);

  // What was withdrawn before the engine took it counts no more either.
  is_over = false;
  for (std::uint32_t i = 0; i < 1000; ++i) reader.Start({1, 3, i}, {&hung, 0, 1000});
  ASSERT_TRUE(reader.Poll(0ms, completed));
  EXPECT_FALSE(reader.HasRoomFor(*hung));
  reader.Withdraw(1, 3);
  EXPECT_TRUE(reader.HasRoomFor(*hung));
  is_over = true;
  for (int i = 0; i < 1000 && completed.size() < 2200; ++i)
    ASSERT_TRUE(reader.Poll(1ms, completed));
  reader.Release(1'000'000);
}

}  // namespace
}  // namespace ffrecord::server
