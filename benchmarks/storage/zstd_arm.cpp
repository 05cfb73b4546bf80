// One arm of one round of the benchmark `zstd` (zstd.py says what is compared and how).
//
//   zstd-arm make raw|plain|dictionary FILE COUNT
//   zstd-arm read FILE BATCH BATCHES SEED
//   zstd-arm limit COUNT BATCHES*BATCH SEED
//
// `read` draws batches with replacement and reads them; `limit` does the same with frames in memory
// and zstd alone. Each prints one JSON object; seconds are those of the processor, of all threads.

#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <zdict.h>
#include <zstd.h>

#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

#include "benchmarks/support/arm.h"

namespace {

using namespace ffrecord;
using namespace ffrecord::bench;

constexpr std::size_t kRecordBytes = 1024;
constexpr int kLevel = 3;
constexpr std::uint32_t kDictionaryBytes = 110 << 10;

// Lines as services write them: fixed names; identifiers, numbers and codes that vary; a message of
// words that are the rarer the later they stand in a vocabulary of 4,096; a list of items.
class Records {
 public:
  Records() {
    std::mt19937_64 random(3);
    for (std::string& word : words_) {
      word.resize(3 + random() % 8);
      for (char& letter : word) letter = "etaoinshrdlucmfwypvbgkjqxz"[Skewed(random, 26)];
    }
  }

  std::string Make(std::uint64_t number) const {
    std::mt19937_64 random(number * 0x9E3779B97F4A7C15 + 1);
    std::string line =
        "{\"id\": \"" + Hex(random()) + Hex(random()) + "\", \"time\": \"2026-03-" +
        std::to_string(10 + number % 20) + "T" + std::to_string(10 + random() % 14) + ":" +
        std::to_string(10 + random() % 50) + ":" + std::to_string(10 + random() % 50) +
        "Z\", \"level\": \"" + std::array{"info", "warning", "error", "debug"}[random() % 4] +
        "\", \"service\": \"" + words_[random() % 16] + "-" + words_[16 + random() % 16] +
        "\", \"request\": {\"method\": \"" + std::array{"GET", "POST", "PUT"}[random() % 3] +
        "\", \"path\": \"/" + Word(random) + "/" + Word(random) + "/" +
        std::to_string(random() % 100'000) +
        "\", \"status\": " + std::to_string(200 + random() % 300) +
        ", \"latency_ms\": " + std::to_string(random() % 5000) + ", \"client\": \"10." +
        std::to_string(random() % 256) + "." + std::to_string(random() % 256) + "." +
        std::to_string(random() % 256) + "\"}, \"message\": \"";
    for (int word = 0; word < 12; ++word) line += Word(random) + " ";
    line += "\", \"items\": [";
    for (;;) {
      const std::string item = "{\"sku\": \"" + words_[random() % 64] + "-" +
                               std::to_string(1000 + random() % 9000) +
                               "\", \"quantity\": " + std::to_string(1 + random() % 9) +
                               ", \"price\": " + std::to_string(random() % 100) +
                               ".99, \"currency\": \"EUR\", \"available\": true}, ";
      if (line.size() + item.size() + 4 > kRecordBytes) break;
      line += item;
    }
    line.resize(kRecordBytes - 4, ' ');
    return line + "{}]}";
  }

 private:
  static std::size_t Skewed(std::mt19937_64& random, std::size_t count) {
    const double x = std::uniform_real_distribution<double>(0, 1)(random);
    return std::min(count - 1, static_cast<std::size_t>(static_cast<double>(count) * x * x * x));
  }
  static std::string Hex(std::uint64_t value) {
    std::string text(16, '0');
    for (char& digit : text) {
      digit = "0123456789abcdef"[value & 15];
      value >>= 4;
    }
    return text;
  }
  const std::string& Word(std::mt19937_64& random) const {
    return words_[Skewed(random, words_.size())];
  }

  std::array<std::string, 4096> words_;
};

// Time that this process has used of processors: others may run on them too.
double ProcessorSeconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) Fail("clock_gettime failed");
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void Make(std::string_view kind, const char* path, std::uint64_t count) {
  RecordWriter::Options options;
  options.replace = true;
  options.compress = kind != "raw";
  options.compression_level = kLevel;
  if (kind == "dictionary") options.train_dictionary_bytes = kDictionaryBytes;
  auto writer = ValueOrFail(RecordWriter::Create(path, {}, options));
  const Records records;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string record = records.Make(i);
    Check(writer.Write(std::as_bytes(std::span(record))));
  }
  const WriteSummary summary = ValueOrFail(writer.Close());
  std::printf("{\"raw_bytes\": %llu, \"file_bytes\": %llu, \"dictionary_bytes\": %llu}\n",
              static_cast<unsigned long long>(summary.raw_size_bytes),
              static_cast<unsigned long long>(summary.file_size_bytes),
              static_cast<unsigned long long>(summary.dictionary_size_bytes));
}

