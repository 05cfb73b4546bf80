#include "libffrecord/record/index/spliced_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/index/source_state.h"
#include "libffrecord/source/local_files_impl.h"
#include "libffrecord/source/range_queue.h"
#include "libffrecord/source/resident_files.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlock = InPlaceFront::kSizeBytes;
// Each takes up to five mappings: stay far below the kernel's default limit for a process.
constexpr std::size_t kMappedFilesMax = 4000;

// A part of a spliced file: bytes [begin, end) of it are those of another file from `offset` on,
// which has bytes only below `data_end`.
struct Part {
  std::uint32_t file = 0;  // Index among the files beneath.
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;
  std::uint64_t data_end_bytes = 0;  // In this file.
  std::uint64_t offset_bytes = 0;    // Where begin_bytes is in the other file.
};

struct Spliced {
  std::string name;
  std::vector<Part> parts;
  RecordForm form = RecordForm::kPlain;
  std::uint64_t size_bytes() const noexcept { return parts.back().end_bytes; }
};

bool IsAsIndexed(const IndexedSource& source, const FileState& state) noexcept {
  return state == FileState{source.front.source_size_bytes, source.front.source_time_ns};
}

std::string HasChangedText(const IndexedSource& source) {
  return "it was changed after it was indexed: its size or time is another; make the index again "
         "('ffrecord index " +
         source.path.string() + "')";
}

// Ranges of spliced files as ranges of the files beneath.
class Translation {
 public:
  void Set(const std::vector<Spliced>& files, const RangeReader& beneath,
           std::span<RangeRead> ranges);
  std::span<RangeRead> ranges() noexcept { return inner_; }
  // Takes a range that has arrived. The range that is complete with it, or null.
  RangeRead* Arrived(const RangeRead& inner) {
    const std::uint32_t number = outer_of_[static_cast<std::size_t>(&inner - inner_.data())];
    RangeRead& range = ranges_[number];
    if (inner.status != ErrorCode::kOk) range.status = inner.status;
    return --pieces_left_[number] == 0 ? &range : nullptr;
  }

 private:
  std::span<RangeRead> ranges_;
  std::vector<RangeRead> inner_;
  std::vector<std::uint32_t> outer_of_;     // For each inner range.
  std::vector<std::uint32_t> pieces_left_;  // For each outer range.
};

void Translation::Set(const std::vector<Spliced>& files, const RangeReader& beneath,
                      std::span<RangeRead> ranges) {
  ranges_ = ranges;
  inner_.clear();
  outer_of_.clear();
  pieces_left_.assign(ranges.size(), 0);
  for (std::uint32_t number = 0; number < ranges.size(); ++number) {
    RangeRead& range = ranges[number];
    range.status = ErrorCode::kOk;
    const auto add = [&](const RangeRead& inner) {
      inner_.push_back(inner);
      outer_of_.push_back(number);
      ++pieces_left_[number];
    };
    std::uint64_t at = range.offset_bytes;
    std::span<std::byte> left = range.destination;
    for (const Part& part : files[range.file].parts) {
      const bool is_last = &part == &files[range.file].parts.back();
      if (at >= part.end_bytes && !is_last) continue;
      // A read past the end of the last part fails, as that of any file.
      const std::uint64_t size =
          is_last ? left.size() : std::min<std::uint64_t>(left.size(), part.end_bytes - at);
      const std::uint64_t data_end =
          is_last ? at + size
                  : part.begin_bytes + AlignUp(part.data_end_bytes - part.begin_bytes,
                                               beneath.alignment_bytes(part.file));
      const std::uint64_t readable = std::min(size, data_end - std::min(data_end, at));
      std::ranges::fill(left.subspan(readable, size - readable), std::byte{});
      // A range of nothing but what lies between the source's end and the next part is none of the
      // file's: it is asked for, and fails.
      const std::uint64_t asked = readable > 0 ? readable : size;
      // Far behind the end, sums could overflow.
      const std::uint64_t inside = std::min(
          at - part.begin_bytes, AlignUp(part.end_bytes - part.begin_bytes, kBlock) + kBlock);
      add({part.file, part.offset_bytes + inside, left.first(asked)});
      left = left.subspan(size);
      at += size;
      if (left.empty()) break;
    }
  }
}

