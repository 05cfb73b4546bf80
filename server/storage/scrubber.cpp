#include "server/storage/scrubber.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"
#include "server/storage/extent_scan.h"
#include "server/storage/extent_trailer.h"

namespace ffrecord::server {
namespace {

constexpr std::size_t kPieceSizeBytes = 1 << 20;
constexpr std::size_t kAlignment = 4096;
// Part of a period within which a pass is to be through.
constexpr double kPartOfPeriod = 0.9;
// How many times faster than usual a pass that is late may go.
constexpr int kCatchUpMax = 10;
constexpr auto kEmptyWait = std::chrono::seconds(10);
constexpr auto kLackWait = std::chrono::seconds(1);

struct FreeBuffer {
  void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
};
using Buffer = std::unique_ptr<std::byte[], FreeBuffer>;

// Constants of <linux/ioprio.h>, some of which are no C++.
constexpr int kWhoProcess = 1;
constexpr int kIdleClass = 3 << 13;

Scrubber::WallTime Now() { return std::chrono::floor<std::chrono::milliseconds>(WallClock::now()); }

// A shortage in the daemon or the machine says nothing about the disk.
bool IsOfTheProcess(const Error& error) {
  return error.system_errno == EMFILE || error.system_errno == ENFILE ||
         error.system_errno == ENOMEM;
}

// Where this is refused, as by a service manager, the rate alone has to do.
void LowerPriority() {
  (void)::setpriority(PRIO_PROCESS, 0, 19);
  (void)::syscall(SYS_ioprio_set, kWhoProcess, 0, kIdleClass);
}

}  // namespace

std::vector<std::byte> Scrubber::Position::Encode() const {
  ByteWriter writer;
  writer.Put(pass_begin.time_since_epoch().count());
  writer.Put(last_end.time_since_epoch().count());
  writer.Put(std::uint64_t{is_under_way ? 1U : 0U});
  writer.PutBytes(after);
  for (const ExtentId& id : bad) writer.PutBytes(id);
  return std::move(writer).Take();
}

Scrubber::Position Scrubber::Position::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Position position;
  position.pass_begin = WallTime(std::chrono::milliseconds(reader.Take<std::int64_t>()));
  position.last_end = WallTime(std::chrono::milliseconds(reader.Take<std::int64_t>()));
  position.is_under_way = reader.Take<std::uint64_t>() != 0;
  const auto after = reader.TakeBytes(position.after.size());
  if (after.size() != position.after.size()) return {};
  std::ranges::copy(after, position.after.begin());
  while (!reader.AtEnd()) {
    const auto id = reader.TakeBytes(sizeof(ExtentId));
    if (id.size() != sizeof(ExtentId)) return {};
    std::ranges::copy(id, position.bad.emplace_back().begin());
  }
  return position;
}

Scrubber::Scrubber(ExtentStore& extents, const Disk& disk, const Options& options,
                   const Position& from, Save save, Found found)
    : extents_(extents),
      disk_(disk),
      options_(options),
      save_(std::move(save)),
      found_(std::move(found)),
      position_(from),
      saved_(Clock::now()) {
  // A clock that was set back: what is to come cannot have been.
  position_.pass_begin = std::clamp(position_.pass_begin, WallTime{}, Now());
  position_.last_end = std::clamp(position_.last_end, WallTime{}, Now());
  const bool has_ended = position_.last_end != WallTime{};
  const bool has_begun = position_.pass_begin != WallTime{};
  age_begin_ = has_ended ? position_.last_end : has_begun ? position_.pass_begin : Now();
  for (const ExtentId& id : position_.bad)
    if (const ExtentPtr extent = extents_.Find(id)) (void)extents_.Mark(*extent, true);
  if (options_.period.count() > 0) thread_ = std::thread([this] { Run(); });
}

Scrubber::~Scrubber() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_one();
  thread_.join();
}

std::chrono::seconds Scrubber::age() const noexcept {
  const auto age = Now() - age_begin_.load(std::memory_order_relaxed);
  return std::max(std::chrono::duration_cast<std::chrono::seconds>(age), std::chrono::seconds(0));
}

bool Scrubber::IsEnding() {
  const std::lock_guard lock(mutex_);
  return is_ending_;
}

bool Scrubber::Sleep(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  while (!is_ending_ && Clock::now() < until) WaitUntil(ending_, lock, until);
  return !is_ending_;
}

void Scrubber::Run() {
  LowerPriority();
  while (AwaitPass()) {
    due_ = Clock::now();
    if (!Pass()) break;
    position_.is_under_way = false;
    position_.last_end = Now();
    age_begin_.store(position_.last_end, std::memory_order_relaxed);
    SavePosition();
    pass_count_.fetch_add(1, std::memory_order_relaxed);
  }
  if (position_.is_under_way) SavePosition();
}

bool Scrubber::AwaitPass() {
  if (position_.is_under_way) return !IsEnding();
  if (position_.pass_begin != WallTime{}) {
    const auto left = position_.pass_begin + options_.period - Now();
    if (!Sleep(Clock::now() + std::min<Clock::duration>(left, options_.period))) return false;
  }
  // A pass over nothing is none: what comes next would wait for a period.
  while (disk_.totals().extent_count == 0)
    if (!Sleep(Clock::now() + std::min<Clock::duration>(options_.period, kEmptyWait))) return false;
  position_.pass_begin = Now();
  position_.is_under_way = true;
  position_.after = {};
  SavePosition();
  return true;
}

