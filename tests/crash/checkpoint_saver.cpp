// Saves checkpoints, to be killed while it does: checkpoint-saver RUN FIRST_STEP COUNT RANKS
// [async].
// Prints "committed STEP" after each. What a step holds is a function of its number, which the
// tests compute as well (saved_state.py).

#include <algorithm>
#include <cstdlib>
#include <future>
#include <iostream>
#include <string>

#include <ffrecord/client/checkpoint.h>

#include "libffrecord/format/checkpoint_values.h"
#include "thread_group.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kRows = 1000;
constexpr std::uint64_t kColumns = 103;

std::vector<std::byte> Matrix(std::uint64_t step) {
  std::vector<std::byte> bytes(kRows * kColumns);
  for (std::uint64_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + step * 7) % 251);
  return bytes;
}

std::vector<std::byte> Tree(std::uint64_t step) {
  ValueWriter writer;
  writer.Dict(2);
  writer.Str("matrix");
  writer.Tensor(TensorKind::kArray, "matrix");
  writer.Str("step");
  writer.Int(static_cast<std::int64_t>(step));
  return {writer.bytes().begin(), writer.bytes().end()};
}

Result<client::Commit> Save(const std::string& run, std::uint64_t step,
                            client::CheckpointGroup& group, bool is_async) {
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
  if (!is_async) return client::SaveCheckpoint(run, step, {{tensor}}, Tree(step), &group, {});
  // As async_save does: a copy is saved by another thread while the original changes.
  auto arena = FFR_TRY(client::StagingArena::Create(tensor.data.size()));
  const client::StagingArena::CopyJob job{tensor.data, 0};
  arena.Copy({&job, 1});
  client::TensorView staged = tensor;
  staged.data = arena.bytes().first(tensor.data.size());
  staged.is_stable = true;
  auto saved = std::async(std::launch::async, [&] {
    return client::SaveCheckpoint(run, step, {{staged}}, Tree(step), &group, {});
  });
  std::fill(matrix.begin(), matrix.end(), std::byte{0xFF});
  return saved.get();
}

int Run(const std::string& run, std::uint64_t first, std::uint64_t count, std::uint32_t ranks,
        bool is_async) {
  test::ThreadGroup group(ranks);
  for (std::uint64_t step = first; step < first + count; ++step) {
    const auto outcomes =
        group.Run([&](client::CheckpointGroup& rank) { return Save(run, step, rank, is_async); });
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
  const bool is_async = count == 6 && std::string_view(arguments[5]) == "async";
  if (count != 5 && !is_async) return 2;
  return ffrecord::Run(arguments[1], std::strtoull(arguments[2], nullptr, 10),
                       std::strtoull(arguments[3], nullptr, 10),
                       static_cast<std::uint32_t>(std::strtoul(arguments[4], nullptr, 10)),
                       is_async);
}
