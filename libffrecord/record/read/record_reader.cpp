#include <ffrecord/record_reader.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/format/fingerprint.h"
#include "libffrecord/record/index/spliced_files.h"
#include "libffrecord/record/read/batch_queue.h"
#include "libffrecord/record/read/find_keys.h"
#include "libffrecord/record/read/index_fetches.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/record/read/read_batch.h"
#include "libffrecord/record/read/read_column.h"
#include "libffrecord/record/read/record_reader_impl.h"
#include "libffrecord/source/file_copies.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord {
namespace {

Result<void> CheckOptions(const RecordReader::Options& options) {
  constexpr std::uint32_t kQueueDepthMax = 4096;
  if (options.queue_depth < 1 || options.queue_depth > kQueueDepthMax)
    return Error{ErrorCode::kInvalidArgument, "open records: queue_depth is " +
                                                  std::to_string(options.queue_depth) +
                                                  ", must be 1 to 4096"};
  return {};
}

// The result of `read` for the index of that file. Messages name the file; fails with kOutOfRange
// if there is none.
template <typename Read>
auto ReadOfFile(const RecordReader::Impl& impl, std::size_t file_index, const Read& read)
    -> decltype(read(*impl.indexes.front())) {
  if (file_index >= impl.indexes.size())
    return Error{ErrorCode::kOutOfRange, "file " + std::to_string(file_index) + ": there are " +
                                             std::to_string(impl.indexes.size()) + " files"};
  auto found = read(*impl.indexes[file_index]);
  if (found) return found;
  Error error = std::move(found).error();
  error.message =
      impl.source->file_name(static_cast<std::uint32_t>(file_index)) + ": " + error.message;
  return error;
}

}  // namespace

std::uint32_t RecordReader::Impl::FileOf(std::uint64_t index) const noexcept {
  FFR_ASSERT(index < record_count());
  const auto holds = [&](std::uint32_t file) {
    return first_indexes[file] <= index && index < first_indexes[file + 1];
  };
  const double share = static_cast<double>(index) / static_cast<double>(record_count());
  const auto guess =
      std::min(static_cast<std::uint32_t>(share * static_cast<double>(indexes.size())),
               static_cast<std::uint32_t>(indexes.size() - 1));
  if (holds(guess)) return guess;
  // The last file that begins at or before `index`: files without records begin there too, but
  // stand before it.
  const auto after = std::upper_bound(first_indexes.begin(), first_indexes.end(), index);
  return static_cast<std::uint32_t>(after - first_indexes.begin() - 1);
}

Result<RecordReader> OpenRecords(std::shared_ptr<const RangeReader> source,
                                 const RecordReader::Options& options, PrefetchHinter hinter) {
  auto checked = CheckOptions(options);
  if (!checked) return std::move(checked).error();
  if (source->file_count() == 0)
    return Error{ErrorCode::kInvalidArgument, "open records: the list of files is empty"};
  auto impl = std::make_unique<RecordReader::Impl>();
  impl->source = std::move(source);
  impl->options = options;
  impl->hinter = std::move(hinter);
  impl->indexes = FFR_TRY(OpenIndexes(*impl->source, options));
  impl->schema = std::make_shared<Schema>(impl->indexes.front()->schema());
  ListFingerprint fingerprint;
  std::uint64_t first_index = 0;
  for (std::uint32_t file = 0; file < impl->indexes.size(); ++file) {
    const FileIndex& index = *impl->indexes[file];
    if (!(index.schema() == *impl->schema))
      return Error{ErrorCode::kInvalidArgument,
                   "open records: the columns of " + impl->source->file_name(file) +
                       " are not those of " + impl->source->file_name(0) +
                       "; open them separately"};
    impl->first_indexes.push_back(first_index);
    if (impl->source->form(file).records != RecordForm::kPlain) impl->forms_records = true;
    fingerprint.Add(index.record_count(), index.fingerprint());
    if (index.record_count() > kRecordCountMax - first_index)
      return Error{ErrorCode::kInvalidArgument,
                   "open records: the list has more than 2^48 records"};
    first_index += index.record_count();
  }
  impl->first_indexes.push_back(first_index);
  impl->fingerprint = fingerprint.Finish();
  return RecordReader(std::move(impl));
}

