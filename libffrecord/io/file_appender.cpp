#include "libffrecord/io/file_appender.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/transfer.h"
#include "libffrecord/io/transfer_queue.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlockBytes = 4096;
constexpr std::uint32_t kBuffersMax = 1024;
constexpr std::uint64_t kFileSizeMax = std::numeric_limits<std::int64_t>::max();

Result<void> CheckOptions(const FileAppender::Options& options) {
  const std::uint64_t size = options.buffer_size_bytes;
  if (size == 0 || size % kBlockBytes != 0 || size > kIoTransferMaxBytes)
    return Error{ErrorCode::kInvalidArgument, "append to a file: buffer_size_bytes is " +
                                                  std::to_string(size) +
                                                  ", must be a multiple of 4096 up to 1 GiB"};
  if (options.begin_bytes % kBlockBytes != 0 || options.begin_bytes > kFileSizeMax)
    return Error{ErrorCode::kInvalidArgument, "append to a file: begin_bytes is " +
                                                  std::to_string(options.begin_bytes) +
                                                  ", must be a multiple of 4096"};
  if (options.buffers_in_flight == 0 || options.buffers_in_flight > kBuffersMax)
    return Error{ErrorCode::kInvalidArgument, "append to a file: buffers_in_flight is " +
                                                  std::to_string(options.buffers_in_flight) +
                                                  ", must be 1 to 1024"};
  return {};
}

}  // namespace

struct FileAppender::Impl {
  struct Slot;
  struct Write : Transfer {
    Write(const IoRequest& request, int unaligned_fd, Slot& of_slot)
        : Transfer(request, unaligned_fd), slot(&of_slot) {}
    Slot* slot;
  };
  // A buffer that is filled, then written, then idle.
  struct Slot {
    PooledBuffer buffer;
    std::optional<Write> write;
  };

  Impl(const std::filesystem::path& name, int descriptor, UniqueFd direct, const Options& chosen,
       std::unique_ptr<IoEngine> own_engine)
      : path(name),
        fd(descriptor),
        direct_fd(std::move(direct)),
        options(chosen),
        engine(std::move(own_engine)),
        queue(*engine, chosen.buffers_in_flight, TransferQueue::Wants::kAny, queue_memory),
        started_bytes(chosen.begin_bytes) {}

