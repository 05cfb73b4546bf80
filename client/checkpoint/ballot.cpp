#include "client/checkpoint/ballot.h"

#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord::client {
namespace {

void PutText(ByteWriter& writer, std::string_view text) {
  writer.Put(static_cast<std::uint32_t>(text.size()));
  writer.PutText(text);
}

std::string GetText(ByteReader& cursor) {
  return std::string(cursor.TakeText(cursor.Take<std::uint32_t>()));
}

void PutIntegers(ByteWriter& writer, std::span<const std::uint64_t> values) {
  writer.Put(static_cast<std::uint32_t>(values.size()));
  for (const std::uint64_t value : values) writer.Put(value);
}

std::string_view GetView(ByteReader& cursor) {
  return cursor.TakeText(cursor.Take<std::uint32_t>());
}

// Appends to `numbers`, which has room for them and so stays in its place.
std::span<const std::uint64_t> GetIntegers(ByteReader& cursor,
                                           std::vector<std::uint64_t>& numbers) {
  const auto count = cursor.Take<std::uint32_t>();
  if (count > kCheckpointDimensionsMax) cursor.TakeBytes(cursor.remaining() + 1);  // Bad.
  if (!cursor.ok()) return {};
  const std::size_t begin = numbers.size();
  for (std::uint32_t i = 0; i < count && cursor.ok(); ++i)
    numbers.push_back(cursor.Take<std::uint64_t>());
  return std::span(numbers).subspan(begin);
}

void PutTally(ByteWriter& writer, const BoxTally& tally) {
  writer.Put(tally.cover);
  writer.Put(tally.keys);
  writer.Put(tally.odd);
}

BoxTally GetTally(ByteReader& cursor) {
  BoxTally tally;
  for (std::uint64_t* const sum : {&tally.cover, &tally.keys, &tally.odd}) {
    *sum = cursor.Take<std::uint64_t>();
    if (*sum >= kTallyPrime) cursor.TakeBytes(cursor.remaining() + 1);  // Bad.
  }
  return tally;
}

Error Garbled() {
  return Error{ErrorCode::kUnavailable,
               "checkpoint: a rank's message is garbled; do all ranks run the same ffrecord?"};
}

Result<void> CheckWhole(const ByteReader& cursor) {
  if (!cursor.ok() || cursor.remaining() != 0) return Garbled();
  return {};
}

// A byte that says whether the rank succeeded, then its result or its failure.
std::vector<std::byte> EncodeResult(const Result<std::vector<std::byte>>& mine,
                                    std::string_view kind) {
  ByteWriter writer;
  writer.Put(static_cast<std::uint8_t>(mine ? 1 : 0));
  if (mine) {
    writer.PutBytes(mine.value());
    return std::move(writer).Take();
  }
  const Error& error = mine.error();
  writer.Put(static_cast<std::uint8_t>(error.code));
  writer.Put(static_cast<std::int32_t>(error.system_errno));
  PutText(writer, kind);
  PutText(writer, error.message);
  return std::move(writer).Take();
}

Result<RankResults::Failure> DecodeFailure(std::span<const std::byte> bytes, std::size_t rank) {
  ByteReader cursor(bytes);
  RankResults::Failure failure;
  failure.error.code = static_cast<ErrorCode>(cursor.Take<std::uint8_t>());
  failure.error.system_errno = cursor.Take<std::int32_t>();
  failure.kind = GetText(cursor);
  failure.error.message = "rank " + std::to_string(rank) + ": ";
  if (!failure.kind.empty()) failure.error.message += failure.kind + ": ";
  failure.error.message += GetText(cursor);
  FFR_TRY(CheckWhole(cursor));
  if (failure.error.code == ErrorCode::kOk) return Garbled();
  return failure;
}

Error Misplaced(const CheckpointGroup& group) {
  return Error{ErrorCode::kUnavailable,
               "checkpoint: the group calls this rank " + std::to_string(group.rank()) + " of " +
                   std::to_string(group.size()) +
                   ", but what it gathered in that place is not this rank's; all_gather returns "
                   "the bytes of ranks 0, 1 and so on, in that order"};
}

}  // namespace

Intent IntentOf(const PartPlan& plan) {
  const PartManifest& part = plan.part;
  return {part.step, part.attempt, BoxesOf(part), {}};
}

std::vector<std::byte> EncodePlanWord(const PlanWord& word) {
  ByteWriter writer;
  writer.Put(word.step);
  writer.PutBytes(word.attempt);
  PutTally(writer, word.tally);
  writer.Put(static_cast<std::uint8_t>(word.shares ? 1 : 0));
  return std::move(writer).Take();
}

Result<PlanWord> DecodePlanWord(std::span<const std::byte> bytes) {
  ByteReader cursor(bytes);
  PlanWord word;
  word.step = cursor.Take<std::uint64_t>();
  word.attempt = TakeId(cursor);
  word.tally = GetTally(cursor);
  word.shares = cursor.Take<std::uint8_t>() != 0;
  FFR_TRY(CheckWhole(cursor));
  return word;
}