class SplicedFiles final : public RangeReader, public ResidentFiles {
 public:
  SplicedFiles(std::vector<IndexedSource> sources, std::vector<Spliced> files,
               std::unique_ptr<LocalFiles> beneath)
      : sources_(std::move(sources)),
        files_(std::move(files)),
        beneath_(std::move(beneath)),
        whole_(files_.size()) {}
  ~SplicedFiles() override {
    for (const auto& whole : whole_) delete whole.load();
  }

  std::size_t file_count() const noexcept override { return files_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return files_[file].name;
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return files_[file].size_bytes();
  }
  std::uint32_t alignment_bytes(std::uint32_t file) const noexcept override {
    std::uint32_t alignment = 1;
    for (const Part& part : files_[file].parts)
      alignment = std::max(alignment, beneath_->alignment_bytes(part.file));
    return alignment;
  }
  FileForm form(std::uint32_t file) const noexcept override {
    return {!sources_[file].index.empty(), files_[file].form};
  }
  const CoalescingOptions& coalescing() const noexcept override { return beneath_->coalescing(); }
  Result<PooledBuffer> TakeMemory(std::uint64_t size_bytes) const override {
    return beneath_->TakeMemory(size_bytes);
  }
  bool reads_indexes() const noexcept override { return beneath_->reads_indexes(); }
  Report report() const override { return beneath_->report(); }
  bool HasChanged() const override { return beneath_->HasChanged(); }
  const ResidentFiles* resident() const noexcept override { return this; }
  bool HasShrunk(std::uint32_t file) const override {
    return std::ranges::any_of(files_[file].parts,
                               [&](const Part& part) { return beneath_->HasShrunk(part.file); });
  }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    Translation translation;
    Translate(ranges, translation);
    const auto one = [&](RangeRead& inner) {
      if (RangeRead* const range = translation.Arrived(inner)) arrived(*range);
    };
    return beneath_->ReadEach(translation.ranges(), one, patience);
  }

  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse use) const override;
  std::span<const std::byte> Mapped(std::uint32_t file) const override;

  std::string Trouble(std::uint32_t file, ErrorCode status) const override {
    const IndexedSource& source = sources_[file];
    if (!source.index.empty() && status == ErrorCode::kCorruption) {
      const auto state = StateOf(source.path);
      if (!state) return state.error().message;
      if (!IsAsIndexed(source, state.value())) return HasChangedText(source);
    }
    for (const Part& part : files_[file].parts)
      if (std::string trouble = beneath_->Trouble(part.file, status); !trouble.empty())
        return trouble;
    return {};
  }

  void Translate(std::span<RangeRead> ranges, Translation& translation) const {
    translation.Set(files_, *beneath_, ranges);
  }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    for (const Part& part : files_[file].parts)
      if (part.begin_bytes <= offset_bytes && offset_bytes + size_bytes <= part.end_bytes)
        return beneath_->MapIndex(part.file, part.offset_bytes + (offset_bytes - part.begin_bytes),
                                  size_bytes);
    return ReadAcross(file, offset_bytes, size_bytes);
  }

 private:
  // MapIndex of bytes of several parts.
  Result<IndexBytes> ReadAcross(std::uint32_t file, std::uint64_t offset_bytes,
                                std::uint64_t size_bytes) const {
    const std::uint64_t alignment = alignment_bytes(file);
    const std::uint64_t begin = AlignDown(offset_bytes, alignment);
    auto memory = FFR_TRY(TakeMemory(AlignUp(offset_bytes + size_bytes, alignment) - begin));
    RangeRead range{file, begin, *memory};
    FFR_TRY(Read({&range, 1}));
    if (range.status != ErrorCode::kOk)
      return NotRead(*this, file, offset_bytes, size_bytes, range.status);
    const std::span<const std::byte> bytes = memory->subspan(offset_bytes - begin, size_bytes);
    return IndexBytes{std::move(memory), bytes};
  }

  const std::vector<IndexedSource> sources_;
  const std::vector<Spliced> files_;
  // The file in one piece of address space; null if that is not possible.
  const MappedFile* Whole(std::uint32_t file) const;

  const std::unique_ptr<LocalFiles> beneath_;
  mutable std::vector<std::atomic<const MappedFile*>> whole_;  // Null until it is asked for.
};

std::span<const std::byte> SplicedFiles::Mapped(std::uint32_t file) const {
  // A part that must not be mapped, or has lost pages, is read.
  for (const Part& part : files_[file].parts)
    if (beneath_->Mapped(part.file).empty()) return {};
  if (sources_[file].index.empty()) return beneath_->Mapped(files_[file].parts.front().file);
  const MappedFile* const whole = Whole(file);
  return whole == nullptr || whole->has_lost() ? std::span<const std::byte>() : whole->bytes();
}

