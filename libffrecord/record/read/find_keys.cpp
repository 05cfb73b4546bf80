#include "libffrecord/record/read/find_keys.h"

#include <algorithm>
#include <utility>

#include "libffrecord/source/gathered_reads.h"

namespace ffrecord {
namespace {

// Keys times files that are searched together: 4 MiB of notes.
constexpr std::size_t kOpenFilesMax = std::size_t{1} << 20;

// The files that have keys.
std::vector<std::uint32_t> KeyedFiles(const RecordReader::Impl& reader) {
  std::vector<std::uint32_t> files;
  for (std::uint32_t file = 0; file < reader.indexes.size(); ++file)
    if (reader.indexes[file]->has_keys()) files.push_back(file);
  return files;
}

// Where one key is.
class KeySearch {
 public:
  KeySearch(const RecordReader::Impl& reader, std::span<const std::byte> key,
            std::vector<std::uint32_t> files)
      : reader_(reader), key_(key), open_files_(std::move(files)) {}

  // Searches the files in order until the key is found.
  void SearchInOrder() {
    for (const std::uint32_t file : open_files_)
      if (Note(file, Search(file, *reader_.source))) return;
  }

  // Searches as far as `bytes` has what it needs. True: it has ended.
  bool SearchSome(const GatheredReads& bytes) {
    std::vector<std::uint32_t> lacking;
    for (const std::uint32_t file : open_files_) {
      const std::uint64_t misses = bytes.miss_count();
      auto found = Search(file, bytes);
      if (bytes.miss_count() != misses)
        lacking.push_back(file);
      else if (Note(file, std::move(found)))
        break;  // The files behind it do not count.
    }
    open_files_ = std::move(lacking);
    return open_files_.empty();
  }

  Result<std::optional<std::uint64_t>> Take() { return std::move(outcome_); }

 private:
  using Found = Result<std::optional<std::uint64_t>>;

  Found Search(std::uint32_t file, const RangeReader& bytes) const {
    return reader_.indexes[file]->FindKey(key_, bytes);
  }

  // False: the key is not in the file.
  bool Note(std::uint32_t file, Found found) {
    if (found && !found.value()) return false;
    if (found) {
      outcome_ = std::optional<std::uint64_t>(reader_.first_indexes[file] + *found.value());
    } else {
      Error error = std::move(found).error();
      error.message = reader_.source->file_name(file) + ": " + error.message;
      outcome_ = std::move(error);
    }
    return true;
  }

  const RecordReader::Impl& reader_;
  const std::span<const std::byte> key_;
  std::vector<std::uint32_t> open_files_;
  Found outcome_ = std::optional<std::uint64_t>();
};

// Searches for all of them at once.
Result<void> SearchTogether(const RecordReader::Impl& reader, std::span<KeySearch> searches,
                            Patience& patience) {
  GatheredReads bytes(*reader.source);
  std::vector<KeySearch*> open;
  for (KeySearch& search : searches) open.push_back(&search);
  for (;;) {
    std::erase_if(open, [&](KeySearch* search) { return search->SearchSome(bytes); });
    if (open.empty()) return {};
    FFR_TRY(bytes.ReadNoted(patience));
  }
}

}  // namespace

Result<std::vector<std::optional<std::uint64_t>>> FindKeys(
    const RecordReader::Impl& reader, std::span<const std::span<const std::byte>> keys,
    Patience& patience) {
  const auto files = KeyedFiles(reader);
  const std::size_t together =
      std::max<std::size_t>(kOpenFilesMax / std::max<std::size_t>(files.size(), 1), 1);
  std::vector<std::optional<std::uint64_t>> found;
  found.reserve(keys.size());
  while (found.size() < keys.size()) {
    const auto rest = keys.subspan(found.size());
    std::vector<KeySearch> searches;
    for (const auto key : rest.first(std::min(rest.size(), together)))
      searches.emplace_back(reader, key, files);
    if (reader.source->reads_indexes())
      FFR_TRY(SearchTogether(reader, searches, patience));
    else
      for (KeySearch& search : searches) search.SearchInOrder();
    for (KeySearch& search : searches) found.push_back(FFR_TRY(search.Take()));
  }
  return found;
}

}  // namespace ffrecord
