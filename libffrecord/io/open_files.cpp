#include "libffrecord/io/open_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/home_process.h"

namespace ffrecord {
namespace {

// With fewer descriptors, reading would be too slow; a process without room for them gets EMFILE.
constexpr std::size_t kCapacityMin = 16;
constexpr std::size_t kPinCountMax = 256;

// One descriptor in one word, so that it changes without a lock: its number plus one (0: closed),
// how many pins use it, and whether it was used since the clock hand last passed it.
constexpr std::uint64_t kFdMask = 0xFFFF'FFFF;
constexpr std::uint64_t kOnePin = std::uint64_t{1} << 32;
constexpr std::uint64_t kUsed = std::uint64_t{1} << 63;
constexpr std::uint64_t kPinMask = ~(kFdMask | kUsed);

std::uint64_t WordOf(int fd) { return static_cast<std::uint64_t>(fd) + 1; }
int FdOf(std::uint64_t word) { return static_cast<int>(word & kFdMask) - 1; }

Error Status(const std::filesystem::path& path) { return ErrnoError("stat", path, errno); }

}  // namespace

// The descriptors of one process.
struct OpenFiles::Slots {
  explicit Slots(std::size_t count) : words(count) {}

  // Closes the first descriptor that has no pin and was not used since the clock hand last passed
  // it. False if all are in use.
  bool CloseOne() {
    for (std::size_t step = 0; step < 2 * words.size(); ++step) {
      auto& slot = words[hand.fetch_add(1, std::memory_order_relaxed) % words.size()];
      std::uint64_t word = slot.load(std::memory_order_relaxed);
      if (word == 0 || (word & kPinMask) != 0) continue;
      if ((word & kUsed) != 0) {
        slot.compare_exchange_strong(word, word & ~kUsed);
      } else if (slot.compare_exchange_strong(word, 0)) {
        ::close(FdOf(word));
        open_count.fetch_sub(1);
        return true;
      }
    }
    return false;
  }

