#include "libffrecord/io/atomic_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/fork_generation.h"
#include "libffrecord/io/transfer.h"
#include "libffrecord/io/unnamed_file.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint32_t kBuffersMax = 1024;
constexpr std::uint64_t kFileSizeMax = std::numeric_limits<std::int64_t>::max();

Result<void> CheckOptions(const AtomicFile::Options& options) {
  const std::uint64_t size = options.buffer_size_bytes;
  if (size == 0 || size % kBlockBytes != 0 || size > kIoTransferMaxBytes)
    return Error{ErrorCode::kInvalidArgument, "atomic file: buffer_size_bytes is " +
                                                  std::to_string(size) +
                                                  ", must be a multiple of 4096 up to 1 GiB"};
  if (options.buffers_in_flight == 0 || options.buffers_in_flight > kBuffersMax)
    return Error{ErrorCode::kInvalidArgument, "atomic file: buffers_in_flight is " +
                                                  std::to_string(options.buffers_in_flight) +
                                                  ", must be 1 to 1024"};
  if (options.expected_size_bytes > kFileSizeMax)
    return Error{ErrorCode::kInvalidArgument, "atomic file: expected_size_bytes is too large"};
  return {};
}

}  // namespace

struct AtomicFile::Impl {
  // A buffer that is filled, then written, then idle.
  struct Slot {
    PooledBuffer buffer;
    std::optional<Transfer> transfer;
  };

  Impl(UnnamedFile&& unnamed, const Options& chosen, std::unique_ptr<IoEngine> own_engine)
      : file(std::move(unnamed)), options(chosen), engine(std::move(own_engine)) {
    if (options.direct) direct_fd = file.OpenDirect();
  }
  ~Impl() {
    // The kernel writes from our buffers; a forked child has only copies of them.
    if (generation == ForkGeneration()) DrainOrDie(*engine);
  }