Result<RecordReader> OpenRecordsAgain(
    const std::function<Result<std::unique_ptr<RangeReader>>()>& open_source,
    const RecordReader::Options& options) {
  constexpr int kCountMax = 8;  // An appender cuts once.
  for (int count = 1;; ++count) {
    std::shared_ptr<const RangeReader> source = FFR_TRY(open_source());
    auto reader = OpenRecords(source, options);
    if (reader || reader.error().code != ErrorCode::kCorruption || count == kCountMax)
      return reader;
    if (!source->HasChanged()) return reader;
  }
}

Result<RecordReader> RecordReader::Open(std::span<const std::filesystem::path> paths,
                                        const Options& options) {
  auto checked = CheckOptions(options);
  if (!checked) return std::move(checked).error();
  return OpenRecordsAgain(
      [&]() -> Result<std::unique_ptr<RangeReader>> {
        const SourceOptions source{options.io, options.queue_depth};
        if (AnyIsIndexed(paths)) return OpenIndexed(FFR_TRY(FindIndexed(paths)), source);
        return OpenLocalFiles(paths, source);
      },
      options);
}

RecordReader::RecordReader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RecordReader::RecordReader(RecordReader&&) noexcept = default;
RecordReader& RecordReader::operator=(RecordReader&&) noexcept = default;
RecordReader::~RecordReader() = default;

std::uint64_t RecordReader::record_count() const noexcept { return impl_->record_count(); }
const Schema& RecordReader::schema() const noexcept { return *impl_->schema; }
std::size_t RecordReader::file_count() const noexcept { return impl_->indexes.size(); }
std::array<std::byte, 16> RecordReader::fingerprint() const noexcept { return impl_->fingerprint; }

Result<std::unique_ptr<PrefetchHint>> RecordReader::HintEpoch(const EpochPlan& plan) const {
  if (!impl_->hinter || plan.in_file_order) return std::unique_ptr<PrefetchHint>();
  return impl_->hinter(plan);
}

RecordReader::FileInfo RecordReader::file(std::size_t file_index) const {
  FFR_ASSERT(file_index < impl_->indexes.size());
  const FileIndex& index = *impl_->indexes[file_index];
  const auto number = static_cast<std::uint32_t>(file_index);
  std::vector<std::string> warnings(index.warnings().begin(), index.warnings().end());
  if (const FileCopies* const copies = FileCopies::Of(*impl_->source))
    std::ranges::move(copies->DamagedCopies(number), std::back_inserter(warnings));
  return {.name = impl_->source->file_name(number),
          .format_version = index.format_version(),
          .size_bytes = impl_->source->file_size_bytes(number),
          .record_count = index.record_count(),
          .first_index = impl_->first_indexes[file_index],
          .fingerprint = index.fingerprint(),
          .warnings = std::move(warnings),
          .in_place = impl_->source->form(number).is_spliced};
}

Result<Metadata> RecordReader::metadata(std::size_t file_index, const GiveUp& give_up) const {
  const Patience patience(give_up);
  return ReadOfFile(*impl_, file_index,
                    [](const FileIndex& index) { return index.ReadMetadata(); });
}

RecordReader::IoReport RecordReader::io_report() const {
  const RangeReader::Report source = impl_->source->report();
  return {source.policy, impl_->batches_from_memory.load(), impl_->batches_read.load(),
          impl_->stages.Load(), source.store};
}

Result<Batch> RecordReader::ReadBatch(std::span<const std::uint64_t> indices,
                                      const GiveUp& give_up) const {
  Patience patience(give_up);
  return ReadRecords(*impl_, indices, patience);
}

Result<BatchQueue> RecordReader::OpenQueue(const BatchQueue::Options& options) const {
  return OpenBatchQueue(*impl_, options);
}

Result<void> RecordReader::ReadColumn(std::size_t column, std::uint64_t first, std::uint64_t count,
                                      std::span<std::byte> destination,
                                      const GiveUp& give_up) const {
  Patience patience(give_up);
  return ReadColumnOf(*this, *impl_, column, first, count, destination, patience);
}

