// Saves checkpoints, to be killed while it does: checkpoint-saver RUN FIRST_STEP COUNT RANKS.
// Prints "committed STEP" after each. What a step holds is a function of its number, which the
// tests compute as well (saved_state.py).

#include <cstdlib>
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
                            client::CheckpointGroup& group) {
  const auto matrix = Matrix(step);
  const std::uint64_t begin = kRows * group.rank() / group.size();
  const std::uint64_t end = kRows * (group.rank() + 1) / group.size();
  const client::TensorView tensor{
      "matrix",
      "uint8",
      {kRows, kColumns},
      {begin, 0},
      {end - begin, kColumns},
      std::span(matrix).subspan(begin * kColumns, (end - begin) * kColumns)};
  return client::SaveCheckpoint(run, step, {{tensor}}, Tree(step), &group, {});
}

int Run(const std::string& run, std::uint64_t first, std::uint64_t count, std::uint32_t ranks) {
  test::ThreadGroup group(ranks);
  for (std::uint64_t step = first; step < first + count; ++step) {
    const auto outcomes =
        group.Run([&](client::CheckpointGroup& rank) { return Save(run, step, rank); });
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
  if (count != 5) return 2;
  return ffrecord::Run(arguments[1], std::strtoull(arguments[2], nullptr, 10),
                       std::strtoull(arguments[3], nullptr, 10),
                       static_cast<std::uint32_t>(std::strtoul(arguments[4], nullptr, 10)));
}
