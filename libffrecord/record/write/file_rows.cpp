#include <ffrecord/file_rows.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/side_by_side.h"
#include "libffrecord/io/file.h"

namespace ffrecord {
namespace {

// Threads that read, and rows and bytes that they are ahead of the writer.
constexpr std::size_t kReaders = 4;
constexpr std::size_t kRowsAheadMax = 64;
constexpr std::uint64_t kBytesAheadMax = std::uint64_t{64} << 20;

// One row: its record, once a thread has read it.
struct Row {
  // Larger than what it holds, so that it need not be cleared for each row.
  std::vector<std::byte> record;
  std::size_t record_size_bytes = 0;
  std::vector<std::byte> values;  // Read from files, but for the last field of the record.
  std::span<const std::byte> key;
  std::uint64_t ahead_bytes = 0;
  Result<bool> is_as_listed = true;
  bool is_read = false;
};

RowFile::Version VersionOf(const struct stat& status) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

// The rows of one call. Thread-safe.
class FileRows {
 public:
  FileRows(RecordWriter& writer, std::size_t row_count, const FieldsOfRow& fields_of,
           std::optional<std::size_t> key)
      : writer_(writer),
        row_count_(row_count),
        fields_of_(fields_of),
        key_(key),
        ring_(kRowsAheadMax) {
    const auto& columns = writer.schema().columns();
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (writer.schema().width_bytes(i) == 0) last_variable_ = i;
  }

  Result<std::optional<std::size_t>> Run() {
    const std::size_t thread_count = 1 + std::min(kReaders, row_count_);
    FFR_TRY(SideBySide::Run(thread_count, [this](const SideBySide&) {
      if (std::this_thread::get_id() != writing_thread_) return ReadAhead();
      auto written = WriteAllThereIsMemoryFor();
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      has_room_.notify_all();
      return written;
    }));
    return changed_row_;
  }

 private:
  std::size_t column_count() const { return writer_.schema().columns().size(); }

  // Other threads wait for this one, so it must not end in the middle.
  Result<void> WriteAllThereIsMemoryFor() {
    try {
      return WriteAll();
    } catch (const std::bad_alloc&) {  // Such as for its compressed form.
      return NoMemoryFor(written_);    // Only this thread changes it.
    }
  }

  Error NoMemoryFor(std::size_t number) const {
    std::vector<FieldSource> fields(column_count());
    fields_of_(number, fields);
    std::string where;
    std::uint64_t size_bytes = 0;
    for (const FieldSource& field : fields) {
      size_bytes += field.file == nullptr ? field.bytes.size() : field.size_bytes;
      if (field.file != nullptr && where.empty()) where = field.file->path.string();
    }
    return {ErrorCode::kIo,
            where + ": no memory for a record of " + std::to_string(size_bytes) + " bytes", ENOMEM};
  }

  Result<void> WriteAll() {
    for (std::size_t number = 0; number < row_count_; ++number) {
      Row& row = WaitFor(number);
      if (!row.is_as_listed) return std::move(row.is_as_listed).error();
      if (!row.is_as_listed.value()) {
        changed_row_ = number;
        return {};
      }
      FFR_TRY(writer_.Write(std::span(row.record).first(row.record_size_bytes), row.key));
      Release(row);
    }
    return {};
  }

  // The row, read by another thread, or by this one if none has begun to.
  Row& WaitFor(std::size_t number) {
    std::unique_lock lock(mutex_);
    Row& row = ring_[number % kRowsAheadMax];
    while (!row.is_read) {
      if (begun_ == number)
        ReadNext(lock);
      else
        is_read_.wait(lock);
    }
    return row;
  }

  void Release(Row& row) {
    const std::lock_guard lock(mutex_);
    row.is_read = false;
    ahead_bytes_ -= row.ahead_bytes;
    ++written_;
    // The memory that was used last is still in the processor's cache.
    spare_bytes_ += row.record.size();
    spare_.push_back(std::move(row.record));
    while (spare_bytes_ > kBytesAheadMax) {
      spare_bytes_ -= spare_.front().size();
      spare_.erase(spare_.begin());
    }
    has_room_.notify_one();
  }

  Result<void> ReadAhead() {
    std::unique_lock lock(mutex_);
    while (!is_over_ && begun_ < row_count_) {
      if (HasRoom())
        ReadNext(lock);
      else
        has_room_.wait(lock);
    }
    return {};
  }

  bool HasRoom() const {
    return begun_ - written_ < kRowsAheadMax &&
           (ahead_bytes_ < kBytesAheadMax || begun_ == written_);
  }

