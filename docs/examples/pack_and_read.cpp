// Packs labelled samples into one file, then reads a random batch of them.
//
//   c++ -std=c++20 pack_and_read.cpp $(pkg-config --cflags --libs ffrecord) -o pack_and_read
//   ./pack_and_read train.ffr

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/permutation.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

using ffrecord::ColumnType, ffrecord::Result;

// A thousand samples: a label, and bytes of any size that stand for a picture.
Result<void> Pack(const std::filesystem::path& path) {
  auto schema =
      FFR_TRY(ffrecord::Schema::Make({{"label", ColumnType::kI64}, {"image", ColumnType::kBytes}}));
  auto writer = FFR_TRY(ffrecord::RecordWriter::Create(path, std::move(schema), {.replace = true}));
  for (std::int64_t label = 0; label < 1000; ++label) {
    const std::string image = "picture " + std::to_string(label);
    const std::span<const std::byte> fields[] = {std::as_bytes(std::span(&label, 1)),
                                                 std::as_bytes(std::span(image))};
    FFR_TRY(writer.WriteFields(fields));
  }
  const ffrecord::WriteSummary summary = FFR_TRY(writer.Close());  // Now it is there, whole.
  std::printf("packed %llu records\n", static_cast<unsigned long long>(summary.record_count));
  return {};
}

// The first batch of epoch 0: one submission, one block of memory, nothing copied out of it.
Result<void> ReadBatch(const std::filesystem::path& path) {
  const auto reader = FFR_TRY(ffrecord::RecordReader::Open({&path, 1}, {}));
  const auto order = FFR_TRY(
      ffrecord::Permutation::Make(/*seed=*/7, /*epoch=*/0, /*lane=*/0, reader.record_count()));
  std::vector<std::uint64_t> indices(4);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = order(i);

  const auto batch = FFR_TRY(reader.ReadBatch(indices));
  std::vector<std::int64_t> labels(batch.size());
  FFR_TRY(batch.GatherFixed(0, std::as_writable_bytes(std::span(labels))));
  const auto images = FFR_TRY(batch.field(1));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch.statuses()[i] != ffrecord::ErrorCode::kOk) {  // One bad record spoils no other.
      std::printf("%s\n", reader.Describe(indices[i], batch.statuses()[i]).c_str());
      continue;
    }
    const char* image = reinterpret_cast<const char*>(batch.data().data()) + images.starts_bytes[i];
    std::printf("label %lld: %.*s\n", static_cast<long long>(labels[i]),
                static_cast<int>(images.sizes_bytes[i]), image);
  }
  return {};
}

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: pack_and_read FILE\n");
    return 2;
  }
  auto done = Pack(arguments[1]);
  if (done) done = ReadBatch(arguments[1]);
  if (done) return 0;
  std::fprintf(stderr, "pack_and_read: %s\n", done.error().message.c_str());
  return 1;
}
