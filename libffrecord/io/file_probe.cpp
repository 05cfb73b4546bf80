#include <ffrecord/file_probe.h>

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <span>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/random.h"
#include "libffrecord/base/timed_waits.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"

namespace ffrecord {
namespace {

struct Way {
  bool is_random;
  std::uint32_t block_bytes;
  std::uint32_t depth;
};
constexpr std::array kWays = {Way{true, 4 << 10, 32}, Way{true, 128 << 10, 32},
                              Way{false, 1 << 20, 8}};
constexpr std::uint32_t kDepthMax = 32;
// Draws of a block that the page cache lacks; after these, any block will do.
constexpr int kDraws = 8;
// After it, blocks that the kernel drops when nobody uses them are gone.
constexpr std::chrono::milliseconds kPause{500};

// A part of the file.
struct Block {
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

// The file, and what is known of its pages.
struct Probed {
  ReadOnlyFile file;
  // Never read: only the kernel is asked about it. None where it does not tell.
  std::optional<MappedFile> mapping;
  std::vector<Block> through_cache;  // Blocks that were read so.

  bool IsCached(const Block& block) const {
    return mapping && IsInMemory(mapping->bytes().subspan(block.offset_bytes, block.size_bytes));
  }
};

// Which blocks are read, in this order.
class Blocks {
 public:
  Blocks(const Probed& probed, const Way& way, bool is_direct, std::uint64_t read_bytes_max)
      : probed_(probed),
        way_(way),
        is_direct_(is_direct),
        count_((probed.file.size_bytes - 1) / way.block_bytes + 1),
        random_(RandomNumber()) {
    if (way.is_random || is_direct) return;
    // Later, what the kernel reads ahead would count.
    for (std::uint64_t i = 0; i < count_ && i * way.block_bytes < read_bytes_max; ++i)
      cached_.push_back(probed_.IsCached(At(i)));
  }

  // Whether the page cache had it. Ask before it is read.
  bool IsCached(const Block& block) const {
    if (way_.is_random || is_direct_) return probed_.IsCached(block);
    return cached_[block.offset_bytes / way_.block_bytes];
  }

  // Nothing once a file that is read in order has ended.
  std::optional<Block> Next() {
    if (!way_.is_random) return next_ < count_ ? std::optional(At(next_++)) : std::nullopt;
    std::uniform_int_distribution<std::uint64_t> draw(0, count_ - 1);
    Block block = At(draw(random_));
    for (int i = 1; i < kDraws && !is_direct_ && probed_.IsCached(block); ++i)
      block = At(draw(random_));
    return block;
  }

 private:
  Block At(std::uint64_t number) const {
    const std::uint64_t offset = number * way_.block_bytes;
    return {offset, std::min<std::uint64_t>(way_.block_bytes, probed_.file.size_bytes - offset)};
  }

  const Probed& probed_;
  const Way way_;
  const bool is_direct_;
  const std::uint64_t count_;
  std::vector<bool> cached_;  // Blocks read in order through the page cache: was it there?
  std::mt19937_64 random_;
  std::uint64_t next_ = 0;
};

// A read in flight.
struct Flight {
  IoRequest request;
  Block block;
  Clock::time_point begin;
};

// Reads in one way until `end`, until `read_bytes_max` are read, or until the file ends.
class Measurement {
 public:
  Measurement(Probed& probed, IoEngine& engine, const Way& way, bool is_direct,
              std::uint64_t read_bytes_max)
      : probed_(probed),
        engine_(engine),
        way_(way),
        read_bytes_max_(read_bytes_max),
        blocks_(probed, way, is_direct, read_bytes_max) {
    rate_.is_direct = is_direct;
    rate_.is_random = way.is_random;
    rate_.block_bytes = way.block_bytes;
    rate_.depth = way.depth;
  }

  Result<ReadRate> Run(Clock::time_point end) {
    const PooledBuffer memory =
        FFR_TRY(BufferPool::Process().Take(std::size_t{way_.depth} * way_.block_bytes));
    const Clock::time_point begin = Clock::now();
    for (std::uint32_t i = 0; i < way_.depth; ++i) {
      flights_[i].request.buffer =
          memory->subspan(std::size_t{i} * way_.block_bytes, way_.block_bytes);
      idle_.push_back(&flights_[i]);
    }
    const Result<void> read = Loop(end);
    rate_.duration = Clock::now() - begin;
    FFR_TRY(read);
    std::ranges::sort(latencies_);
    if (!latencies_.empty()) {
      rate_.latency_median = latencies_[latencies_.size() / 2];
      rate_.latency_p99 = latencies_[latencies_.size() * 99 / 100];
    }
    return rate_;
  }

 private:
  // Leaves nothing in flight: the memory and the requests end with this object.
  Result<void> Loop(Clock::time_point end) {
    Result<void> first;
    std::uint64_t submitted_bytes = 0;
    bool is_over = false;
    while (true) {
      while (!is_over && !idle_.empty()) {
        const std::optional<Block> block =
            Clock::now() < end && submitted_bytes < read_bytes_max_ ? blocks_.Next() : std::nullopt;
        is_over = !block;
        if (is_over) break;
        submitted_bytes += block->size_bytes;
        if (auto submitted = Submit(*block); !submitted) {
          first = std::move(submitted);
          is_over = true;
        }
      }
      if (engine_.in_flight() == 0) return first;
      std::array<IoRequest*, kDepthMax> done{};
      const std::uint32_t count = FFR_TRY(engine_.Wait(done, 1, kIoForever));
      for (IoRequest* request : std::span(done).first(count)) {
        auto ended = End(*static_cast<Flight*>(request->user));
        if (ended) continue;
        if (first) first = std::move(ended);
        is_over = true;
      }
    }
  }

