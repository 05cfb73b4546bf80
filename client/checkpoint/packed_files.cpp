#include "client/checkpoint/packed_files.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "client/checkpoint/aligned_part.h"
#include "client/checkpoint/files_with_copies.h"
#include "libffrecord/base/align.h"
#include "libffrecord/format/packed_file.h"
#include "libffrecord/source/file_copies.h"

namespace ffrecord::client {
namespace {

// Frames that are read in one submission: 4 MiB at most.
constexpr std::size_t kFramesAtOnce = 8;
constexpr std::uint64_t kSpoolReadSize = std::uint64_t{4} << 20;

Result<std::vector<std::byte>> ReadBytes(const RangeReader& files, std::uint32_t file,
                                         std::uint64_t offset, std::uint64_t size) {
  const AlignedPart part(offset, size, files.alignment_bytes(file));
  const PooledBuffer buffer = FFR_TRY(files.TakeMemory(part.read_size));
  RangeRead range{file, part.begin, *buffer, ErrorCode::kOk};
  FFR_TRY(files.Read({&range, 1}));
  if (range.status != ErrorCode::kOk)
    return Error{range.status,
                 files.file_name(file) + ": reading at " + std::to_string(offset) + " failed"};
  const auto wanted = buffer->subspan(part.skipped, size);
  return std::vector<std::byte>(wanted.begin(), wanted.end());
}

// Reads them from another copy of the file, if there is one, where `is_right` does not hold: else
// they are returned as they are.
Result<std::vector<std::byte>> ReadRightBytes(const RangeReader& files, std::uint32_t file,
                                              std::uint64_t offset, std::uint64_t size,
                                              const FileCopies::IsRight& is_right) {
  auto bytes = FFR_TRY(ReadBytes(files, file, offset, size));
  if (is_right(bytes)) return bytes;
  const auto copy = FileCopies::ReadRight(files, file, offset, size, is_right);
  if (copy)
    std::ranges::copy(copy.value()->first(size), bytes.begin());
  else if (copy.error().code != ErrorCode::kCorruption)
    return copy.error();
  return bytes;
}

Result<PackedTable> ReadTable(const RangeReader& files, std::uint32_t file) {
  const std::uint64_t size = files.file_size_bytes(file);
  const auto named = [&](Error error) {
    error.message = files.file_name(file) + ": " + error.message;
    return error;
  };
  if (size < kPackedFooterSize)
    return named({ErrorCode::kCorruption, "a packed file is malformed: it is too short"});
  const auto is_footer = [&](std::span<const std::byte> bytes) {
    return static_cast<bool>(DecodePackedFooter(bytes, size));
  };
  const auto footer_bytes =
      FFR_TRY(ReadRightBytes(files, file, size - kPackedFooterSize, kPackedFooterSize, is_footer));
  const auto footer = DecodePackedFooter(footer_bytes, size);
  if (!footer) return named(footer.error());
  const auto is_table = [&](std::span<const std::byte> bytes) {
    return static_cast<bool>(DecodePackedTable(footer.value(), bytes));
  };
  const auto table_bytes = FFR_TRY(ReadRightBytes(files, file, footer.value().table_offset_bytes,
                                                  footer.value().table_size_bytes(), is_table));
  auto table = DecodePackedTable(footer.value(), table_bytes);
  if (!table) return named(table.error());
  return table;
}

// Leaves out the copies of `file` that are shorter or longer than it was made. No manifest has the
// size of a packed file: it is the size at which a copy has a footer. The largest is tried first,
// so that no whole copy is taken for damaged at the size of a cut one.
void LeaveOutOtherSizes(RangeReader& files, std::uint32_t file) {
  auto* const sized = dynamic_cast<SizedCopies*>(&files);
  if (sized == nullptr) return;
  const auto sizes = sized->SizesOf(file);
  if (sizes.size() < 2) return;
  for (const std::uint64_t size : sizes) {
    if (size < kPackedFooterSize) return;
    const auto is_footer = [&](std::span<const std::byte> bytes) {
      return static_cast<bool>(DecodePackedFooter(bytes, size));
    };
    const auto footer =
        FileCopies::ReadRight(files, file, size - kPackedFooterSize, kPackedFooterSize, is_footer);
    if (footer) return sized->LeaveOutOtherSizes(file, size);
  }
}

class PackedFiles final : public RangeReader, public FileCopies {
 public:
  static Result<std::unique_ptr<RangeReader>> Open(std::unique_ptr<RangeReader> packed) {
    std::unique_ptr<PackedFiles> files(new PackedFiles(std::move(packed)));
    for (std::uint32_t i = 0; i < files->packed_->file_count(); ++i) {
      LeaveOutOtherSizes(*files->packed_, i);
      files->tables_.push_back(FFR_TRY(ReadTable(*files->packed_, i)));
    }
    return std::unique_ptr<RangeReader>(std::move(files));
  }