  Result<void> Usable() const;
  Error Poison(Error error);
  Result<void> TakeSlot();
  Result<void> StartWrite(std::uint64_t size);
  Result<void> SubmitPending();
  Result<void> WaitUntilBusyIsAtMost(std::size_t busy_max);
  Result<void> Returned(IoRequest& request);
  Result<void> RunNow(IoRequest request, std::string_view tried);
  Result<void> WriteNow(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void> Append(std::span<const std::byte> bytes);
  Result<void> WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void> WriteTail();
  Result<void> Publish();

  int write_fd() const { return direct_fd ? direct_fd.get() : file.fd(); }
  std::uint64_t size_bytes() const { return started_bytes + filled_bytes; }

  UnnamedFile file;
  const Options options;
  std::unique_ptr<IoEngine> engine;
  UniqueFd direct_fd;
  const std::uint32_t generation = ForkGeneration();
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Slot*> idle;
  std::vector<IoRequest*> pending;  // To be submitted: not yet taken, or interrupted.
  std::size_t busy = 0;             // Slots that are pending or in flight.
  Slot* filling = nullptr;
  std::uint64_t started_bytes = 0;  // Handed to the engine; where the buffer being filled begins.
  std::uint64_t filled_bytes = 0;
  std::optional<Error> first_error;
  bool published = false;
};

Result<void> AtomicFile::Impl::Usable() const {
  if (first_error) return *first_error;
  if (published)
    return Error{ErrorCode::kInvalidArgument, "write " + file.path().string() +
                                                  ": it is published and does not change any more"};
  return {};
}

Error AtomicFile::Impl::Poison(Error error) {
  if (!first_error) first_error = std::move(error);
  return *first_error;
}

// Finds a buffer to fill, waiting for a write to end if all are busy.
Result<void> AtomicFile::Impl::TakeSlot() {
  if (idle.empty() && slots.size() <= options.buffers_in_flight) {
    auto buffer = BufferPool::Process().Take(options.buffer_size_bytes);
    if (!buffer) return Poison(std::move(buffer).error());
    slots.push_back(std::make_unique<Slot>(Slot{std::move(buffer).value(), {}}));
    idle.push_back(slots.back().get());
  }
  if (idle.empty()) {
    if (auto waited = WaitUntilBusyIsAtMost(busy - 1); !waited) return waited;
  }
  filling = idle.back();
  idle.pop_back();
  return {};
}

// Writes the first `size` bytes of the buffer being filled.
Result<void> AtomicFile::Impl::StartWrite(std::uint64_t size) {
  IoRequest request;
  request.kind = IoRequest::Kind::kWrite;
  request.fd = write_fd();
  request.offset_bytes = started_bytes;
  request.buffer = filling->buffer->first(size);
  pending.push_back(&filling->transfer.emplace(request).request());
  ++busy;
  filling = nullptr;
  started_bytes += size;
  filled_bytes = 0;
  return SubmitPending();
}

Result<void> AtomicFile::Impl::SubmitPending() {
  if (pending.empty()) return {};
  auto taken = engine->Submit(pending);
  if (!taken) return Poison(std::move(taken).error());
  if (taken.value() == 0 && engine->in_flight() == 0)
    return Poison(Error{ErrorCode::kIo, "write: the idle engine takes no request", EAGAIN});
  pending.erase(pending.begin(), pending.begin() + taken.value());
  return {};
}

Result<void> AtomicFile::Impl::WaitUntilBusyIsAtMost(std::size_t busy_max) {
  std::array<IoRequest*, 16> done{};
  while (busy > busy_max) {
    if (auto submitted = SubmitPending(); !submitted) return submitted;
    auto count = engine->Wait(done, 1, kIoForever);
    if (!count) return Poison(std::move(count).error());
    for (IoRequest* request : std::span(done).first(count.value())) {
      if (auto returned = Returned(*request); !returned) return returned;
    }
  }
  return {};
}

// Takes what the engine gave back. After a failure the file is done with: others in flight are
// waited for by the destructor.
Result<void> AtomicFile::Impl::Returned(IoRequest& request) {
  auto& transfer = *static_cast<Transfer*>(request.user);
  if (!transfer.Finish()) {
    // After a short write an odd offset may be left, from where no direct write may start.
    if (request.offset_bytes % kBlockBytes != 0) request.fd = file.fd();
    pending.push_back(&request);
    return {};
  }
  if (transfer.result() < 0)
    return Poison(ErrnoError("write", file.path(), static_cast<int>(-transfer.result())));
  const auto slot = std::find_if(slots.begin(), slots.end(), [&](const auto& candidate) {
    return candidate->transfer && &*candidate->transfer == &transfer;
  });
  idle.push_back(slot->get());
  --busy;
  return {};
}

// One request to its end, with nothing else in flight.
Result<void> AtomicFile::Impl::RunNow(IoRequest request, std::string_view tried) {
  if (auto waited = WaitUntilBusyIsAtMost(0); !waited) return waited;
  if (auto run = RunAll(*engine, {&request, 1}, 1); !run) return Poison(run.error());
  if (request.result < 0)
    return Poison(ErrnoError(tried, file.path(), static_cast<int>(-request.result)));
  return {};
}

// Through the page cache, so from any address to any offset.
Result<void> AtomicFile::Impl::WriteNow(std::uint64_t offset, std::span<const std::byte> bytes) {
  IoRequest request;
  request.kind = IoRequest::Kind::kWrite;
  request.fd = file.fd();
  request.offset_bytes = offset;
  request.buffer = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // Only read from.
  return RunNow(request, "write");
}

Result<void> AtomicFile::Impl::Append(std::span<const std::byte> bytes) {
  if (auto usable = Usable(); !usable) return usable;
  if (bytes.size() > kFileSizeMax - size_bytes())
    return Poison(ErrnoError("append to", file.path(), EFBIG));
  while (!bytes.empty()) {
    if (filling == nullptr) {
      if (auto taken = TakeSlot(); !taken) return taken;
    }
    const std::span<std::byte> room = filling->buffer->subspan(filled_bytes);
    const std::size_t size = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), size);
    filled_bytes += size;
    bytes = bytes.subspan(size);
    if (filled_bytes == options.buffer_size_bytes) {
      if (auto started = StartWrite(filled_bytes); !started) return started;
    }
  }
  return {};
}