std::vector<std::byte> EncodeTallies(const BoxTallies& tallies) {
  ByteWriter writer;
  for (const BoxTally& tally : tallies) PutTally(writer, tally);
  return std::move(writer).Take();
}

Result<BoxTallies> DecodeTallies(std::span<const std::byte> bytes) {
  ByteReader cursor(bytes);
  BoxTallies tallies;
  for (BoxTally& tally : tallies) tally = GetTally(cursor);
  FFR_TRY(CheckWhole(cursor));
  return tallies;
}

std::vector<std::byte> EncodeIntent(const Intent& intent) {
  ByteWriter writer;
  writer.Put(intent.step);
  writer.PutBytes(intent.attempt);
  writer.Put(static_cast<std::uint32_t>(intent.boxes.size()));
  for (const PlannedBox& box : intent.boxes) {
    PutText(writer, box.key);
    PutText(writer, box.dtype);
    PutIntegers(writer, box.shape);
    PutIntegers(writer, box.offset);
    PutIntegers(writer, box.extent);
  }
  return std::move(writer).Take();
}

Result<Intent> DecodeIntent(std::span<const std::byte> bytes) {
  ByteReader cursor(bytes);
  Intent intent;
  intent.step = cursor.Take<std::uint64_t>();
  intent.attempt = TakeId(cursor);
  const auto count = cursor.Take<std::uint32_t>();
  intent.numbers.reserve(bytes.size() / sizeof(std::uint64_t) + 1);
  for (std::uint32_t i = 0; i < count && cursor.ok(); ++i) {
    PlannedBox box;
    box.key = GetView(cursor);
    box.dtype = GetView(cursor);
    box.shape = GetIntegers(cursor, intent.numbers);
    box.offset = GetIntegers(cursor, intent.numbers);
    box.extent = GetIntegers(cursor, intent.numbers);
    if (cursor.ok() && !SizeOfBox(box.dtype, box.shape, box.offset, box.extent)) return Garbled();
    intent.boxes.push_back(box);
  }
  FFR_TRY(CheckWhole(cursor));
  return intent;
}

std::vector<std::byte> EncodePartReport(const PartReport& report) {
  ByteWriter writer;
  writer.Put(report.part.manifest_size_bytes);
  writer.PutBytes(report.part.manifest_digest);
  writer.Put(report.part.tensor_bytes);
  writer.Put(static_cast<std::uint32_t>(report.files.size()));
  for (const WrittenFile& file : report.files) {
    PutText(writer, file.name);
    writer.Put(static_cast<std::uint32_t>(file.entry.size()));
    writer.PutBytes(file.entry);
  }
  return std::move(writer).Take();
}

Result<PartReport> DecodePartReport(std::span<const std::byte> bytes) {
  ByteReader cursor(bytes);
  PartReport report;
  report.part.manifest_size_bytes = cursor.Take<std::uint64_t>();
  report.part.manifest_digest = TakeId(cursor);
  report.part.tensor_bytes = cursor.Take<std::uint64_t>();
  const auto count = cursor.Take<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && cursor.ok(); ++i) {
    WrittenFile file;
    file.name = GetText(cursor);
    const auto entry = cursor.TakeBytes(cursor.Take<std::uint32_t>());
    file.entry.assign(entry.begin(), entry.end());
    report.files.push_back(std::move(file));
  }
  FFR_TRY(CheckWhole(cursor));
  return report;
}

Result<RankResults> AllGatherResults(CheckpointGroup& group,
                                     const Result<std::vector<std::byte>>& mine,
                                     std::string_view kind) {
  RankResults all;
  const std::vector<std::byte> own = EncodeResult(mine, kind);
  all.results = FFR_TRY(group.AllGather(own));
  if (all.results.size() != group.size() || all.results.empty()) return Garbled();
  // Ranks that are not where the group says they are would commit what nobody can load.
  const bool is_in_place = group.rank() < all.results.size() && all.results[group.rank()] == own;
  for (std::size_t rank = 0; rank < all.results.size(); ++rank) {
    auto& bytes = all.results[rank];
    if (bytes.empty()) return Garbled();
    if (bytes.front() != std::byte{1}) {
      all.failure = FFR_TRY(DecodeFailure(std::span(bytes).subspan(1), rank));
      all.results.clear();
      return all;
    }
    bytes.erase(bytes.begin());
  }
  if (!is_in_place) return Misplaced(group);
  return all;
}

Result<std::vector<std::vector<std::byte>>> Agree(CheckpointGroup* group,
                                                  Result<std::vector<std::byte>> mine) {
  if (group == nullptr) {
    if (!mine) return std::move(mine).error();
    return std::vector<std::vector<std::byte>>(1, std::move(mine).value());
  }
  auto all = FFR_TRY(AllGatherResults(*group, mine));
  if (all.failure) return std::move(all.failure->error);
  return std::move(all.results);
}

}  // namespace ffrecord::client
