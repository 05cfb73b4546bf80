#include <ffrecord/profile.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "libffrecord/base/event_log.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/sigbus_guard.h"

namespace ffrecord {
namespace {

constexpr std::uint32_t kEventsMax = 1 << 24;

constexpr char kMagic[8] = {'F', 'F', 'R', 'P', 'R', 'O', 'F', '\n'};

// Fields of the file's first page that never change; the others are EventLog::Header's.
struct FixedFields {
  char magic[8];
  std::uint32_t version;
  std::uint32_t event_size_bytes;
  std::uint32_t coarse_events;
  std::uint32_t fine_events;
  std::uint32_t pid;
  std::uint32_t parent_pid;
};
static_assert(sizeof(FixedFields) == sizeof(EventLog::Header::fixed));

// Behind `fixed` and the ranks, at byte 48.
struct StartFields {
  std::int64_t steady_ns;
  std::int64_t calendar_ns;
  std::int64_t process_began_ns;  // By the steady clock.
};
constexpr std::size_t kHostOffset = 512, kHostBytes = 256;
constexpr std::size_t kBootOffset = 768, kBootBytes = 64;
constexpr std::size_t kCommandOffset = 1024, kCommandBytes = 1024;

// Everything that changes when a profile is opened or closed. It is never freed: threads may write
// an event while another one closes the profile.
struct State {
  std::mutex mutex;
  // By size: the memory of past profiles, to be mapped over by the next.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<EventLog>> logs;
  std::map<std::string, std::uint16_t, std::less<>> names;
  SigbusGuard guard;
  HomeProcess home;       // That opened the profile, or attached to it.
  bool is_owner = false;  // The former.
};

std::atomic<std::uint32_t> names_generation{0};

State& Current() {
  static State* const state = new State;
  return *state;
}

// A fork waits until no thread holds the lock: the child gets it free, and the names complete.
void RegisterForks() {
  static const bool registered =
      ::pthread_atfork([] { Current().mutex.lock(); }, [] { Current().mutex.unlock(); },
                       [] {
                         Current().mutex.unlock();
                         EventLog::ForgetThreadId();
                       }) == 0;
  static_cast<void>(registered);
}

Error OpenError(const std::string& path, const char* what, int system_errno) {
  return Error{ErrorCode::kIo,
               path + ": cannot " + what + " a profile: " + ::strerrordesc_np(system_errno),
               system_errno};
}

void PutText(std::byte* place, std::size_t size_bytes, std::string_view text) {
  std::memcpy(place, text.data(), std::min(text.size(), size_bytes - 1));
}

std::string FirstLineOf(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// proc(5), the 22nd field: in ticks since the machine started. 0 if that cannot be found out.
std::int64_t ProcessBeganNs() {
  const std::string stat = FirstLineOf("/proc/self/stat");
  std::size_t at = stat.rfind(')');
  if (at == std::string::npos) return 0;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const std::int64_t ticks = std::strtoll(stat.c_str() + at, nullptr, 10);
  return ticks * (1'000'000'000 / std::max(::sysconf(_SC_CLK_TCK), 1L));
}

void WriteHeader(EventLog& log, const Profile::Options& options) {
  std::byte* const memory = log.memory();
  FixedFields fixed{.magic = {},
                    .version = EventLog::kVersion,
                    .event_size_bytes = sizeof(EventLog::Slot),
                    .coarse_events = log.coarse(),
                    .fine_events = log.fine(),
                    .pid = static_cast<std::uint32_t>(::getpid()),
                    .parent_pid = static_cast<std::uint32_t>(::getppid())};
  std::memcpy(fixed.magic, kMagic, sizeof(kMagic));
  EventLog::Header& header = log.header();
  header.rank.store(options.rank);
  header.local_rank = options.local_rank;
  header.world_size.store(options.world_size);
  const StartFields start{
      ProfiledSpan::NanosecondsOf(Clock::now()),
      std::chrono::nanoseconds(WallClock::now().time_since_epoch()).count(),
      ProcessBeganNs(),
  };
  std::memcpy(memory + offsetof(EventLog::Header, more), &start, sizeof(start));
  char host[kHostBytes] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = 0;
  PutText(memory + kHostOffset, kHostBytes, host);
  PutText(memory + kBootOffset, kBootBytes, FirstLineOf("/proc/sys/kernel/random/boot_id"));
  PutText(memory + kCommandOffset, kCommandBytes, options.command);
  std::memcpy(memory, &fixed, sizeof(fixed));
}

// Maps `fd`, or memory without a file if it is -1, over what is at `at` now; anywhere if that is
// null. A system call of its own: threads may write there meanwhile, to the old pages or to the new
// ones, which ThreadSanitizer would take for a race with mmap().
void* MapOver(void* at, std::size_t size_bytes, int fd) {
  // The kernel takes whole registers, and a variadic int leaves half of one undefined.
  const long kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  const long flags = at == nullptr ? kind : kind | MAP_FIXED;
  const long access = PROT_READ | PROT_WRITE;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, size_bytes, access, flags, long{fd}, 0L));
}

// The memory of an earlier profile of that size, or new one that `fd` is mapped to.
Result<EventLog*> Map(State& state, int fd, std::uint32_t coarse, std::uint32_t fine,
                      const std::string& path) {
  std::unique_ptr<EventLog>& log = state.logs[{coarse, fine}];
  const std::size_t size_bytes = EventLog::SizeOf(coarse, fine);
  void* const memory = MapOver(log ? log->memory() : nullptr, size_bytes, fd);
  if (memory == MAP_FAILED) return OpenError(path, "map", errno);
  if (!log) log = std::make_unique<EventLog>(static_cast<std::byte*>(memory), coarse, fine);
  return log.get();
}

// Threads that still write into it write into memory of their own.
void Detach(State& state) {
  EventLog* const log = EventLog::active();
  if (log == nullptr) return;
  EventLog::Activate(nullptr);
  names_generation.fetch_add(1);
  if (state.is_owner && state.home.is_here())
    log->header().has_ended.store(1, std::memory_order_release);
  const std::size_t size_bytes = EventLog::SizeOf(log->coarse(), log->fine());
  static_cast<void>(MapOver(log->memory(), size_bytes, -1));
  state.guard = SigbusGuard();
  state.names.clear();
}

// The file may be cut off by somebody else: then events are lost, and the process goes on.
void TurnOn(State& state, EventLog& log, bool is_owner) {
  state.guard = SigbusGuard(log.memory(), EventLog::SizeOf(log.coarse(), log.fine()),
                            SigbusGuard::Access::kReadWrite);
  state.home = HomeProcess();
  state.is_owner = is_owner;
  names_generation.fetch_add(1);
  EventLog::Activate(&log);
}

std::uint32_t PowerOfTwo(std::uint32_t count) {
  return std::bit_ceil(std::clamp(count, 16U, kEventsMax));
}

}  // namespace

Result<void> Profile::Open(const std::string& path, const Options& options) {
  if (options.coarse_events == 0 || options.fine_events == 0 ||
      std::max(options.coarse_events, options.fine_events) > kEventsMax)
    return Error{ErrorCode::kInvalidArgument,
                 path + ": a profile has 1 to " + std::to_string(kEventsMax) +
                     " events of each kind, not " + std::to_string(options.coarse_events) +
                     " and " + std::to_string(options.fine_events)};
  RegisterForks();
  const std::uint32_t coarse = PowerOfTwo(options.coarse_events);
  const std::uint32_t fine = PowerOfTwo(options.fine_events);
  State& state = Current();
  const std::lock_guard lock(state.mutex);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return OpenError(path, "create", errno);
  const std::size_t size_bytes = EventLog::SizeOf(coarse, fine);
  // A write to a page without a block would end the process once the disk is full.
  if (const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size_bytes));
      failed != 0) {
    static_cast<void>(::unlink(path.c_str()));
    return OpenError(path, "make room for", failed);
  }
  Detach(state);
  EventLog* const log = FFR_TRY(Map(state, fd.get(), coarse, fine, path));
  WriteHeader(*log, options);
  TurnOn(state, *log, true);
  return {};
}

