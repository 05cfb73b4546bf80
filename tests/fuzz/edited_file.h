#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/place.h"

namespace ffrecord::fuzz {

// A good version 2 file in memory that a target edits, and whose checksums it then makes anew, so
// that the edits get past them. Knows the format from format.md alone; asks nothing of the
// code under test.
class EditedFile {
 public:
  // Bytes [begin, end) of the file.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  // Types of sections, and of what they point to.
  static constexpr std::uint32_t kSegmentDirectory = 1;
  static constexpr std::uint32_t kDictionary = 3;
  static constexpr std::uint32_t kKeyDirectory = 4;

  // The golden file of that name.
  static std::string Golden(const std::string& name) {
    std::ifstream file(std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v2" / (name + ".ffr"),
                       std::ios::binary);
    std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (content.size() < kHeaderSize + kTailSize) __builtin_trap();  // The tree is not whole.
    EditedFile untouched(content);
    untouched.ForgeChecksums();  // Checks that this class knows the format.
    if (untouched.content_ != content) __builtin_trap();
    return content;
  }

  // All golden files, by name.
  static std::vector<std::string> AllGolden() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(
             std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v2"))
      if (entry.path().extension() == ".ffr") names.push_back(entry.path().stem().string());
    std::ranges::sort(names);
    std::vector<std::string> contents;
    for (const std::string& name : names) contents.push_back(Golden(name));
    return contents;
  }

  explicit EditedFile(std::string content) : content_(std::move(content)) {}

  std::string Take() && { return std::move(content_); }

  // Header, footer and tail: what opens the file.
  std::vector<Range> Frame() const { return {{0, kHeaderSize}, {footer(), content_.size()}}; }

  // Where the sections of that type lie, and the pages that a directory names.
  std::vector<Range> Sections(std::uint32_t type) const {
    std::vector<Range> ranges;
    ForEachSection([&](std::size_t at) {
      if (Load32(at) != type) return;
      const std::size_t offset = Load(at + 8), size = Load(at + 16);
      if (!Fits(offset, size)) return;
      ranges.push_back({offset, offset + size});
      const std::size_t step = type == kKeyDirectory ? 16 : 8;
      if (type != kSegmentDirectory && type != kKeyDirectory) return;
      for (std::size_t run = offset; run + step <= offset + size; run += step) {
        const std::size_t pages = Load(run);
        const std::size_t count = type == kKeyDirectory ? PagesFor(Load(run + 8)) : SegmentPages();
        for (std::size_t page = 0; page < count && Fits(pages + page * kPage, kPage); ++page)
          ranges.push_back({pages + page * kPage, pages + (page + 1) * kPage});
      }
    });
    return ranges;
  }

  // What the index says the records are stored as.
  std::vector<Range> Payloads() const {
    std::vector<Range> ranges;
    ForEachPage([&](std::size_t page, std::uint64_t number) {
      ForEachEntry(page, number, [&](std::size_t entry, std::uint64_t) {
        const Range payload = PayloadOf(entry);
        if (payload.end > payload.begin) ranges.push_back(payload);
      });
    });
    return ranges;
  }

  // Header and contents of each block of keys.
  std::vector<Range> KeyBlocks() const {
    std::vector<Range> ranges;
    for (std::size_t at = content_.find(kKeyBlockMagic); at != std::string::npos;
         at = content_.find(kKeyBlockMagic, at + 1))
      if (Fits(at, kKeyBlockHeader) && Fits(at + kKeyBlockHeader, Load32(at + 20)))
        ranges.push_back({at, at + kKeyBlockHeader + Load32(at + 20)});
    return ranges;
  }

  // Each edit takes four bytes of `edits`: a place in `ranges`, u24, and the byte to be put there.
  void Apply(std::span<const std::uint8_t> edits, std::span<const Range> ranges) {
    std::size_t size = 0;
    for (const Range& range : ranges) size += range.end - range.begin;
    if (size == 0) return;
    for (; edits.size() >= 4; edits = edits.subspan(4)) {
      std::size_t place =
          (edits[0] | std::size_t{edits[1]} << 8 | std::size_t{edits[2]} << 16) % size;
      for (const Range& range : ranges) {
        if (place < range.end - range.begin) {
          content_[range.begin + place] = static_cast<char>(edits[3]);
          break;
        }
        place -= range.end - range.begin;
      }
    }
  }

