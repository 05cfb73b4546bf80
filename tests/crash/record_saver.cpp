// Appends records to a file, to be cut off while it does: record-saver append FILE COMMITS prints
// "committed RECORDS" after each commit. record-saver create FILE RECORDS makes such a file at
// once. record-saver check FILE prints "records COUNT" if FILE opens and each record is what it
// ought to be, which is a function of its index.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

namespace ffrecord {
namespace {

constexpr std::uint64_t kRecordsPerCommit = 30;

std::vector<std::byte> RecordOf(std::uint64_t index) {
  std::vector<std::byte> record(50'000 + index * 7919 % 50'000);
  for (std::size_t i = 0; i < record.size(); ++i)
    record[i] = static_cast<std::byte>((i * 31 + i / 251 + index * 7) % 251);
  return record;
}

int Failed(const Error& error) {
  std::cerr << error.message << "\n";
  return 1;
}

int AppendTo(const std::string& path, std::uint64_t commit_count) {
  auto writer = RecordWriter::Append(path, {});
  if (!writer) return Failed(writer.error());
  for (std::uint64_t commit = 0; commit < commit_count; ++commit) {
    for (std::uint64_t i = 0; i < kRecordsPerCommit; ++i) {
      const auto written = writer.value().Write(RecordOf(writer.value().record_count()));
      if (!written) return Failed(written.error());
    }
    const auto committed = writer.value().Commit();
    if (!committed) return Failed(committed.error());
    std::cout << "committed " << writer.value().record_count() << std::endl;
  }
  const auto closed = writer.value().Close();
  return closed ? 0 : Failed(closed.error());
}

int Create(const std::string& path, std::uint64_t record_count) {
  auto writer = RecordWriter::Create(path, {}, {});
  if (!writer) return Failed(writer.error());
  for (std::uint64_t i = 0; i < record_count; ++i) {
    const auto written = writer.value().Write(RecordOf(i));
    if (!written) return Failed(written.error());
  }
  const auto closed = writer.value().Close();
  return closed ? 0 : Failed(closed.error());
}

int Check(const std::filesystem::path& path) {
  const auto reader = RecordReader::Open(std::span(&path, 1), {});
  if (!reader) return Failed(reader.error());
  std::vector<std::uint64_t> indices(reader.value().record_count());
  std::iota(indices.begin(), indices.end(), std::uint64_t{0});
  const auto batch = reader.value().ReadBatch(indices);
  if (!batch) return Failed(batch.error());
  for (const std::uint64_t index : indices) {
    const ErrorCode status = batch.value().statuses()[index];
    if (status != ErrorCode::kOk) return Failed({status, reader.value().Describe(index, status)});
    const auto record = batch.value().record(index);
    if (!std::ranges::equal(record, RecordOf(index)))
      return Failed({ErrorCode::kCorruption, "record " + std::to_string(index) + " is another"});
  }
  std::cout << "records " << indices.size() << "\n";
  return 0;
}

int Run(const std::vector<std::string>& arguments) {
  const std::uint64_t number =
      arguments.size() == 3 ? std::strtoull(arguments[2].c_str(), nullptr, 10) : 0;
  if (arguments.size() == 3 && arguments[0] == "append") return AppendTo(arguments[1], number);
  if (arguments.size() == 3 && arguments[0] == "create") return Create(arguments[1], number);
  if (arguments.size() == 2 && arguments[0] == "check") return Check(arguments[1]);
  return 2;
}

}  // namespace
}  // namespace ffrecord

int main(int count, char** arguments) { return ffrecord::Run({arguments + 1, arguments + count}); }