Result<void> Profile::Attach(const std::string& path) {
  RegisterForks();
  State& state = Current();
  const std::lock_guard lock(state.mutex);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return OpenError(path, "open", errno);
  FixedFields fixed{};
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return OpenError(path, "examine", errno);
  const ssize_t got = ::pread(fd.get(), &fixed, sizeof(fixed), 0);
  const bool fits =
      got == ssize_t{sizeof(fixed)} && std::memcmp(fixed.magic, kMagic, sizeof(kMagic)) == 0 &&
      fixed.version == EventLog::kVersion && std::has_single_bit(fixed.coarse_events) &&
      std::has_single_bit(fixed.fine_events) &&
      std::max(fixed.coarse_events, fixed.fine_events) <= kEventsMax &&
      static_cast<std::size_t>(facts.st_size) ==
          EventLog::SizeOf(fixed.coarse_events, fixed.fine_events);
  if (!fits)
    return Error{ErrorCode::kCorruption, path + ": not a profile of this version of ffrecord"};
  Detach(state);
  EventLog* const log = FFR_TRY(Map(state, fd.get(), fixed.coarse_events, fixed.fine_events, path));
  TurnOn(state, *log, false);
  return {};
}

void Profile::Close() noexcept {
  State& state = Current();
  const std::lock_guard lock(state.mutex);
  Detach(state);
}