void Scrubber::SavePosition() {
  std::erase_if(position_.bad, [this](const ExtentId& id) { return !extents_.Find(id); });
  save_(position_);
  saved_ = Clock::now();
}

std::vector<ExtentId> Scrubber::Left() const {
  std::vector<ExtentId> ids;  // Not the extents: those that are held cannot be unlinked.
  for (const auto& extent : extents_.FindAll(
           [&](const Extent& one) { return one.disk == &disk_ && one.id > position_.after; }))
    ids.push_back(extent->id);
  std::ranges::sort(ids);  // As they lie in their folders, more or less.
  return ids;
}

// A daemon that was down for long catches up, though not at any price.
void Scrubber::SetRate(std::span<const ExtentId> left) {
  std::uint64_t left_bytes = 0;
  for (const ExtentId& id : left)
    if (const ExtentPtr extent = extents_.Find(id)) left_bytes += extent->size_bytes;
  const auto time_left =
      std::max<std::chrono::microseconds>(position_.pass_begin + options_.period - Now(),
                                          std::chrono::microseconds(options_.period) / kCatchUpMax);
  const double seconds = std::chrono::duration<double>(time_left).count() * kPartOfPeriod;
  const auto rate = static_cast<std::uint64_t>(static_cast<double>(left_bytes) / seconds);
  bytes_per_s_.store(std::max({rate, options_.bytes_per_s_min, std::uint64_t{1}}),
                     std::memory_order_relaxed);
}

void Scrubber::Judge(const Extent& extent, const std::string& why_bad) {
  if (!extents_.Mark(extent, !why_bad.empty())) return;
  if (why_bad.empty())
    std::erase(position_.bad, extent.id);
  else
    position_.bad.push_back(extent.id);
  found_(extent, why_bad);
}

bool Scrubber::Pass() {
  const std::vector<ExtentId> ids = Left();
  SetRate(ids);
  for (const ExtentId& id : ids) {
    if (const ExtentPtr extent = extents_.Find(id)) Check(*extent);
    if (IsEnding()) return false;
    position_.after = id;
    // Extents found bad since are found again after a start that comes first: all of a disk may be
    // bad, and the record names each.
    if (Clock::now() - saved_ >= options_.save_interval) SavePosition();
  }
  return !IsEnding();
}

void Scrubber::Check(const Extent& extent) {
  auto why = Examine(extent);
  if (why && !why->empty()) why = Examine(extent);
  if (why) Judge(extent, *why);
}

std::optional<std::string> Scrubber::Examine(const Extent& extent) {
  auto sum = Sum(extent);
  const auto is_deleted = [&] { return extent.is_deleted.load(std::memory_order_acquire); };
  // It is read when there are descriptors and memory again.
  while (!sum && IsOfTheProcess(sum.error()) && !is_deleted() && Sleep(Clock::now() + kLackWait))
    sum = Sum(extent);
  if (is_deleted() || IsEnding()) return std::nullopt;
  if (!sum && sum.error().code == ErrorCode::kIo) extent.disk->reads().NoteError();
  if (!sum) return sum.error().message;
  if (sum.value() == extent.xxh3) return "";
  return extent.disk->PathOf(extent.id).string() + ": the bytes are not those of the checksum";
}

Result<std::uint64_t> Scrubber::Sum(const Extent& extent) {
  const auto path = extent.disk->PathOf(extent.id);
  const UniqueFd file = FFR_TRY(extent.disk->OpenFile(extent.id));
  const DirectFile direct = OpenDirect(file.get());
  const bool is_direct = direct.fd && direct.alignment.memory_bytes <= kAlignment &&
                         direct.alignment.offset_bytes <= kAlignment;
  const int fd = is_direct ? direct.fd.get() : file.get();
  const Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kPieceSizeBytes)));
  if (!buffer) return ErrnoError("have memory to check", path, ENOMEM);
  Xxh3Stream sum;
  for (std::uint64_t at = 0; at < extent.size_bytes;) {
    if (!Sleep(due_)) return std::uint64_t{0};
    // Its room on the disk is waited for.
    if (extent.is_deleted.load(std::memory_order_acquire)) return std::uint64_t{0};
    // Whole pieces: direct reads want sizes that are aligned; the trailer comes along.
    const ssize_t got = ::pread(fd, buffer.get(), kPieceSizeBytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read", path, errno);
    const auto data =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(got), extent.size_bytes - at);
    if (data == 0) return Error{ErrorCode::kCorruption, path.string() + " has become shorter"};
    sum.Update({buffer.get(), static_cast<std::size_t>(data)});
    // A short read in the middle would not be aligned any more.
    if (is_direct && at + data < extent.size_bytes && data != kPieceSizeBytes)
      return Error{ErrorCode::kIo, path.string() + " was read in part only", EIO};
    at += data;
    read_bytes_.fetch_add(data, std::memory_order_relaxed);
    // Time that was not used for a while is not made up for.
    const auto cost = std::chrono::nanoseconds(data * 1'000'000'000 / bytes_per_s());
    due_ = std::max(due_, Clock::now() - std::chrono::seconds(1)) + cost;
  }
  // The trailer identifies the extent where no manifest does.
  const auto trailer = ReadTrailer(file.get(), path);
  if (!trailer) return Error{trailer.error().code, path.string() + ": " + trailer.error().message};
  if (trailer.value() != ExtentTrailer{extent.id, extent.size_bytes, extent.xxh3})
    return Error{ErrorCode::kCorruption, path.string() + ": the trailer is that of other bytes"};
  return sum.Finish64();
}

}  // namespace ffrecord::server