const MappedFile* SplicedFiles::Whole(std::uint32_t file) const {
  const MappedFile* whole = whole_[file].load(std::memory_order_acquire);
  if (whole != nullptr || files_.size() > kMappedFilesMax) return whole;
  std::vector<OpenFiles::Pin> pins;
  std::vector<MappedFile::Part> parts;
  for (const Part& part : files_[file].parts) {
    if (part.data_end_bytes == part.begin_bytes) continue;
    auto pin = beneath_->Take(part.file, OpenFiles::Way::kBuffered);
    if (!pin) return nullptr;
    pins.push_back(std::move(pin).value());
    parts.push_back({pins.back().fd(), part.offset_bytes, part.data_end_bytes - part.begin_bytes});
  }
  auto mapped = MappedFile::MapBehindEachOther(parts);
  if (!mapped) return nullptr;
  ExpectRandomAccess(mapped.value().bytes());
  auto fresh = std::make_unique<const MappedFile>(std::move(mapped).value());
  // If two threads map at once, the second mapping is dropped.
  if (whole_[file].compare_exchange_strong(whole, fresh.get())) whole = fresh.release();
  return whole;
}

class SplicedQueue final : public RangeQueue {
 public:
  SplicedQueue(const SplicedFiles& files, std::unique_ptr<RangeQueue> beneath)
      : files_(files), beneath_(std::move(beneath)) {}

  void Submit(RangeGroup& group) override {
    if (spare_.empty()) spare_.push_back(std::make_unique<Group>(*this));
    Group& own = *groups_.emplace_back(std::move(spare_.back()));
    spare_.pop_back();
    own.outer = &group;
    files_.Translate(group.ranges(), own.translation);
    beneath_->Submit(own);
  }

  void GiveUp(RangeGroup& group) override {
    const auto own =
        std::ranges::find_if(groups_, [&](const auto& each) { return each->outer == &group; });
    FFR_ASSERT(own != groups_.end());
    beneath_->GiveUp(**own);
  }

  void Poll(std::chrono::milliseconds timeout) override { beneath_->Poll(timeout); }
  Result<int> EventDescriptor() override { return beneath_->EventDescriptor(); }

 private:
  struct Group final : RangeGroup {
    explicit Group(SplicedQueue& of_queue) : queue(of_queue) {}
    std::span<RangeRead> ranges() noexcept override { return translation.ranges(); }
    void Arrived(RangeRead& inner) override {
      if (RangeRead* const range = translation.Arrived(inner)) outer->Arrived(*range);
    }
    void Ended(Result<void> result) override {
      RangeGroup& ended = *outer;
      queue.Release(*this);  // The group may submit another.
      ended.Ended(std::move(result));
    }

    SplicedQueue& queue;
    RangeGroup* outer = nullptr;
    Translation translation;
  };

  void Release(const Group& group) {
    const auto own =
        std::ranges::find_if(groups_, [&](const auto& each) { return each.get() == &group; });
    spare_.push_back(std::move(*own));
    groups_.erase(own);
  }

  const SplicedFiles& files_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Group>> spare_;
  const std::unique_ptr<RangeQueue> beneath_;  // Ends before what it writes to.
};

Result<std::unique_ptr<RangeQueue>> SplicedFiles::MakeQueue(QueueUse use) const {
  return std::unique_ptr<RangeQueue>(
      std::make_unique<SplicedQueue>(*this, FFR_TRY(beneath_->MakeQueue(use))));
}

bool Exists(const std::filesystem::path& path) { return ::access(path.c_str(), F_OK) == 0; }

bool IsIndexName(const std::filesystem::path& path) {
  return path.native().ends_with(kIndexSuffix);
}

std::filesystem::path IndexBeside(const std::filesystem::path& path) {
  return path.native() + kIndexSuffix;
}

bool HasIndex(const std::filesystem::path& path) {
  return !path.native().ends_with(".ffr") && (IsIndexName(path) || Exists(IndexBeside(path)));
}