  Result<void> Usable() const;
  Error Poison(Error error);
  Result<void> TakeSlot();
  Result<void> StartWrite(std::uint64_t size);
  Result<void> WaitUntilBusyIsAtMost(std::size_t busy_max);
  Result<void> RunNow(IoRequest request, std::string_view tried);
  Result<void> WriteNow(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void> Append(std::span<const std::byte> bytes);
  Result<void> WriteAt(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void> CutTo(std::uint64_t size);
  Result<void> WriteTail();
  Result<void> Sync();

  int write_fd() const { return direct_fd ? direct_fd.get() : fd; }
  std::uint64_t size_bytes() const { return started_bytes + filled_bytes; }

  const std::filesystem::path path;
  const int fd;
  const UniqueFd direct_fd;
  const Options options;
  const std::unique_ptr<IoEngine> engine;
  const HomeProcess home;
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Slot*> idle;
  Slot* filling = nullptr;
  std::vector<Transfer*> ended;
  TransferQueue::Memory queue_memory;
  TransferQueue queue;          // Ends before the buffers that it writes from.
  std::uint64_t started_bytes;  // Handed to the engine; where the buffer being filled begins.
  std::uint64_t filled_bytes = 0;
  std::optional<Error> first_error;
};

Result<void> FileAppender::Impl::Usable() const {
  if (first_error) return *first_error;
  if (home.is_here()) return {};
  return Error{ErrorCode::kInvalidArgument,
               "write " + path.string() +
                   ": the process that began it writes it, and not this child that it forked"};
}

Error FileAppender::Impl::Poison(Error error) {
  if (!first_error) first_error = std::move(error);
  return *first_error;
}

// Finds a buffer to fill, waiting for a write to end if all are busy.
Result<void> FileAppender::Impl::TakeSlot() {
  if (idle.empty() && slots.size() <= options.buffers_in_flight) {
    auto buffer = BufferPool::Process().Take(options.buffer_size_bytes);
    if (!buffer) return Poison(std::move(buffer).error());
    slots.push_back(std::make_unique<Slot>(Slot{std::move(buffer).value(), {}}));
    idle.push_back(slots.back().get());
  }
  if (idle.empty()) {
    if (auto waited = WaitUntilBusyIsAtMost(queue.count() - 1); !waited) return waited;
  }
  filling = idle.back();
  idle.pop_back();
  return {};
}

// Writes the first `size` bytes of the buffer being filled.
Result<void> FileAppender::Impl::StartWrite(std::uint64_t size) {
  IoRequest request;
  request.kind = IoRequest::Kind::kWrite;
  request.fd = write_fd();
  request.offset_bytes = started_bytes;
  request.buffer = filling->buffer->first(size);
  queue.Add(filling->write.emplace(request, fd, *filling));
  filling = nullptr;
  started_bytes += size;
  filled_bytes = 0;
  if (auto submitted = queue.Submit(); !submitted) return Poison(std::move(submitted).error());
  return {};
}

// After a failure nothing more is written; the destructor waits for the writes in flight.
Result<void> FileAppender::Impl::WaitUntilBusyIsAtMost(std::size_t busy_max) {
  while (queue.count() > busy_max) {
    ended.clear();
    if (auto polled = queue.Poll(kIoForever, ended); !polled)
      return Poison(std::move(polled).error());
    for (Transfer* transfer : ended) {
      if (transfer->result() < 0)
        return Poison(ErrnoError("write", path, static_cast<int>(-transfer->result())));
      idle.push_back(static_cast<Write*>(transfer)->slot);
    }
  }
  return {};
}

// Runs one request to its end, with nothing else in flight.
Result<void> FileAppender::Impl::RunNow(IoRequest request, std::string_view tried) {
  if (auto waited = WaitUntilBusyIsAtMost(0); !waited) return waited;
  if (auto run = RunAll(*engine, {&request, 1}, 1); !run) return Poison(run.error());
  if (request.result < 0) return Poison(ErrnoError(tried, path, static_cast<int>(-request.result)));
  if (request.kind == IoRequest::Kind::kRead &&
      static_cast<std::uint64_t>(request.result) < request.buffer.size())
    return Poison({ErrorCode::kIo, path.string() + ": another program cut it"});
  return {};
}

// Writes through the page cache, so neither address nor offset need be aligned.
Result<void> FileAppender::Impl::WriteNow(std::uint64_t offset, std::span<const std::byte> bytes) {
  IoRequest request;
  request.kind = IoRequest::Kind::kWrite;
  request.fd = fd;
  request.offset_bytes = offset;
  request.buffer = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // Only read from.
  return RunNow(request, "write");
}

Result<void> FileAppender::Impl::Append(std::span<const std::byte> bytes) {
  if (auto usable = Usable(); !usable) return usable;
  if (bytes.size() > kFileSizeMax - size_bytes())
    return Poison(ErrnoError("append to", path, EFBIG));
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

Result<void> FileAppender::Impl::WriteAt(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (auto usable = Usable(); !usable) return usable;
  if (offset < options.begin_bytes || offset > size_bytes() || bytes.size() > size_bytes() - offset)
    return Error{ErrorCode::kInvalidArgument, "overwrite " + path.string() + ": bytes from " +
                                                  std::to_string(offset) + " on pass the end at " +
                                                  std::to_string(size_bytes())};
  if (bytes.empty()) return {};
  const std::uint64_t below = offset < started_bytes ? started_bytes - offset : 0;
  const std::size_t written = std::min<std::uint64_t>(below, bytes.size());
  const std::span<const std::byte> buffered = bytes.subspan(written);
  if (!buffered.empty())
    std::memcpy(filling->buffer->data() + (offset + written - started_bytes), buffered.data(),
                buffered.size());
  return written > 0 ? WriteNow(offset, bytes.first(written)) : Result<void>();
}

Result<void> FileAppender::Impl::CutTo(std::uint64_t size) {
  if (auto usable = Usable(); !usable) return usable;
  FFR_ASSERT(size >= options.begin_bytes && size <= size_bytes());
  if (size >= started_bytes) {
    filled_bytes = size - started_bytes;
    return {};
  }
  if (auto waited = WaitUntilBusyIsAtMost(0); !waited) return waited;
  const std::uint64_t begin = AlignDown(size, kBlockBytes);
  if (filling == nullptr) {
    if (auto taken = TakeSlot(); !taken) return taken;
  }
  if (size > begin) {
    IoRequest request;
    request.kind = IoRequest::Kind::kRead;
    request.fd = fd;
    request.offset_bytes = begin;
    request.buffer = filling->buffer->first(size - begin);
    if (auto read = RunNow(request, "read"); !read) return read;
  }
  if (::ftruncate(fd, static_cast<off_t>(begin)) != 0)
    return Poison(ErrnoError("cut", path, errno));
  started_bytes = begin;
  filled_bytes = size - begin;
  return {};
}

// Writes what has not filled its buffer; with O_DIRECT its last, partial block apart.
Result<void> FileAppender::Impl::WriteTail() {
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

Result<void> FileAppender::Impl::Sync() {
  IoRequest sync;
  sync.kind = IoRequest::Kind::kSync;
  sync.fd = fd;
  return RunNow(sync, "sync");
}

Result<FileAppender> FileAppender::Make(const std::filesystem::path& path, int fd,
                                        UniqueFd direct_fd, const Options& options,
                                        std::unique_ptr<IoEngine> engine) {
  if (auto checked = CheckOptions(options); !checked) return checked.error();
  if (!engine)
    engine = FFR_TRY(direct_fd ? MakeIoEngine(options.buffers_in_flight)
                               : MakeInlineEngine(options.buffers_in_flight));
  return FileAppender(
      std::make_unique<Impl>(path, fd, std::move(direct_fd), options, std::move(engine)));
}

FileAppender::FileAppender(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
FileAppender::FileAppender(FileAppender&&) noexcept = default;
FileAppender& FileAppender::operator=(FileAppender&&) noexcept = default;
FileAppender::~FileAppender() = default;

Result<void> FileAppender::Append(std::span<const std::byte> bytes) { return impl_->Append(bytes); }

Result<void> FileAppender::AppendZeros(std::uint64_t count_bytes) {
  static constexpr std::array<std::byte, 64 * 1024> kZeros{};
  while (count_bytes > 0) {
    const auto size = std::min<std::uint64_t>(count_bytes, kZeros.size());
    if (auto appended = Append(std::span(kZeros).first(size)); !appended) return appended;
    count_bytes -= size;
  }
  return {};
}

std::uint64_t FileAppender::size_bytes() const noexcept { return impl_->size_bytes(); }

Result<void> FileAppender::WriteAt(std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  return impl_->WriteAt(offset_bytes, bytes);
}

Result<void> FileAppender::CutTo(std::uint64_t size_bytes) { return impl_->CutTo(size_bytes); }

Result<void> FileAppender::Flush() {
  if (auto usable = impl_->Usable(); !usable) return usable;
  if (auto written = impl_->WriteTail(); !written) return written;
  return impl_->WaitUntilBusyIsAtMost(0);
}

Result<void> FileAppender::Sync() {
  if (auto usable = impl_->Usable(); !usable) return usable;
  return impl_->Sync();
}

Error FileAppender::Poison(Error error) { return impl_->Poison(std::move(error)); }
Result<void> FileAppender::Usable() const { return impl_->Usable(); }

}  // namespace ffrecord