void PrintRate(std::uint64_t records, double seconds) {
  std::printf("{\"records\": %llu, \"seconds\": %.9f}\n", static_cast<unsigned long long>(records),
              seconds);
}

void Read(const char* path, std::size_t batch_size, std::size_t batches, std::uint64_t seed) {
  const std::filesystem::path paths[] = {path};
  const auto reader = ValueOrFail(RecordReader::Open(paths, {}));
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> indices(batch_size);
  double seconds = 0;
  for (std::size_t i = 0; i < batches + 1; ++i) {
    std::ranges::generate(indices, [&] { return random() % reader.record_count(); });
    const double start = ProcessorSeconds();
    const auto batch = ValueOrFail(reader.ReadBatch(indices));
    if (i > 0) seconds += ProcessorSeconds() - start;  // The first makes what is kept.
    for (std::size_t k = 0; k < batch.size(); ++k)
      if (batch.statuses()[k] != ErrorCode::kOk || batch.record(k).size() != kRecordBytes)
        Fail(reader.Describe(indices[k], batch.statuses()[k]));
  }
  PrintRate(batch_size * batches, seconds);
}

std::size_t ZstdOrFail(std::size_t result) {
  if (ZSTD_isError(result)) Fail(ZSTD_getErrorName(result));
  return result;
}

void Limit(std::uint64_t count, std::uint64_t reads, std::uint64_t seed) {
  const Records records;
  std::string sample;
  std::vector<std::size_t> sizes;
  for (std::uint64_t i = 0; i < count && sample.size() < std::size_t{100} * kDictionaryBytes; ++i) {
    sample += records.Make(i);
    sizes.push_back(kRecordBytes);
  }
  std::string dictionary(kDictionaryBytes, '\0');
  const auto size = ZDICT_trainFromBuffer(dictionary.data(), dictionary.size(), sample.data(),
                                          sizes.data(), static_cast<unsigned>(sizes.size()));
  if (ZDICT_isError(size)) Fail(ZDICT_getErrorName(size));
  const std::unique_ptr<ZSTD_CDict, decltype(&ZSTD_freeCDict)> compress(
      ZSTD_createCDict(dictionary.data(), size, kLevel), ZSTD_freeCDict);
  const std::unique_ptr<ZSTD_DDict, decltype(&ZSTD_freeDDict)> decompress(
      ZSTD_createDDict(dictionary.data(), size), ZSTD_freeDDict);
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> compressor(ZSTD_createCCtx(),
                                                                        ZSTD_freeCCtx);
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decompressor(ZSTD_createDCtx(),
                                                                          ZSTD_freeDCtx);
  std::vector<std::string> frames(count);
  std::string frame(ZSTD_compressBound(kRecordBytes), '\0');
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string record = records.Make(i);
    frames[i].assign(frame.data(), ZstdOrFail(ZSTD_compress_usingCDict(
                                       compressor.get(), frame.data(), frame.size(), record.data(),
                                       record.size(), compress.get())));
  }
  std::mt19937_64 random(seed);
  std::array<char, kRecordBytes> place;
  const double start = ProcessorSeconds();
  for (std::uint64_t i = 0; i < reads; ++i) {
    const std::string& chosen = frames[random() % count];
    ZstdOrFail(ZSTD_decompress_usingDDict(decompressor.get(), place.data(), place.size(),
                                          chosen.data(), chosen.size(), decompress.get()));
  }
  PrintRate(reads, ProcessorSeconds() - start);
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string_view what = argument_count > 1 ? arguments[1] : "";
  if (what == "make" && argument_count == 5) {
    Make(arguments[2], arguments[3], std::stoull(arguments[4]));
  } else if (what == "read" && argument_count == 6) {
    Read(arguments[2], std::stoull(arguments[3]), std::stoull(arguments[4]),
         std::stoull(arguments[5]));
  } else if (what == "limit" && argument_count == 5) {
    Limit(std::stoull(arguments[2]), std::stoull(arguments[3]), std::stoull(arguments[4]));
  } else {
    std::fprintf(stderr, "usage: zstd-arm make|read|limit ...; see zstd_arm.cpp\n");
    return 2;
  }
  return 0;
}
