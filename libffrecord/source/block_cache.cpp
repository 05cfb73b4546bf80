#include "libffrecord/source/block_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "libffrecord/base/endian.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/base/uninterrupted.h"

namespace ffrecord {
namespace {

// An entry is a header, a table with the check of each block (0: not there) and the blocks.
constexpr std::uint64_t kBlocksPerEntry = BlockCache::kEntryBytes / BlockCache::kBlockBytes;
constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kTableBytes = kBlocksPerEntry * sizeof(std::uint64_t);
static_assert(BlockCache::kDataBegin == kHeaderBytes + kTableBytes);
constexpr std::uint64_t kEntryCostBytes = kHeaderBytes + kTableBytes;
constexpr std::size_t kMarkBytes = 48;  // The part of the header that identifies the file.
constexpr std::array<char, 8> kMagic{'F', 'F', 'R', 'C', 'A', 'C', 'H', '1'};

constexpr const char* kSubfolder = "blocks-1";
constexpr const char* kLedger = "ledger";
constexpr std::string_view kSuffix = ".blocks";
constexpr std::string_view kTemporary = ".new-";
constexpr std::int64_t kTouchIntervalMs = 1000;
constexpr std::int64_t kPauseMs = 10'000;
constexpr std::int64_t kTemporaryAgeS = 3600;

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

std::string NameOf(const BlockCache::File& file, std::uint64_t number) {
  return Hex(file.id) + "-" + Hex(number) + std::string(kSuffix);
}

// Names that only this cache uses: 32 digits, a dash, 16 digits and the suffix.
bool IsEntryName(std::string_view name) {
  if (name.size() != 32 + 1 + 16 + kSuffix.size() || !name.ends_with(kSuffix) || name[32] != '-')
    return false;
  name.remove_suffix(kSuffix.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c == '-' || HexDigit(c) >= 0; });
}

using Mark = std::array<std::byte, kMarkBytes>;
Mark MarkOf(const BlockCache::File& file, std::uint64_t number) {
  Mark mark{};
  std::memcpy(mark.data(), kMagic.data(), kMagic.size());
  std::memcpy(mark.data() + 8, file.id.data(), file.id.size());
  StoreLittleEndian<std::uint64_t>(mark, 24, number);
  StoreLittleEndian<std::uint64_t>(mark, 32, file.size_bytes);
  StoreLittleEndian<std::uint64_t>(mark, 40, Xxh3(std::span(mark).first(40)));
  return mark;
}

bool ReadAll(int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  const auto read = Uninterrupted(
      [&] { return ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
  return read == std::ssize(bytes);
}

bool WriteAll(int fd, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = Uninterrupted(
        [&] { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return true;
}

// Never 0, because 0 means that the block is missing.
std::uint64_t CheckOf(const PlaceSeeds& seeds, std::uint64_t block,
                      std::span<const std::byte> bytes) {
  return std::max<std::uint64_t>(Xxh3(bytes, seeds.Of(block)), 1);
}

std::uint64_t BlockCount(std::uint64_t size_bytes) {
  return (size_bytes + BlockCache::kBlockBytes - 1) / BlockCache::kBlockBytes;
}

// How many entries a process keeps open.
std::size_t OpenCountMax() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 16, 1024);
}

// Most turns take microseconds. Does not wait for a process that evicts.
bool TakeTurn(int ledger) {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(ledger, LOCK_EX | LOCK_NB) == 0) return true;
    SleepFor(std::chrono::microseconds(100));
  }
  return false;
}

Error Refused(const std::filesystem::path& folder, const char* what) {
  return {ErrorCode::kIo, "cache " + folder.string() + ": " + what + ": " + std::strerror(errno),
          errno};
}

}  // namespace

BlockCache::BlockCache(std::filesystem::path folder, std::uint64_t size_bytes_max)
    : folder_(std::move(folder)),
      size_bytes_max_(size_bytes_max),
      chunk_bytes_(std::clamp<std::uint64_t>(size_bytes_max / 256, std::uint64_t{1} << 20,
                                             std::uint64_t{64} << 20)) {}