bool Profile::is_on() noexcept { return EventLog::active() != nullptr; }

std::uint32_t Profile::generation() noexcept {
  return names_generation.load(std::memory_order_relaxed);
}

std::uint16_t Profile::Name(std::string_view name) noexcept {
  if (EventLog::active() == nullptr || name.empty()) return 0;
  State& state = Current();
  const std::lock_guard lock(state.mutex);
  EventLog* const log = EventLog::active();
  if (log == nullptr) return 0;
  const std::string_view kept =
      name.substr(name.size() - std::min(name.size(), EventLog::kNameBytesMax));
  if (const auto known = state.names.find(kept); known != state.names.end()) return known->second;
  const std::uint16_t number = log->AddName(kept);
  if (number != 0) state.names.emplace(kept, number);
  return number;
}

void Profile::Record(const ProfileEvent& event) noexcept {
  if (EventLog* const log = EventLog::active(); log != nullptr) log->Write(event);
}

// Returns a token: the open slot plus one, and above that the generation of the profile.
std::uint64_t Profile::Begin(const ProfileEvent& event) noexcept {
  EventLog* const log = EventLog::active();
  if (log == nullptr) return 0;
  const std::size_t slot = log->Begin(event);
  if (slot == EventLog::kOpenSlots) return 0;
  return std::uint64_t{generation()} << 32 | (slot + 1);
}

void Profile::End(std::uint64_t token, const ProfileEvent& event) noexcept {
  EventLog* const log = EventLog::active();
  if (log == nullptr) return;
  Drop(token);
  log->Write(event);
}

void Profile::Drop(std::uint64_t token) noexcept {
  EventLog* const log = EventLog::active();
  const auto slot = static_cast<std::uint32_t>(token);
  if (log != nullptr && slot != 0 && token >> 32 == generation()) log->End(slot - 1);
}

void Profile::SetRank(std::int32_t rank, std::int32_t world_size) noexcept {
  EventLog* const log = EventLog::active();
  if (log == nullptr) return;
  log->header().world_size.store(world_size);
  log->header().rank.store(rank);
}

}  // namespace ffrecord