Result<void> AtomicFile::Impl::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (auto usable = Usable(); !usable) return usable;
  if (offset > size_bytes() || bytes.size() > size_bytes() - offset)
    return Error{ErrorCode::kInvalidArgument,
                 "overwrite " + file.path().string() + ": bytes from " + std::to_string(offset) +
                     " on pass the end at " + std::to_string(size_bytes())};
  if (bytes.empty()) return {};
  const std::uint64_t below = offset < started_bytes ? started_bytes - offset : 0;
  const std::size_t written = std::min<std::uint64_t>(below, bytes.size());
  const std::span<const std::byte> buffered = bytes.subspan(written);
  if (!buffered.empty())
    std::memcpy(filling->buffer->data() + (offset + written - started_bytes), buffered.data(),
                buffered.size());
  return written > 0 ? WriteNow(offset, bytes.first(written)) : Result<void>();
}

// Writes what has not filled its buffer; with O_DIRECT its last, partial block apart.
Result<void> AtomicFile::Impl::WriteTail() {
  if (filled_bytes == 0) return {};
  const std::uint64_t odd = direct_fd ? filled_bytes % kBlockBytes : 0;
  const std::uint64_t even = filled_bytes - odd;
  const PooledBuffer buffer = filling->buffer;
  if (even > 0) {
    if (auto started = StartWrite(even); !started) return started;
  }
  const std::uint64_t offset = started_bytes;
  started_bytes += odd;
  filled_bytes = 0;
  return odd > 0 ? WriteNow(offset, buffer->subspan(even, odd)) : Result<void>();
}

Result<void> AtomicFile::Impl::Publish() {
  if (auto usable = Usable(); !usable) return usable;
  if (auto written = WriteTail(); !written) return written;
  // What was reserved in vain goes back.
  if (auto waited = WaitUntilBusyIsAtMost(0); !waited) return waited;
  if (options.expected_size_bytes > started_bytes &&
      ::ftruncate(file.fd(), static_cast<off_t>(started_bytes)) != 0)
    return Poison(ErrnoError("cut", file.path(), errno));
  IoRequest sync;
  sync.kind = IoRequest::Kind::kSync;
  sync.fd = file.fd();
  if (auto synced = RunNow(sync, "sync"); !synced) return synced;
  if (auto named = file.Publish(); !named) return Poison(named.error());
  published = true;
  return {};
}

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path, const Options& options,
                                      std::unique_ptr<IoEngine> engine) {
  if (auto checked = CheckOptions(options); !checked) return checked.error();
  UnnamedFile file = FFR_TRY(UnnamedFile::Create(path, options.replace));
  if (options.expected_size_bytes > 0) {
    if (auto reserved = file.Reserve(options.expected_size_bytes); !reserved)
      return reserved.error();
  }
  if (!engine) engine = FFR_TRY(MakeIoEngine(options.buffers_in_flight));
  return AtomicFile(std::make_unique<Impl>(std::move(file), options, std::move(engine)));
}

AtomicFile::AtomicFile(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
AtomicFile::AtomicFile(AtomicFile&&) noexcept = default;
AtomicFile& AtomicFile::operator=(AtomicFile&&) noexcept = default;
AtomicFile::~AtomicFile() = default;

Result<void> AtomicFile::Append(std::span<const std::byte> bytes) { return impl_->Append(bytes); }

Result<void> AtomicFile::AppendZeros(std::uint64_t count_bytes) {
  static constexpr std::array<std::byte, 64 * 1024> kZeros{};
  while (count_bytes > 0) {
    const auto size = std::min<std::uint64_t>(count_bytes, kZeros.size());
    if (auto appended = Append(std::span(kZeros).first(size)); !appended) return appended;
    count_bytes -= size;
  }
  return {};
}

std::uint64_t AtomicFile::size_bytes() const noexcept { return impl_->size_bytes(); }

Result<void> AtomicFile::WriteAt(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  return impl_->WriteAt(offset_bytes, bytes);
}

Result<void> AtomicFile::Publish() { return impl_->Publish(); }

}  // namespace ffrecord