Result<std::shared_ptr<const BlockCache>> BlockCache::Open(const std::filesystem::path& folder,
                                                           std::uint64_t size_bytes_max) {
  if (size_bytes_max < kSizeMin)
    return Error{ErrorCode::kInvalidArgument, "cache " + folder.string() + ": its size is " +
                                                  std::to_string(size_bytes_max) +
                                                  " bytes; it must be at least 64 MiB"};
  std::shared_ptr<const BlockCache> cache(new BlockCache(folder, size_bytes_max));
  Opened& opened = cache->opened_.Get();
  const std::scoped_lock lock(opened.mutex);
  FFR_TRY(cache->OpenFolder(opened));
  if (::faccessat(opened.folder.get(), ".", R_OK | W_OK | X_OK, 0) != 0)
    return Refused(folder, "the folder cannot be written");
  return cache;
}

Result<void> BlockCache::OpenFolder(Opened& opened) const {
  std::error_code error;
  std::filesystem::create_directories(folder_.parent_path(), error);  // mkdir reports the error.
  const std::filesystem::path inside = folder_ / kSubfolder;
  for (const auto& path : {folder_, inside})
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      return Refused(folder_, "the folder cannot be made");
  opened.folder.Reset(::open(inside.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!opened.folder) return Refused(folder_, "the folder cannot be opened");
  return {};
}

void BlockCache::Pause() const {
  Opened& opened = opened_.Get();
  const std::scoped_lock lock(opened.mutex);
  opened.paused_until_ms = NowMs() + kPauseMs;
}

// --- Entries -------------------------------------------------------------------------------------

UniqueFd BlockCache::OpenEntry(Opened& opened, const File& file, std::uint64_t number) const {
  const std::string name = NameOf(file, number);
  UniqueFd fd(::openat(opened.folder.get(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return fd;
  Mark found{};
  if (ReadAll(fd.get(), 0, found) && found == MarkOf(file, number)) return fd;
  ::unlinkat(opened.folder.get(), name.c_str(), 0);  // Damaged; a new one replaces it.
  return {};
}

// Appears under its name with its header, or not at all.
UniqueFd BlockCache::MakeEntry(Opened& opened, const File& file, std::uint64_t number) const {
  const std::string temporary = std::string(kTemporary) + Hex(RandomNumber());
  const auto make = [&] {
    return UniqueFd(::openat(opened.folder.get(), temporary.c_str(),
                             O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  };
  UniqueFd fd = make();
  if (!fd && errno == ENOENT && OpenFolder(opened))
    fd = make();  // Somebody has removed the folder.
  if (!fd) return fd;
  const std::string name = NameOf(file, number);
  const Mark mark = MarkOf(file, number);
  const bool is_there =
      WriteAll(fd.get(), 0, mark) &&
      ::linkat(opened.folder.get(), temporary.c_str(), opened.folder.get(), name.c_str(), 0) == 0;
  const bool is_anothers = !is_there && errno == EEXIST;
  ::unlinkat(opened.folder.get(), temporary.c_str(), 0);
  if (is_there) return fd;
  return is_anothers ? OpenEntry(opened, file, number) : UniqueFd();
}

// If an entry was evicted or removed, its next use makes a new one.
std::shared_ptr<BlockCache::Entry> BlockCache::EntryOf(const File& file, std::uint64_t number,
                                                       bool make) const {
  static const std::size_t open_count_max = OpenCountMax();
  Opened& opened = opened_.Get();
  const EntryName name{file.id, number};
  const std::scoped_lock lock(opened.mutex);
  if (!opened.folder && !OpenFolder(opened)) return nullptr;
  if (const auto found = opened.entries.find(name); found != opened.entries.end()) {
    const auto entry = found->second.entry;
    const std::int64_t now = NowMs();
    struct stat facts {};
    const bool is_due = now - entry->touched_ms.load() >= kTouchIntervalMs;
    const bool is_gone =
        (make || is_due) && (::fstat(entry->fd.get(), &facts) != 0 || facts.st_nlink == 0);
    if (!is_gone) {
      if (is_due) {
        ::futimens(entry->fd.get(), nullptr);  // Evict() removes the entries that were not used.
        entry->touched_ms.store(now);
      }
      opened.by_use.splice(opened.by_use.begin(), opened.by_use, found->second.place);
      return entry;
    }
    opened.by_use.erase(found->second.place);
    opened.entries.erase(found);
  }
  UniqueFd fd = OpenEntry(opened, file, number);
  if (!fd && make && Reserve(opened, kEntryCostBytes)) {
    fd = MakeEntry(opened, file, number);
    if (!fd) opened.paused_until_ms = NowMs() + kPauseMs;
  }
  if (!fd) return nullptr;
  auto entry = std::make_shared<Entry>();
  entry->fd = std::move(fd);
  entry->number = number;
  struct stat facts {};
  if (::fstat(entry->fd.get(), &facts) != 0) return nullptr;
  entry->inode = facts.st_ino;
  opened.by_use.push_front(name);
  opened.entries[name] = {entry, opened.by_use.begin()};
  if (opened.entries.size() > open_count_max) {
    opened.entries.erase(opened.by_use.back());
    opened.by_use.pop_back();
  }
  return entry;
}

BlockCache::Piece BlockCache::Find(const File& file, std::uint64_t offset_bytes,
                                   std::uint64_t size_bytes) const {
  Piece piece;
  const std::uint64_t number = offset_bytes / kEntryBytes;
  auto entry = EntryOf(file, number, false);
  if (entry == nullptr) return piece;
  const std::uint64_t inside = offset_bytes - number * kEntryBytes;
  piece.checks.resize(BlockCount(size_bytes));
  if (!ReadChecks(*entry, inside / kBlockBytes, piece.checks)) return piece;
  if (std::ranges::find(piece.checks, 0U) != piece.checks.end()) return piece;
  piece.offset_bytes = kDataBegin + inside;
  piece.entry = std::move(entry);
  return piece;
}

bool BlockCache::ReadChecks(const Entry& entry, std::uint64_t first_block,
                            std::span<std::uint64_t> checks) {
  return ReadAll(entry.fd.get(), kHeaderBytes + first_block * sizeof(std::uint64_t),
                 std::as_writable_bytes(checks));
}

bool BlockCache::Touch(const File& file, std::uint64_t number, std::uint64_t inode) const {
  Opened& opened = opened_.Get();
  const std::scoped_lock lock(opened.mutex);
  const int folder = opened.folder.get();
  const std::string name = NameOf(file, number);
  struct stat facts {};
  return ::fstatat(folder, name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
         facts.st_ino == inode &&
         ::utimensat(folder, name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
}

bool BlockCache::IsGood(const File& file, std::uint64_t offset_bytes, const Piece& piece,
                        std::span<const std::byte> bytes) {
  const PlaceSeeds seeds(file.id);
  std::uint64_t block = offset_bytes / kBlockBytes;
  for (const std::uint64_t check : piece.checks) {
    const auto size = std::min<std::size_t>(bytes.size(), kBlockBytes);
    if (CheckOf(seeds, block++, bytes.first(size)) != check) return false;
    bytes = bytes.subspan(size);
  }
  return true;
}

void BlockCache::Keep(const File& file, std::uint64_t offset_bytes,
                      std::span<const std::byte> bytes, const Kept& kept) const {
  while (!bytes.empty()) {
    const std::uint64_t room = kEntryBytes - offset_bytes % kEntryBytes;
    const auto part = bytes.first(std::min<std::uint64_t>(room, bytes.size()));
    KeepInEntry(file, offset_bytes, part, kept);
    bytes = bytes.subspan(part.size());
    offset_bytes += part.size();
  }
}

// Writes the blocks before their checks: a check without its block would be a miss that costs a
// read.
void BlockCache::KeepInEntry(const File& file, std::uint64_t offset_bytes,
                             std::span<const std::byte> bytes, const Kept& kept) const {
  {
    Opened& opened = opened_.Get();
    const std::scoped_lock lock(opened.mutex);
    if (NowMs() < opened.paused_until_ms) return;
    if (!Reserve(opened, BlockCount(bytes.size()) * kBlockBytes)) return;
  }
  const std::uint64_t number = offset_bytes / kEntryBytes;
  const auto entry = EntryOf(file, number, true);
  if (entry == nullptr) return;
  const PlaceSeeds seeds(file.id);
  std::vector<std::uint64_t> checks;
  for (std::uint64_t begin = 0; begin < bytes.size(); begin += kBlockBytes)
    checks.push_back(CheckOf(seeds, (offset_bytes + begin) / kBlockBytes,
                             bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin))));
  const std::uint64_t inside = offset_bytes - number * kEntryBytes;
  const std::uint64_t at = kHeaderBytes + inside / kBlockBytes * sizeof(std::uint64_t);
  const bool is_kept = WriteAll(entry->fd.get(), kDataBegin + inside, bytes) &&
                       WriteAll(entry->fd.get(), at, std::as_bytes(std::span(checks)));
  if (!is_kept) return Pause();  // The disk is full or failing.
  kept(entry, offset_bytes, bytes.size());
}

// --- The bound -----------------------------------------------------------------------------------

// Takes room from what this process has reserved, or reserves one more chunk of the bound. Waits
// only briefly for other processes: if the ledger stays locked, the block is not kept.
bool BlockCache::Reserve(Opened& opened, std::uint64_t size_bytes) const {
  if (opened.reserved_bytes >= size_bytes) {
    opened.reserved_bytes -= size_bytes;
    return true;
  }
  if (!opened.folder && !OpenFolder(opened)) return false;
  const auto open_ledger = [&] {
    return UniqueFd(
        ::openat(opened.folder.get(), kLedger, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  };
  UniqueFd ledger = open_ledger();
  if (!ledger && errno == ENOENT && OpenFolder(opened)) ledger = open_ledger();
  if (!ledger || !TakeTurn(ledger.get())) return false;
  const std::uint64_t wanted = std::max(size_bytes, chunk_bytes_);
  std::array<std::uint64_t, 2> used{};  // The block and its check.
  const bool is_known = ReadAll(ledger.get(), 0, std::as_writable_bytes(std::span(used))) &&
                        used[1] == Mix64(used[0] + kGoldenGamma);
  if (!is_known || used[0] > size_bytes_max_ || used[0] + wanted > size_bytes_max_) {
    const std::uint64_t room = size_bytes_max_ - size_bytes_max_ / 8;
    used[0] = Evict(opened.folder.get(), room > wanted ? room - wanted : 0);
  }
  const bool fits = used[0] + wanted <= size_bytes_max_;
  if (fits) used[0] += wanted;
  used[1] = Mix64(used[0] + kGoldenGamma);
  if (!WriteAll(ledger.get(), 0, std::as_bytes(std::span(used))) || !fits) return false;
  opened.reserved_bytes += wanted - size_bytes;
  return true;
}

// Removes the least recently used entries until at most `size_bytes_max` are left. Returns the
// bytes that are left.
std::uint64_t BlockCache::Evict(int folder, std::uint64_t size_bytes_max) const {
  struct Found {
    timespec used;
    std::uint64_t size_bytes;
    std::string name;
  };
  std::vector<Found> entries;
  std::uint64_t total = 0;
  DIR* const listing = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (listing == nullptr) return size_bytes_max_;  // Unknown size: treated as full.
  while (const dirent* one = ::readdir(listing)) {
    const std::string name = one->d_name;
    struct stat facts {};
    const bool is_temporary = name.starts_with(kTemporary);
    if ((!is_temporary && !IsEntryName(name)) ||
        ::fstatat(folder, name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(facts.st_mode))
      continue;
    if (is_temporary) {  // A process that was killed has left it.
      if (WallClock::to_time_t(WallClock::now()) - facts.st_mtim.tv_sec > kTemporaryAgeS)
        ::unlinkat(folder, name.c_str(), 0);
      continue;
    }
    constexpr std::uint64_t kStatBlockBytes = 512;
    entries.push_back(
        {facts.st_mtim, static_cast<std::uint64_t>(facts.st_blocks) * kStatBlockBytes, name});
    total += entries.back().size_bytes;
  }
  ::closedir(listing);
  std::ranges::sort(entries, [](const Found& a, const Found& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Found& entry : entries) {
    if (total <= size_bytes_max) break;
    const UniqueFd fd(::openat(folder, entry.name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (::unlinkat(folder, entry.name.c_str(), 0) != 0) continue;
    // Other processes may have it open: truncated, it holds nothing for them and its room is free
    // at once.
    if (fd) static_cast<void>(!::ftruncate(fd.get(), 0));
    total -= entry.size_bytes;
    evictions_.fetch_add(1);
  }
  return total;
}

}  // namespace ffrecord