  std::size_t file_count() const noexcept override { return tables_.size(); }
  const std::string& file_name(std::uint32_t file) const noexcept override {
    return packed_->file_name(file);
  }
  std::uint64_t file_size_bytes(std::uint32_t file) const noexcept override {
    return tables_[file].raw_size_bytes;
  }
  std::uint32_t alignment_bytes(std::uint32_t /*file*/) const noexcept override { return 1; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    std::vector<Part> parts;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      ranges[i].status = PassesEnd(ranges[i]) ? ErrorCode::kCorruption : ErrorCode::kOk;
      if (ranges[i].status == ErrorCode::kOk) Cut(ranges[i], i, parts);
    }
    std::ranges::stable_sort(parts, {},
                             [](const Part& part) { return std::tuple(part.file, part.frame); });
    for (auto begin = parts.begin(); begin != parts.end();) {
      auto end = begin;
      for (std::size_t frames = 0; end != parts.end(); ++end)
        if ((end == begin || !end->IsOfFrame(*std::prev(end))) && frames++ == kFramesAtOnce) break;
      if (patience.IsOver()) return GivenUp();
      FFR_TRY(ReadParts({begin, end}, ranges));
      begin = end;
    }
    for (RangeRead& range : ranges) arrived(range);
    return {};
  }

  // Frames that are stored as they are have no checksum: their reader's tells which copy is right.
  Result<PooledBuffer> ReadFromCopies(std::uint32_t file, std::uint64_t offset, std::uint64_t size,
                                      const IsRight& is_right, Patience& patience) const override {
    const FileCopies* const copies = FileCopies::Of(*packed_);
    if (copies == nullptr || size == 0)
      return Error{ErrorCode::kCorruption, "there is one copy of the file"};
    const PackedTable& table = tables_[file];
    const std::uint64_t first = offset / kPackedFrameSize;
    const std::uint64_t end = (offset + size - 1) / kPackedFrameSize + 1;
    std::vector<std::byte> raw(std::min(end * kPackedFrameSize, table.raw_size_bytes) -
                               first * kPackedFrameSize);
    const auto wanted = std::span(raw).subspan(offset - first * kPackedFrameSize, size);
    const auto unpack = [&](std::span<const std::byte> stored) {
      return UnpackFrames(table, first, stored, raw) && is_right(wanted);
    };
    const std::uint64_t stored_size = table.offsets[end] - table.offsets[first];
    const auto stored =
        FFR_TRY(copies->ReadFromCopies(file, table.offsets[first], stored_size, unpack, patience));
    unpack(*stored);  // Other copies may have been looked at since.
    auto memory = FFR_TRY(BufferPool::Process().Take(size));
    std::ranges::copy(wanted, memory->begin());
    return memory;
  }
  std::vector<std::string> DamagedCopies(std::uint32_t file) const override {
    const FileCopies* const copies = FileCopies::Of(*packed_);
    return copies == nullptr ? std::vector<std::string>() : copies->DamagedCopies(file);
  }

  std::string Trouble(std::uint32_t file, ErrorCode status) const override {
    return packed_->Trouble(file, status);
  }
  bool HasChanged() const override { return packed_->HasChanged(); }
  Report report() const override { return packed_->report(); }

 private:
  // The part of one range that lies in one frame.
  struct Part {
    std::uint32_t file;
    std::uint64_t frame;
    std::uint64_t begin;  // In the frame.
    std::span<std::byte> destination;
    std::size_t range;

    bool IsOfFrame(const Part& other) const { return file == other.file && frame == other.frame; }
  };
  // A frame on its way.
  struct Stored {
    AlignedPart part;
    std::span<std::byte> bytes;
  };

  explicit PackedFiles(std::unique_ptr<RangeReader> packed) : packed_(std::move(packed)) {}

  // Frames from `first` on, which lie behind each other in `stored`, and fill `raw`.
  static bool UnpackFrames(const PackedTable& table, std::uint64_t first,
                           std::span<const std::byte> stored, std::span<std::byte> raw) {
    std::vector<std::byte> planes;
    for (std::uint64_t number = first; !raw.empty(); ++number) {
      const PackedFrame& frame = table.frames[number];
      const auto part = raw.first(std::min<std::uint64_t>(kPackedFrameSize, raw.size()));
      const auto bytes =
          stored.subspan(table.offsets[number] - table.offsets[first], frame.stored_size_bytes);
      if (!UnpackFrame(frame, bytes, part, planes)) return false;
      raw = raw.subspan(part.size());
    }
    return true;
  }

  static void Cut(const RangeRead& range, std::size_t index, std::vector<Part>& parts) {
    for (std::size_t done = 0; done < range.destination.size();) {
      const std::uint64_t at = range.offset_bytes + done;
      const std::uint64_t begin = at % kPackedFrameSize;
      const std::size_t count =
          std::min<std::uint64_t>(kPackedFrameSize - begin, range.destination.size() - done);
      parts.push_back({range.file, at / kPackedFrameSize, begin,
                       range.destination.subspan(done, count), index});
      done += count;
    }
  }