  // Reads the next row that nobody has begun. Requires that `lock` is held; it is unlocked
  // while the files are read.
  void ReadNext(std::unique_lock<std::mutex>& lock) {
    const std::size_t number = begun_++;
    std::vector<FieldSource> fields(column_count());
    fields_of_(number, fields);
    Row& row = ring_[number % kRowsAheadMax];
    row.ahead_bytes = 0;
    for (const FieldSource& field : fields)
      row.ahead_bytes += field.file == nullptr ? field.bytes.size() : field.size_bytes;
    ahead_bytes_ += row.ahead_bytes;
    if (!spare_.empty()) {
      spare_bytes_ -= spare_.back().size();
      row.record = std::move(spare_.back());
      spare_.pop_back();
    }
    lock.unlock();
    try {
      row.is_as_listed = Read(fields, row);
    } catch (const std::exception&) {  // A sparse file can have any size.
      row.is_as_listed = NoMemoryFor(number);
    }
    lock.lock();
    row.is_read = true;
    is_read_.notify_one();
  }

  // Makes the record of a row; false if a file is not as it was listed.
  Result<bool> Read(std::span<const FieldSource> fields, Row& row) {
    std::vector<std::span<const std::byte>> values(fields.size());
    const FieldSource* last = nullptr;  // The last field is read into the record itself.
    std::uint64_t size_bytes = 0;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].file != nullptr && i == last_variable_)
        last = &fields[i];
      else if (fields[i].file != nullptr)
        size_bytes += fields[i].size_bytes;
    }
    row.values.resize(size_bytes);
    std::span<std::byte> left(row.values);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].file == nullptr) {
        values[i] = fields[i].bytes;
      } else if (&fields[i] != last) {
        if (!FFR_TRY(ReadValue(fields[i], left.first(fields[i].size_bytes)))) return false;
        values[i] = left.first(fields[i].size_bytes);
        left = left.subspan(fields[i].size_bytes);
      }
    }
    std::vector<std::byte> front;
    FFR_TRY(writer_.schema().Join(values, front));
    const std::uint64_t last_size_bytes = last == nullptr ? 0 : last->size_bytes;
    row.record_size_bytes = front.size() + last_size_bytes;
    if (row.record.size() < row.record_size_bytes) row.record.resize(row.record_size_bytes);
    std::ranges::copy(front, row.record.begin());
    const auto end = std::span(row.record).subspan(front.size(), last_size_bytes);
    if (last != nullptr) {
      if (!FFR_TRY(ReadValue(*last, end))) return false;
      values[last_variable_] = end;
    }
    row.key = key_ ? values[*key_] : std::span<const std::byte>{};
    return true;
  }

  Result<bool> ReadValue(const FieldSource& field, std::span<std::byte> destination) {
    const auto file = FFR_TRY(Opened(*field.file));
    const auto& listed = field.file->listed;
    if (listed && !FFR_TRY(IsAsListed(*file, *field.file))) return false;
    if (auto read = ReadExactly(file->fd.get(), field.file->path, field.offset_bytes, destination);
        !read) {
      if (listed && read.error().code == ErrorCode::kCorruption) return false;  // It was cut.
      return read.error();
    }
    return listed ? IsAsListed(*file, *field.file) : Result<bool>(true);
  }

  static Result<bool> IsAsListed(const ReadOnlyFile& file, const RowFile& wanted) {
    struct stat status {};
    if (::fstat(file.fd.get(), &status) != 0) return ErrnoError("look at", wanted.path, errno);
    return VersionOf(status) == *wanted.listed;
  }

  // Open once for neighbours that are in the same file.
  Result<std::shared_ptr<const ReadOnlyFile>> Opened(const RowFile& file) {
    {
      const std::lock_guard lock(opened_mutex_);
      if (opened_of_ == &file) return opened_;
    }
    auto opened = std::make_shared<const ReadOnlyFile>(FFR_TRY(OpenReadOnly(file.path, false)));
    const std::lock_guard lock(opened_mutex_);
    opened_of_ = &file;
    opened_ = opened;
    return opened;
  }

  RecordWriter& writer_;
  const std::size_t row_count_;
  const FieldsOfRow& fields_of_;
  const std::optional<std::size_t> key_;
  std::size_t last_variable_ = 0;
  const std::thread::id writing_thread_ = std::this_thread::get_id();
  std::optional<std::size_t> changed_row_;  // Only the writing thread uses it.

  std::mutex opened_mutex_;
  const RowFile* opened_of_ = nullptr;
  std::shared_ptr<const ReadOnlyFile> opened_;

  std::mutex mutex_;  // Guards all below; a row belongs to its reader, then to the writing thread.
  std::condition_variable has_room_;
  std::condition_variable is_read_;
  std::vector<Row> ring_;
  std::vector<std::vector<std::byte>> spare_;  // Memory of rows that are written.
  std::uint64_t spare_bytes_ = 0;
  std::size_t begun_ = 0;    // Rows that a thread reads or has read,
  std::size_t written_ = 0;  // and those that were written.
  std::uint64_t ahead_bytes_ = 0;
  bool is_over_ = false;
};

}  // namespace

Result<std::optional<std::size_t>> WriteFileRows(RecordWriter& writer, std::size_t row_count,
                                                 const FieldsOfRow& fields_of,
                                                 std::optional<std::size_t> key) {
  return FileRows(writer, row_count, fields_of, key).Run();
}

}  // namespace ffrecord
