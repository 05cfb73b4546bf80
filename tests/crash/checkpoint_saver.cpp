// Saves checkpoints, to be killed while it does: checkpoint-saver RUN FIRST_STEP COUNT RANKS
// [async | incremental | replace | back | remove]; with "remove" it removes those steps instead;
// with "back" it goes on from the step before FIRST_STEP, whatever there is behind that.
// Prints "committed STEP" after each. What a step holds is a function of its number, which the
// tests compute as well (saved_state.py).

#include <algorithm>
#include <cstdlib>
#include <future>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "thread_group.h"
#include "value_writer.h"

namespace ffrecord {
namespace {

using test::ValueWriter;

constexpr std::uint64_t kRows = 1000;
constexpr std::uint64_t kColumns = 103;
constexpr std::uint64_t kFrozenSize = 300'000;

std::vector<std::byte> Matrix(std::uint64_t step) {
  std::vector<std::byte> bytes(kRows * kColumns);
  for (std::uint64_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + step * 7) % 251);
  return bytes;
}

std::vector<std::byte> Tree(std::uint64_t step) {
  ValueWriter writer;
  writer.Dict(3);
  writer.Str("frozen");
  writer.Tensor(TensorKind::kArray, "frozen");
  writer.Str("matrix");
  writer.Tensor(TensorKind::kArray, "matrix");
  writer.Str("step");
  writer.Int(static_cast<std::int64_t>(step));
  return {writer.bytes().begin(), writer.bytes().end()};
}

// What is the same in every step: of the last rank alone.
std::vector<std::byte> Frozen() {
  std::vector<std::byte> bytes(kFrozenSize);
  for (std::uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

Result<client::Commit> Save(const std::string& run, std::uint64_t step,
                            client::CheckpointGroup& group, std::string_view mode) {
  auto matrix = Matrix(step);
  const std::uint64_t begin = kRows * group.rank() / group.size();
  const std::uint64_t end = kRows * (group.rank() + 1) / group.size();
  const client::TensorView tensor{
      "matrix",
      "uint8",
      {kRows, kColumns},
      {begin, 0},
      {end - begin, kColumns},
      std::span(matrix).subspan(begin * kColumns, (end - begin) * kColumns)};
  const auto frozen = Frozen();
  std::vector<client::TensorView> tensors{tensor};
  if (group.rank() + 1 == group.size())
    tensors.push_back({.key = "frozen",
                       .dtype = "uint8",
                       .shape = {kFrozenSize},
                       .offset = {0},
                       .extent = {kFrozenSize},
                       .data = frozen,
                       .is_stable = mode == "async"});
  client::SaveOptions options;
  options.incremental = mode == "incremental";
  options.replaces = mode == "replace";
  if (mode != "async")
    return client::SaveCheckpoint(run, step, tensors, Tree(step), &group, options);
  // As async_save does: a copy is saved by another thread while the original changes.
  auto arena = FFR_TRY(client::StagingArena::Create(tensor.data.size()));
  const client::StagingArena::CopyJob job{tensor.data, 0};
  arena.Copy({&job, 1});
  tensors[0].data = arena.bytes().first(tensor.data.size());
  tensors[0].is_stable = true;
  auto saved = std::async(std::launch::async, [&] {
    return client::SaveCheckpoint(run, step, tensors, Tree(step), &group, options);
  });
  std::fill(matrix.begin(), matrix.end(), std::byte{0xFF});
  return saved.get();
}

int Remove(const std::string& run, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t step = first; step < first + count; ++step)
    if (const auto removed = client::RemoveCheckpoint(run, step, {}); !removed) {
      std::cerr << removed.error().message << "\n";
      return 1;
    }
  return 0;
}

int Run(const std::string& run, std::uint64_t first, std::uint64_t count, std::uint32_t ranks,
        std::string_view mode) {
  test::ThreadGroup group(ranks);
  if (mode == "back") {
    const auto before = client::CheckpointReader::Open(run, first - 1, {});
    const auto told = before ? before.value().GoOn(true) : before.error();
    if (!told) std::cerr << told.error().message << "\n";
    if (!told) return 1;
  }
  for (std::uint64_t step = first; step < first + count; ++step) {
    const auto outcomes =
        group.Run([&](client::CheckpointGroup& rank) { return Save(run, step, rank, mode); });
    if (!*outcomes[0]) {
      std::cerr << outcomes[0]->error().message << "\n";
      return 1;
    }
    std::cout << "committed " << step << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace ffrecord

int main(int count, char** arguments) {
  if (count != 5 && count != 6) return 2;
  const std::string_view mode = count == 6 ? arguments[5] : "";
  const std::uint64_t first = std::strtoull(arguments[2], nullptr, 10);
  const std::uint64_t steps = std::strtoull(arguments[3], nullptr, 10);
  const auto ranks = static_cast<std::uint32_t>(std::strtoul(arguments[4], nullptr, 10));
  if (mode == "remove") return ffrecord::Remove(arguments[1], first, steps);
  return ffrecord::Run(arguments[1], first, steps, ranks, mode);
}