Result<void> RecordReader::ReadSizes(std::span<const std::uint64_t> indices,
                                     std::span<std::int64_t> sizes_bytes,
                                     const GiveUp& give_up) const {
  for (const std::uint64_t index : indices)
    if (index >= record_count())
      return Error{ErrorCode::kOutOfRange, "the size of record " + std::to_string(index) +
                                               ": there are " + std::to_string(record_count())};
  Patience patience(give_up);
  const IndexFailures failures = FetchLacking(*impl_, indices, patience);
  if (patience.was_over()) return GivenUp();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint32_t file = impl_->FileOf(indices[i]);
    const FileIndex& index = *impl_->indexes[file];
    const std::uint64_t index_in_file = indices[i] - impl_->first_indexes[file];
    RecordLocation location;
    ErrorCode found = failures.empty() ? ErrorCode::kOk : failures.Of(index, index_in_file);
    if (found == ErrorCode::kOk) found = index.Locate(index_in_file, location);
    const bool is_damaged = found == ErrorCode::kCorruption;
    if (found != ErrorCode::kOk && !is_damaged) return Error{found, Describe(indices[i], found)};
    sizes_bytes[i] = is_damaged ? 0 : static_cast<std::int64_t>(location.raw_size_bytes);
  }
  return {};
}

Result<std::optional<std::uint64_t>> RecordReader::Find(std::span<const std::byte> key) const {
  return FFR_TRY(FindAll({&key, 1})).front();
}

Result<std::vector<std::optional<std::uint64_t>>> RecordReader::FindAll(
    std::span<const std::span<const std::byte>> keys, const GiveUp& give_up) const {
  const auto& indexes = impl_->indexes;
  if (!keys.empty() && std::none_of(indexes.begin(), indexes.end(),
                                    [](const auto& index) { return index->has_keys(); }))
    return Error{
        ErrorCode::kInvalidArgument,
        "find a key: " + impl_->source->file_name(0) +
            (indexes.size() > 1 ? " and the other files of the list were" : std::string(" was")) +
            " written without keys; look records up by index, or write them again with "
            "keys (Writer(key=...))"};
  Patience patience(give_up);
  return FindKeys(*impl_, keys, patience);
}

Result<RecordReader::Keys> RecordReader::ReadKeys(std::size_t file_index,
                                                  const GiveUp& give_up) const {
  const Patience patience(give_up);
  return ReadOfFile(*impl_, file_index, [](const FileIndex& index) { return index.ReadKeys(); });
}

Result<RecordReader::KeyOrigin> RecordReader::ReadKeyOrigin(std::size_t file_index,
                                                            const GiveUp& give_up) const {
  const Patience patience(give_up);
  return ReadOfFile(*impl_, file_index,
                    [](const FileIndex& index) { return index.ReadKeyOrigin(); });
}

std::string RecordReader::Describe(std::uint64_t index, ErrorCode status) const {
  if (index >= record_count())
    return "record " + std::to_string(index) + " is out of range: there are " +
           std::to_string(record_count()) + " records";
  const std::uint32_t file = impl_->FileOf(index);
  const FileIndex& file_index = *impl_->indexes[file];
  const std::uint64_t index_in_file = index - impl_->first_indexes[file];
  std::string text = impl_->source->file_name(file) + ": record " + std::to_string(index_in_file);
  if (status == ErrorCode::kOk) return text + " is whole";
  if (const std::string why = file_index.Explain(index_in_file); !why.empty())
    return text + ": " + why;
  if (const std::string trouble = impl_->source->Trouble(file, status); !trouble.empty())
    return text + ": " + trouble;
  RecordLocation location;
  if (file_index.Locate(index_in_file, location) == ErrorCode::kOk)
    text += ", " + std::to_string(location.stored_size_bytes) + " bytes at " +
            std::to_string(location.offset_bytes);
  switch (status) {
    case ErrorCode::kCorruption:
      return text +
             ": its bytes fail their checksum or the file ends before them; the file was "
             "damaged after it was written";
    case ErrorCode::kUnavailable:
      return text + ": the daemon that serves it is gone or busy; try again";
    case ErrorCode::kDeadlineExceeded:
      return text + ": the daemon did not answer in time; try again";
    default:
      return text + ": the device or the kernel refused to read it";
  }
}

}  // namespace ffrecord