  // Payloads first, then what holds their checks, up to the tail.
  void ForgeChecksums() {
    std::memcpy(id_.data(), content_.data() + 40, id_.size());
    Store(120, Xxh3(Bytes(0, 120)));
    for (const Range& block : KeyBlocks()) ForgeKeyBlock(block);
    const std::size_t tail = content_.size() - kTailSize;
    const std::size_t footer_size = Load(tail + 16);
    if (footer_size >= kFooterFixed && Fits(footer(), footer_size)) {
      ForEachSection([this](std::size_t at) { ForgeSection(at); });
      Store(tail + 24, Xxh3(Bytes(footer(), footer_size), Seed(kFooterTag, footer())));
    }
    Store(tail + 56, Xxh3(Bytes(tail, 56), Seed(kTailTag, tail)));
  }

 private:
  static constexpr std::size_t kHeaderSize = 128;
  static constexpr std::size_t kRecordHeader = 32;
  static constexpr std::size_t kTailSize = 64;
  static constexpr std::size_t kPage = 4096;
  static constexpr std::size_t kEntriesPerPage = 170;
  static constexpr std::size_t kEntry = 24;
  static constexpr std::size_t kFooterFixed = 64;
  static constexpr std::size_t kSection = 32;
  static constexpr std::size_t kKeyBlockHeader = 32;
  static constexpr std::string_view kKeyBlockMagic = "\xe5KEY";

  // format.md, "Seeds".
  static constexpr std::uint64_t kRecordTag = 0;
  static constexpr std::uint64_t kRecordHeaderTag = 1;
  static constexpr std::uint64_t kIndexPageTag = 2;
  static constexpr std::uint64_t kSectionTag = 3;
  static constexpr std::uint64_t kFooterTag = 4;
  static constexpr std::uint64_t kTailTag = 5;
  static constexpr std::uint64_t kSectionHeaderTag = 6;
  static constexpr std::uint64_t kKeyBlockHeaderTag = 7;
  static constexpr std::uint64_t kKeyPageTag = 11;
  static constexpr std::uint64_t kKeyBlockTag = 12;

  std::uint64_t Seed(std::uint64_t tag, std::uint64_t number) const {
    return PlaceSeed(id_, tag << 56 | number);
  }

  static std::size_t PagesFor(std::uint64_t entries) {
    return entries / kEntriesPerPage + (entries % kEntriesPerPage != 0);
  }

  std::uint64_t LoadBytes(std::size_t at, std::size_t size) const {
    std::uint64_t value = 0;
    std::memcpy(&value, content_.data() + at, size);
    return value;
  }
  std::uint64_t Load(std::size_t at) const { return LoadBytes(at, 8); }
  std::uint32_t Load32(std::size_t at) const {
    return static_cast<std::uint32_t>(LoadBytes(at, 4));
  }
  void Store(std::size_t at, std::uint64_t value) {
    std::memcpy(content_.data() + at, &value, sizeof value);
  }
  std::span<const std::byte> Bytes(std::size_t at, std::size_t size) const {
    return std::as_bytes(std::span(content_)).subspan(at, size);
  }
  bool Fits(std::uint64_t at, std::uint64_t size) const {
    return at <= content_.size() && size <= content_.size() - at;
  }

  std::size_t footer() const {
    return std::min<std::uint64_t>(Load(content_.size() - kTailSize + 8), content_.size());
  }
  std::size_t SegmentPages() const {
    return std::clamp<std::size_t>(Load32(60), 1, content_.size() / kPage);
  }

  // Gives the place of each section's entry in the footer.
  template <class Visit>
  void ForEachSection(const Visit& visit) const {
    const std::size_t end = footer() + Load(content_.size() - kTailSize + 16);
    if (end < footer() || end > content_.size()) return;
    for (std::size_t at = footer() + kFooterFixed; at + kSection <= end; at += kSection) visit(at);
  }

  void ForgeSection(std::size_t at) {
    const std::size_t offset = Load(at + 8), size = Load(at + 16);
    if (!Fits(offset, size) || offset >> 56 != 0) return;
    if (Load32(at) == kSegmentDirectory) ForgeIndex(offset, size);
    if (Load32(at) == kKeyDirectory) ForgeKeyPages(offset, size);
    const std::uint64_t check = Xxh3(Bytes(offset, size), Seed(kSectionTag, offset));
    Store(at + 24, check);
    if (offset < kHeaderSize + 32 || std::memcmp(&content_[offset - 32], "\xe5SEC", 4) != 0) return;
    Store(offset - 24, check);
    ForgeHeaderCheck(offset - 32, kSectionHeaderTag);
  }