  // `parts` are of at most kFramesAtOnce frames, and sorted by them.
  Result<void> ReadParts(std::span<const Part> parts, std::span<RangeRead> ranges) const {
    std::vector<Stored> stored;
    std::uint64_t room = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0 && parts[i].IsOfFrame(parts[i - 1])) continue;
      const PackedTable& table = tables_[parts[i].file];
      const std::uint64_t offset = table.offsets[parts[i].frame];
      const AlignedPart part(offset, table.offsets[parts[i].frame + 1] - offset,
                             packed_->alignment_bytes(parts[i].file));
      stored.push_back({part, {}});
      room += AlignUp(part.read_size, BufferPool::kAlignment);
    }
    const PooledBuffer buffer = FFR_TRY(packed_->TakeMemory(room));
    std::vector<RangeRead> reads;
    std::uint64_t used = 0;
    for (std::size_t i = 0, frame = 0; i < parts.size(); ++i) {
      if (i > 0 && parts[i].IsOfFrame(parts[i - 1])) continue;
      Stored& one = stored[frame++];
      one.bytes = buffer->subspan(used, one.part.read_size);
      used += AlignUp(one.part.read_size, BufferPool::kAlignment);
      reads.push_back({parts[i].file, one.part.begin, one.bytes, ErrorCode::kOk});
    }
    FFR_TRY(packed_->Read(reads));
    Expand(parts, stored, reads, ranges);
    return {};
  }

  void Expand(std::span<const Part> parts, std::span<const Stored> stored,
              std::span<const RangeRead> reads, std::span<RangeRead> ranges) const {
    std::vector<std::byte> raw;
    std::vector<std::byte> planes;
    ErrorCode status = ErrorCode::kOk;
    for (std::size_t i = 0, next = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      if (i == 0 || !part.IsOfFrame(parts[i - 1])) {
        const PackedTable& table = tables_[part.file];
        const PackedFrame& frame = table.frames[part.frame];
        raw.resize(
            std::min(kPackedFrameSize, table.raw_size_bytes - part.frame * kPackedFrameSize));
        status = reads[next].status;
        if (status == ErrorCode::kOk) {
          const auto bytes =
              stored[next].bytes.subspan(stored[next].part.skipped, frame.stored_size_bytes);
          const auto unpack = [&](std::span<const std::byte> read) {
            return static_cast<bool>(UnpackFrame(frame, read, raw, planes));
          };
          if (!unpack(bytes)) {
            const auto copy = FileCopies::ReadRight(*packed_, part.file, table.offsets[part.frame],
                                                    bytes.size(), unpack);
            if (copy)
              unpack(*copy.value());  // Other copies may have been looked at since.
            else
              status = copy.error().code;
          }
        }
        ++next;
      }
      if (status != ErrorCode::kOk)
        ranges[part.range].status = status;
      else
        std::ranges::copy(std::span(raw).subspan(part.begin, part.destination.size()),
                          part.destination.begin());
    }
  }

  std::unique_ptr<RangeReader> packed_;
  std::vector<PackedTable> tables_;
};

}  // namespace

Result<std::unique_ptr<RangeReader>> OpenPackedFiles(std::unique_ptr<RangeReader> packed) {
  return PackedFiles::Open(std::move(packed));
}

Result<std::unique_ptr<RangeReader>> OpenSegments(const CommittedStep& step,
                                                  std::span<const std::string> names) {
  auto plain = step.OpenFiles(names);
  if (plain || plain.error().code != ErrorCode::kNotFound) return plain;
  std::vector<std::string> packed_names;
  for (const std::string& name : names) packed_names.push_back(name + std::string(kPackedSuffix));
  auto packed = step.OpenFiles(packed_names);
  if (!packed) return plain;  // Neither is there: who looks knows the plain one.
  return OpenPackedFiles(std::move(packed).value());
}

Result<PackedSpool> PackedSpool::Fill(std::uint64_t size_bytes, const FileSource& source) {
  const char* const given = std::getenv("TMPDIR");
  const std::filesystem::path folder = given != nullptr && *given != '\0' ? given : "/var/tmp";
  PackedSpool spool(FFR_TRY(ScratchFile::Create(folder / "ffrecord-packed")));
  FramePacker packer;
  std::vector<PackedFrame> frames;
  std::vector<std::byte> raw;
  for (std::uint64_t done = 0; done < size_bytes; done += raw.size()) {
    raw.clear();
    const std::uint64_t wanted = std::min(kPackedFrameSize, size_bytes - done);
    while (raw.size() < wanted) {
      const auto bytes = FFR_TRY(source(done + raw.size(), wanted - raw.size()));
      raw.insert(raw.end(), bytes.begin(), bytes.end());
    }
    const auto [frame, stored] = packer.Pack(raw);
    FFR_TRY(spool.file_.Append(stored));
    frames.push_back(frame);
  }
  FFR_TRY(spool.file_.Append(EncodePackedEnd(size_bytes, frames)));
  return spool;
}

Result<std::span<const std::byte>> PackedSpool::At(std::uint64_t offset, std::uint64_t size_max) {
  buffer_.resize(std::min({kSpoolReadSize, size_max, size_bytes() - offset}));
  FFR_TRY(file_.ReadAt(offset, buffer_));
  return std::span<const std::byte>(buffer_);
}

}  // namespace ffrecord::client
