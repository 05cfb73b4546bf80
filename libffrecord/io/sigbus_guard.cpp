#include "libffrecord/io/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include <ffrecord/io_probe.h>

#include "libffrecord/base/assert.h"

namespace ffrecord {

// Free if `end` is 0. Taken by making `end` 1, then filled: `begin` before `end`.
struct SigbusGuard::Range {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> has_lost{false};
  std::atomic<bool> is_written{false};
};

namespace {

using Range = SigbusGuard::Range;

// The table: blocks are only ever added, because the handler may walk them at any moment, also in a
// child that was forked while another thread changed them. Nothing here takes a lock.
struct Block {
  static constexpr std::size_t kRangeCount = 512;
  std::array<Range, kRangeCount> ranges;
  std::atomic<std::size_t> used{0};  // Approximate; blocks with 0 are not searched.
  Block* next = nullptr;
};

std::atomic<Block*> blocks{nullptr};
struct sigaction previous {};
std::atomic<std::uint64_t> lost{0};
std::uintptr_t page_size = 0;  // Set before the handler is installed.

Block* BlockOf(const Range* range) {
  for (Block* block = blocks.load(); block != nullptr; block = block->next)
    if (range >= block->ranges.data() && range < block->ranges.data() + block->ranges.size())
      return block;
  return nullptr;
}

Range* TakeFrom(Block& block) {
  if (block.used.load() >= Block::kRangeCount) return nullptr;
  for (Range& range : block.ranges) {
    std::uintptr_t free = 0;
    if (range.end.load() == 0 && range.end.compare_exchange_strong(free, 1)) {
      block.used.fetch_add(1);
      return &range;
    }
  }
  return nullptr;
}

Range* TakeRange() {
  for (Block* block = blocks.load(); block != nullptr; block = block->next)
    if (Range* range = TakeFrom(*block)) return range;
  auto* block = new Block;
  Range* range = TakeFrom(*block);
  block->next = blocks.load();
  while (!blocks.compare_exchange_weak(block->next, block)) {
  }
  return range;
}

Range* RangeOf(std::uintptr_t address) {
  for (Block* block = blocks.load(); block != nullptr; block = block->next) {
    for (Range& range : block->ranges) {
      const std::uintptr_t end = range.end.load();
      const std::uintptr_t begin = range.begin.load();
      // `end` is unchanged, so both values belong to one mapping.
      if (begin <= address && address < end && range.end.load() == end) return &range;
    }
  }
  return nullptr;
}

// Whether the page of `address` was lost from one of our ranges and is zeros now.
bool ReplaceLostPage(const siginfo_t& info) {
  if (info.si_code != BUS_ADRERR) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
  Range* const range = RangeOf(address);
  if (range == nullptr) return false;
  range->has_lost.store(true);
  void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
  lost.fetch_add(1);
  const int access = PROT_READ | (range->is_written.load() ? PROT_WRITE : 0);
  return ::mmap(page, page_size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
}

void CallPrevious(int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  const bool fault = info->si_code > 0;  // Not sent by a process.
  if (previous.sa_handler == SIG_IGN && !fault) return;
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  // Ends the process: a fault repeats itself as soon as the handler returns; a signal that a
  // process sent must be sent again.
  ::signal(signal, SIG_DFL);
  if (!fault) static_cast<void>(::raise(signal));
}

// Uses only what may be used in a signal handler: atomics, mmap and signal calls.
void OnBusError(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (!ReplaceLostPage(*info)) CallPrevious(signal, info, context);
  errno = saved_errno;
}

bool SetHandler() {
  struct sigaction action {};
  action.sa_sigaction = &OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, &action, nullptr) == 0;
}

bool Install() {
  page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Read before it is replaced: the handler may run at once.
  return ::sigaction(SIGBUS, nullptr, &previous) == 0 && SetHandler();
}

// Frameworks that save and restore signal handlers may leave the default, which ends the process.
// Any other handler is left alone: it may chain ours.
bool IsReset() {
  struct sigaction now {};
  return ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
         now.sa_handler == SIG_DFL;
}

}  // namespace

bool SigbusGuard::has_lost() const noexcept { return range_ != nullptr && range_->has_lost.load(); }

std::uint64_t SigbusGuard::lost_count() noexcept { return lost.load(); }

void SigbusGuard::TakeOver() noexcept {
  struct sigaction now {};
  if (blocks.load() == nullptr || ::sigaction(SIGBUS, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &OnBusError) return;
  previous = now;
  static_cast<void>(SetHandler());
}

void RestoreSigbusGuard() noexcept { SigbusGuard::TakeOver(); }

SigbusGuard::SigbusGuard(const void* begin, std::size_t size_bytes, Access access) {
  static const bool installed = Install();
  FFR_ASSERT(installed);
  if (IsReset()) FFR_ASSERT(SetHandler());
  range_ = TakeRange();
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  range_->has_lost.store(false);
  range_->is_written.store(access == Access::kReadWrite);
  range_->begin.store(address);
  range_->end.store(address + size_bytes);
}

SigbusGuard::SigbusGuard(SigbusGuard&& other) noexcept
    : range_(std::exchange(other.range_, nullptr)) {}

SigbusGuard& SigbusGuard::operator=(SigbusGuard&& other) noexcept {
  std::swap(range_, other.range_);
  return *this;
}

SigbusGuard::~SigbusGuard() {
  if (range_ == nullptr) return;
  Block* block = BlockOf(range_);
  range_->end.store(0);
  block->used.fetch_sub(1);
}

}  // namespace ffrecord