  Result<void> Submit(const Block& block) {
    Flight& flight = *idle_.back();
    if (blocks_.IsCached(block)) rate_.cached_bytes += block.size_bytes;
    if (!rate_.is_direct) probed_.through_cache.push_back(block);
    flight.block = block;
    flight.request.fd = rate_.is_direct ? probed_.file.direct_fd.get() : probed_.file.fd.get();
    flight.request.offset_bytes = block.offset_bytes;
    flight.request.user = &flight;
    flight.begin = Clock::now();
    const std::array<IoRequest*, 1> requests = {&flight.request};
    // There is room for as many as there are flights.
    const std::uint32_t taken = FFR_TRY(engine_.Submit(requests));
    if (taken == 1) idle_.pop_back();
    return {};
  }

  Result<void> End(Flight& flight) {
    idle_.push_back(&flight);
    const std::int64_t result = flight.request.result;
    if (result == -EAGAIN || result == -EINTR) return {};
    if (result < 0) return Error{ErrorCode::kIo, "", static_cast<int>(-result)};
    latencies_.push_back(Clock::now() - flight.begin);
    ++rate_.read_count;
    rate_.read_bytes += static_cast<std::uint64_t>(result);
    return {};
  }

  Probed& probed_;
  IoEngine& engine_;
  const Way way_;
  const std::uint64_t read_bytes_max_;
  Blocks blocks_;
  ReadRate rate_;
  std::array<Flight, kDepthMax> flights_{};
  std::vector<Flight*> idle_;
  std::vector<std::chrono::nanoseconds> latencies_;
};

// Reads in all ways; what has failed leaves its error.
Result<void> ReadInAllWays(Probed& probed, bool is_direct, std::chrono::nanoseconds duration,
                           std::uint64_t read_bytes_max, std::vector<ReadRate>& rates) {
  const auto engine = FFR_TRY(MakeIoEngine(kDepthMax));
  for (Way way : kWays) {
    if (is_direct)
      way.block_bytes = std::max(way.block_bytes, probed.file.direct_alignment.offset_bytes);
    // Otherwise the kernel fetches what is beside a block, and seems slower than it is.
    ::posix_fadvise(probed.file.fd.get(), 0, 0,
                    way.is_random ? POSIX_FADV_RANDOM : POSIX_FADV_NORMAL);
    Measurement measurement(probed, *engine, way, is_direct, read_bytes_max);
    const auto end = Clock::now() + duration / static_cast<int>(kWays.size());
    rates.push_back(FFR_TRY(measurement.Run(end)));
  }
  return {};
}

double KeptShare(const Probed& probed) {
  const auto kept = std::ranges::count_if(
      probed.through_cache, [&](const Block& block) { return probed.IsCached(block); });
  return static_cast<double>(kept) / static_cast<double>(probed.through_cache.size());
}

}  // namespace

Result<FileFindings> ProbeFile(const std::filesystem::path& path, const FileProbeOptions& options) {
  if (options.duration.count() <= 0 || options.read_bytes_max == 0)
    return Error{ErrorCode::kInvalidArgument,
                 "measure " + path.string() + ": the limits of time and bytes must be above 0"};
  ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, true));
  FileFindings found;
  found.size_bytes = file.size_bytes;
  if (!file.direct_fd)
    found.why_not_direct =
        "the file system does not allow direct I/O, or the kernel does not tell its alignment, as "
        "Linux 6.1 and later do";
  if (file.size_bytes == 0) return found;
  Probed probed{std::move(file), std::nullopt, {}};
  if (TellsWhatIsInMemory(probed.file.fd.get())) {
    // Fails where there are no addresses for so much: then nobody knows.
    auto mapping = MappedFile::Map(probed.file.fd.get(), 0, probed.file.size_bytes);
    if (mapping) probed.mapping = std::move(mapping).value();
  }
  if (probed.mapping) found.resident_share = ResidentShare(probed.mapping->bytes());

  const bool tries_direct = static_cast<bool>(probed.file.direct_fd);
  const auto duration = std::chrono::nanoseconds(options.duration) / (tries_direct ? 2 : 1);
  if (tries_direct) {
    const auto read = ReadInAllWays(probed, true, duration, options.read_bytes_max, found.rates);
    if (read) {
      found.direct_memory_alignment_bytes = probed.file.direct_alignment.memory_bytes;
      found.direct_offset_alignment_bytes = probed.file.direct_alignment.offset_bytes;
    } else {  // As network file systems do that promise what their server refuses.
      found.why_not_direct = ErrnoError("read directly", path, read.error().system_errno).message;
      found.rates.clear();
    }
  }
  if (auto read = ReadInAllWays(probed, false, duration, options.read_bytes_max, found.rates);
      !read)
    return read.error().message.empty() ? ErrnoError("read", path, read.error().system_errno)
                                        : std::move(read).error();
  if (probed.mapping && !probed.through_cache.empty()) {
    SleepFor(kPause);
    found.kept_share = KeptShare(probed);
  }
  return found;
}

}  // namespace ffrecord
