#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>

#include "value_writer.h"

namespace ffrecord::test {

using Bytes = std::vector<std::byte>;
using Shape = std::vector<std::uint64_t>;

inline Bytes RandomBytes(std::size_t size, std::mt19937& random) {
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline client::TensorView Whole(std::string key, std::string dtype, Shape shape,
                                const Bytes& data) {
  return {std::move(key), std::move(dtype), shape, Shape(shape.size(), 0), shape, data};
}

inline Bytes TreeOf(std::initializer_list<std::string_view> keys) {
  ValueWriter writer;
  writer.List(static_cast<std::uint32_t>(keys.size()));
  for (const std::string_view key : keys) writer.Tensor(TensorKind::kArray, key);
  return {writer.bytes().begin(), writer.bytes().end()};
}

// A matrix of `rows` x 8 float32, whose rows ranks share out, and a small vector of rank 0.
struct State {
  std::uint64_t rows;
  Bytes matrix;
  Bytes vector;

  State(std::uint64_t row_count, std::uint32_t seed) : rows(row_count) {
    std::mt19937 random(seed);
    matrix = RandomBytes(rows * 32, random);
    vector = RandomBytes(24, random);
  }

  // The part of rank r of w: rows [rows r / w, rows (r + 1) / w).
  std::vector<client::TensorView> PartOf(std::uint32_t rank, std::uint32_t world) const {
    const std::uint64_t begin = rows * rank / world;
    const std::uint64_t end = rows * (rank + 1) / world;
    std::vector<client::TensorView> tensors{
        {"matrix",
         "float32",
         {rows, 8},
         {begin, 0},
         {end - begin, 8},
         std::span(matrix).subspan(begin * 32, (end - begin) * 32)}};
    if (rank == 0) tensors.push_back(Whole("vector", "int64", {3}, vector));
    return tensors;
  }
};

inline Result<client::Commit> SaveAlone(const std::string& target, std::uint64_t step,
                                        const State& state,
                                        const client::SaveOptions& options = {}) {
  return client::SaveCheckpoint(target, step, state.PartOf(0, 1), TreeOf({"matrix", "vector"}),
                                nullptr, options);
}

// Empty if the newest checkpoint, or `step`, is `state`; else what is wrong.
inline std::string Compare(const std::string& target, const State& state,
                           std::uint64_t step = client::CheckpointReader::kLatest) {
  const auto reader = client::CheckpointReader::Open(target, step, {});
  if (!reader) return reader.error().message;
  Bytes matrix(state.matrix.size());
  Bytes vector(state.vector.size());
  const std::vector<client::CheckpointReader::Request> requests{
      {"matrix", {0, 0}, {state.rows, 8}, matrix}, {"vector", {0}, {3}, vector}};
  if (const auto read = reader.value().Read(requests); !read) return read.error().message;
  return matrix == state.matrix && vector == state.vector ? "" : "other bytes";
}

}  // namespace ffrecord::test