  // The low half of a check at bytes [4, 8) over bytes [8, 32).
  void ForgeHeaderCheck(std::size_t at, std::uint64_t tag) {
    const auto check = static_cast<std::uint32_t>(Xxh3(Bytes(at + 8, 24), Seed(tag, at)));
    std::memcpy(&content_[at + 4], &check, sizeof check);
  }

  void ForgePage(std::size_t at, std::uint64_t tag, std::uint64_t number) {
    Store(at, Xxh3(Bytes(at + 8, kPage - 8), Seed(tag, number)));
  }

  // Gives the place and the number of each index page that `directory` names.
  template <class Visit>
  void ForEachPageOf(const Range& directory, const Visit& visit) const {
    const std::size_t pages_in_segment = SegmentPages();
    const std::size_t page_count = PagesFor(Load(footer() + 8));
    for (std::size_t segment = 0; directory.begin + 8 * (segment + 1) <= directory.end; ++segment)
      for (std::size_t i = 0; i < pages_in_segment; ++i) {
        const std::size_t at = Load(directory.begin + 8 * segment) + i * kPage;
        const std::uint64_t number = segment * pages_in_segment + i;
        if (number >= page_count || !Fits(at, kPage)) break;
        visit(at, number);
      }
  }
  template <class Visit>
  void ForEachPage(const Visit& visit) const {
    ForEachSection([&](std::size_t at) {
      const std::size_t offset = Load(at + 8), size = Load(at + 16);
      if (Load32(at) == kSegmentDirectory && Fits(offset, size))
        ForEachPageOf({offset, offset + size}, visit);
    });
  }

  // Gives the place and the record index of each entry of a page.
  template <class Visit>
  void ForEachEntry(std::size_t page, std::uint64_t number, const Visit& visit) const {
    const auto count = std::min<std::size_t>(Load32(page + 8), kEntriesPerPage);
    for (std::size_t slot = 0; slot < count; ++slot)
      visit(page + 16 + slot * kEntry, number * kEntriesPerPage + slot);
  }

  // Empty if the entry names none.
  Range PayloadOf(std::size_t entry) const {
    const std::uint64_t offset = LoadBytes(entry + 8, 6), size = LoadBytes(entry + 14, 5);
    if (offset < kHeaderSize + kRecordHeader || !Fits(offset, size)) return {};
    return {offset, offset + size};
  }

  void ForgeIndex(std::size_t directory, std::size_t size) {
    ForEachPageOf({directory, directory + size}, [this](std::size_t at, std::uint64_t number) {
      ForEachEntry(at, number,
                   [this](std::size_t entry, std::uint64_t index) { ForgeRecord(entry, index); });
      ForgePage(at, kIndexPageTag, number);
    });
  }

  // The check of the payload that an entry names, and the record's header if it is there.
  void ForgeRecord(std::size_t entry, std::uint64_t index) {
    const Range payload = PayloadOf(entry);
    if (payload.begin == 0) return;
    const std::uint64_t check =
        Xxh3(Bytes(payload.begin, payload.end - payload.begin), Seed(kRecordTag, index));
    Store(entry, check);
    const std::size_t header = payload.begin - kRecordHeader;
    if (std::memcmp(&content_[header], "\xe5REC", 4) != 0) return;
    Store(header + 8, check);
    ForgeHeaderCheck(header, kRecordHeaderTag);
  }

  void ForgeKeyBlock(const Range& block) {
    const std::size_t contents = block.begin + kKeyBlockHeader;
    Store(block.begin + 8,
          Xxh3(Bytes(contents, block.end - contents), Seed(kKeyBlockTag, block.begin)));
    ForgeHeaderCheck(block.begin, kKeyBlockHeaderTag);
  }

  void ForgeKeyPages(std::size_t directory, std::size_t size) {
    for (std::size_t run = directory; run + 16 <= directory + size; run += 16)
      for (std::size_t i = 0; i < PagesFor(Load(run + 8)); ++i) {
        const std::size_t at = Load(run) + i * kPage;
        if (!Fits(at, kPage)) break;
        ForgePage(at, kKeyPageTag, at);
      }
  }

  std::string content_;
  FileId id_{};
};

}  // namespace ffrecord::fuzz