Result<IndexedSource> FindOne(const std::filesystem::path& path) {
  if (!HasIndex(path)) return IndexedSource{path, {}};
  IndexedSource found;
  found.index = IsIndexName(path) ? path : IndexBeside(path);
  found.front = FFR_TRY(ReadInPlaceFront(found.index));
  found.path = IsIndexName(path) ? SourceOf(path, found.front) : path;
  // A copy of another shard's index would otherwise give that shard twice.
  if (IndexBeside(found.path.filename()) != found.index.filename())
    return Error{ErrorCode::kConflict,
                 found.index.string() + ": the index of " + found.path.string() +
                     ", but by its name that of another file; remove it, and make it again "
                     "('ffrecord index')"};
  const FileState state = FFR_TRY(StateOf(found.path));
  if (!IsAsIndexed(found, state))
    return Error{ErrorCode::kConflict, found.path.string() + ": " + HasChangedText(found)};
  FFR_TRY(CheckDescription(found.path, found.front.description));
  return found;
}

// The parts of the file that a source and its index make.
Result<std::vector<Part>> PartsOf(const IndexedSource& source, std::uint32_t index_file,
                                  std::uint64_t index_size_bytes) {
  const std::uint64_t head = source.front.head_size_bytes;
  if (index_size_bytes < kBlock + head)
    return Error{ErrorCode::kCorruption, source.index.string() +
                                             ": the index is cut off; make it again ('ffrecord "
                                             "index')"};
  const std::uint64_t size = source.front.source_size_bytes;
  const std::uint64_t end = head + AlignUp(size, kBlock);
  return std::vector<Part>{{index_file, 0, head, head, kBlock},
                           {index_file + 1, head, end, head + size, 0},
                           {index_file, end, end + (index_size_bytes - kBlock - head),
                            end + (index_size_bytes - kBlock - head), kBlock + head}};
}

}  // namespace

std::filesystem::path SourceOf(const std::filesystem::path& path, const InPlaceFront& front) {
  const std::string& name = path.native();
  std::filesystem::path beside = name.substr(0, name.size() - std::strlen(kIndexSuffix));
  return Exists(beside) ? beside : std::filesystem::path(front.source_path);
}

Result<InPlaceFront> ReadInPlaceFront(const std::filesystem::path& path) {
  const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, false));
  std::array<std::byte, InPlaceFront::kSizeBytes> bytes;
  const auto size = std::min<std::uint64_t>(file.size_bytes, bytes.size());
  FFR_TRY(ReadExactly(file.fd.get(), path, 0, std::span(bytes).first(size)));
  auto front = DecodeInPlaceFront(std::span(bytes).first(size));
  if (front) return front;
  return Error{front.error().code,
               path.string() + ": " + front.error().message + "; make it again ('ffrecord index')"};
}

bool AnyIsIndexed(std::span<const std::filesystem::path> paths) {
  return std::ranges::any_of(paths, HasIndex);
}

Result<std::vector<IndexedSource>> FindIndexed(std::span<const std::filesystem::path> paths) {
  std::vector<IndexedSource> found;
  for (const auto& path : paths) found.push_back(FFR_TRY(FindOne(path)));
  return found;
}

Result<std::unique_ptr<RangeReader>> OpenIndexed(std::vector<IndexedSource> sources,
                                                 const SourceOptions& options) {
  std::vector<std::filesystem::path> paths;
  for (const IndexedSource& source : sources) {
    if (!source.index.empty()) paths.push_back(source.index);
    paths.push_back(source.path);
  }
  auto opened = FFR_TRY(OpenLocalFiles(paths, options));
  std::unique_ptr<LocalFiles> beneath(static_cast<LocalFiles*>(opened.release()));
  std::vector<Spliced> files;
  std::uint32_t next = 0;
  for (const IndexedSource& source : sources) {
    Spliced& file = files.emplace_back(Spliced{source.path.string(), {}, source.front.form});
    if (source.index.empty()) {
      const std::uint64_t size = beneath->file_size_bytes(next);
      file.parts = {{next, 0, size, size, 0}};
      next += 1;
    } else {
      if (beneath->file_size_bytes(next + 1) != source.front.source_size_bytes)
        return Error{ErrorCode::kConflict, file.name + ": " + HasChangedText(source)};
      file.parts = FFR_TRY(PartsOf(source, next, beneath->file_size_bytes(next)));
      next += 2;
    }
  }
  return std::unique_ptr<RangeReader>(
      std::make_unique<SplicedFiles>(std::move(sources), std::move(files), std::move(beneath)));
}

}  // namespace ffrecord