  const HomeProcess home;
  std::vector<std::atomic<std::uint64_t>> words;
  std::atomic<std::size_t> open_count{0};
  std::atomic<std::size_t> hand{0};
  std::unique_ptr<Slots> parents;  // In a forked child: never used again.
};

OpenFiles::Pin::~Pin() {
  if (word_ != nullptr) word_->fetch_sub(kOnePin, std::memory_order_release);
}

OpenFiles::OpenFiles(std::size_t file_count, bool direct_too)
    : ways_(direct_too ? 2 : 1), room_(MakeRoomForDescriptors(file_count * ways_)) {
  Divide(file_count);
  files_.reserve(file_count);
  slots_ = new Slots(file_count * ways_);
}

// Decides how many of the `wanted` descriptors are open at a time.
void OpenFiles::Divide(std::size_t wanted) {
  closes_ = wanted > room_;
  // Half of the room: the rest of the process opens files too.
  capacity_ = closes_ ? std::max<std::size_t>(room_ / 2, kCapacityMin) : wanted;
  pin_count_max_ = closes_ ? std::clamp<std::size_t>(capacity_ / 4, 1, kPinCountMax)
                           : std::numeric_limits<std::size_t>::max();
}

OpenFiles::~OpenFiles() {
  const std::unique_ptr<Slots> slots(slots_.load());
  for (const auto& word : slots->words)
    if (word.load() != 0) ::close(FdOf(word.load()));
}

Result<std::unique_ptr<OpenFiles>> OpenFiles::Open(std::span<const std::filesystem::path> paths,
                                                   bool direct_too) {
  std::unique_ptr<OpenFiles> files(new OpenFiles(paths.size(), direct_too));
  for (const std::filesystem::path& path : paths) FFR_TRY(files->Add(path));
  return files;
}

Result<void> OpenFiles::Add(const std::filesystem::path& path) {
  ReadOnlyFile opened = FFR_TRY(OpenReadOnly(path, false));
  struct statx status {};
  if (::statx(opened.fd.get(), "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_BTIME, &status) !=
      0)
    return Status(path);
  std::error_code failure;
  const auto absolute = std::filesystem::absolute(path, failure);
  if (failure) return ErrnoError("find the folder of", path, failure.value());
  files_.push_back({path, absolute, status.stx_size,
                    ::gnu_dev_makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino,
                    status.stx_btime.tv_sec * 1'000'000'000 + status.stx_btime.tv_nsec});
  Keep(SlotOf(static_cast<std::uint32_t>(files_.size() - 1), Way::kBuffered), std::move(opened.fd));
  return {};
}

// As long as there is room.
void OpenFiles::Keep(std::size_t slot, UniqueFd fd) {
  Slots& slots = *slots_.load();
  if (slots.open_count.load() >= capacity_) return;
  slots.words[slot] = WordOf(fd.Release());
  slots.open_count.fetch_add(1);
}

Result<void> OpenFiles::OpenDirectly(std::uint32_t alignment_max_bytes) {
  FFR_ASSERT(ways_ == 2);
  Divide(files_.size() * ways_);
  for (std::uint32_t i = 0; i < files_.size(); ++i) {
    const Pin pin = FFR_TRY(Take(i, Way::kBuffered));
    DirectFile direct = OpenDirect(pin.fd());
    const std::uint32_t alignment =
        std::max(direct.alignment.memory_bytes, direct.alignment.offset_bytes);
    if (!direct.fd || alignment > alignment_max_bytes) continue;
    files_[i].direct_alignment_bytes = alignment;
    Keep(SlotOf(i, Way::kDirect), std::move(direct.fd));
  }
  return {};
}

// A forked child inherits the descriptors, but not the threads that pinned them.
OpenFiles::Slots& OpenFiles::SlotsOfThisProcess() const {
  Slots* slots = slots_.load(std::memory_order_acquire);
  if (slots->home.is_here()) return *slots;
  auto fresh = std::make_unique<Slots>(slots->words.size());
  for (std::size_t i = 0; i < fresh->words.size(); ++i) {
    const std::uint64_t word = slots->words[i].load() & kFdMask;
    fresh->words[i] = word;
    if (word != 0) fresh->open_count.fetch_add(1);
  }
  if (!slots_.compare_exchange_strong(slots, fresh.get())) return *slots;
  fresh->parents.reset(slots);
  return *fresh.release();
}

Result<UniqueFd> OpenFiles::OpenAgain(const File& file, Way way) const {
  const int direct = way == Way::kDirect ? O_DIRECT : 0;
  UniqueFd fd(::open(file.absolute.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | direct));
  if (!fd) return ErrnoError("open again", file.path, errno);
  struct statx status {};
  if (::statx(fd.get(), "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE | STATX_BTIME, &status) != 0)
    return Status(file.path);
  const std::uint64_t device = ::gnu_dev_makedev(status.stx_dev_major, status.stx_dev_minor);
  const std::int64_t birth_ns = status.stx_btime.tv_sec * 1'000'000'000 + status.stx_btime.tv_nsec;
  if (device != file.device || status.stx_ino != file.inode || birth_ns != file.birth_ns)
    return Error{ErrorCode::kCorruption,
                 "open again " + file.path.string() +
                     ": another file has taken its name since it was opened; open the list again"};
  if (status.stx_size < file.size_bytes)
    return Error{ErrorCode::kCorruption, "open again " + file.path.string() +
                                             ": it was truncated to " +
                                             std::to_string(status.stx_size) + " of " +
                                             std::to_string(file.size_bytes) + " bytes"};
  // As OpenReadOnly does.
  if (::fcntl(fd.get(), F_SETFL, direct) != 0) return ErrnoError("open again", file.path, errno);
  return fd;
}

Result<OpenFiles::Pin> OpenFiles::Take(std::uint32_t file, Way way) const {
  const std::size_t number = SlotOf(file, way);
  if (!closes_) return Pin(nullptr, FdOf((*slots_.load()).words[number].load()));
  Slots& slots = SlotsOfThisProcess();
  auto& slot = slots.words[number];
  std::uint64_t word = slot.load(std::memory_order_acquire);
  for (;;) {
    if (word != 0) {
      if (slot.compare_exchange_weak(word, (word + kOnePin) | kUsed)) return Pin(&slot, FdOf(word));
      continue;
    }
    while (slots.open_count.load() >= capacity_ && slots.CloseOne()) {
    }
    auto opened = OpenAgain(files_[file], way);
    if (!opened) {
      const int number_of_error = opened.error().system_errno;
      const bool exhausted = number_of_error == EMFILE || number_of_error == ENFILE;
      if (!exhausted || !slots.CloseOne()) return std::move(opened).error();
      continue;
    }
    UniqueFd fresh = std::move(opened).value();
    if (!slot.compare_exchange_strong(word, WordOf(fresh.get()) | kOnePin | kUsed)) continue;
    const int fd = fresh.Release();
    slots.open_count.fetch_add(1);
    return Pin(&slot, fd);
  }
}

std::optional<std::uint64_t> OpenFiles::SizeNow(std::uint32_t file) const {
  const auto pin = Take(file, Way::kBuffered);
  struct stat status {};
  if (!pin || ::fstat(pin.value().fd(), &status) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

bool OpenFiles::HasChanged(std::uint32_t file) const {
  return SizeNow(file) != files_[file].size_bytes;
}

bool OpenFiles::HasShrunk(std::uint32_t file) const {
  return SizeNow(file).value_or(0) < files_[file].size_bytes;
}

std::size_t OpenFiles::open_count() const noexcept { return slots_.load()->open_count.load(); }

}  // namespace ffrecord
