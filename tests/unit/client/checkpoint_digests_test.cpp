// Goal: the boxes of a tensor add up to its digest, however a mesh has divided it, and in whatever
// blocks their bytes pass by. Method: random tensors, divided at random; digests of the whole.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "client/checkpoint/box_runs.h"
#include "client/checkpoint/tensor_digests.h"
#include "libffrecord/base/linear_digest.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using Sizes = std::vector<std::uint64_t>;

struct Slice {
  Sizes offset;
  Sizes extent;
};

std::vector<std::byte> RandomBytes(std::mt19937_64& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Divides a box into two along a random dimension, over and over.
std::vector<Slice> Divided(std::mt19937_64& random, const Sizes& shape, int times) {
  std::vector<Slice> slices{{Sizes(shape.size()), shape}};
  for (int i = 0; i < times && !shape.empty(); ++i) {
    Slice& slice = slices[random() % slices.size()];
    const std::size_t d = random() % shape.size();
    if (slice.extent[d] < 2) continue;
    const std::uint64_t first = 1 + random() % (slice.extent[d] - 1);
    Slice rest = slice;
    rest.offset[d] += first;
    rest.extent[d] -= first;
    slice.extent[d] = first;
    slices.push_back(rest);
  }
  return slices;
}

std::vector<std::byte> BytesOf(std::span<const std::byte> whole, const Sizes& shape,
                               const Slice& slice, std::uint64_t element_size) {
  std::uint64_t size = element_size;
  for (const std::uint64_t extent : slice.extent) size *= extent;
  std::vector<std::byte> bytes(size);
  const Sizes zeros(shape.size());
  ForEachRun({zeros, shape}, {slice.offset, slice.extent}, element_size, [&](const ByteRun& run) {
    std::memcpy(bytes.data() + run.to_bytes, whole.data() + run.from_bytes, run.size_bytes);
  });
  return bytes;
}

TEST(TensorDigestsTest, SlicesOfEveryMeshAddUpToTheTensor) {
  std::mt19937_64 random(test::Seed());
  for (const Sizes& shape :
       {Sizes{}, Sizes{7}, Sizes{40, 33}, Sizes{5, 1, 6, 8}, Sizes{3, 70, 2}}) {
    for (const std::uint64_t element_size : {1U, 2U, 4U, 16U}) {
      std::uint64_t size = element_size;
      for (const std::uint64_t extent : shape) size *= extent;
      const auto whole = RandomBytes(random, size);
      for (int times = 0; times < 8; ++times) {
        std::uint64_t sum = 0;
        for (const Slice& slice : Divided(random, shape, times)) {
          const auto bytes = BytesOf(whole, shape, slice, element_size);
          const std::size_t cut = bytes.empty() ? 0 : random() % bytes.size();
          const Box box{slice.offset, slice.extent};
          sum ^= DigestInTensor(box, shape, element_size, 0, std::span(bytes).first(cut));
          sum ^= DigestInTensor(box, shape, element_size, cut, std::span(bytes).subspan(cut));
        }
        EXPECT_EQ(sum, LinearDigest(whole)) << shape.size() << " dimensions, " << times;
      }
    }
  }
}

TEST(TensorDigestsTest, BlocksCountOnceAndInAnyOrder) {
  std::mt19937_64 random(test::Seed());
  const Sizes shapes[] = {{3}, {50'000, 2}, {1000}};
  const std::uint64_t offsets[] = {64, 4096, 4096 + 200'000 + 64};
  const std::uint64_t payload = 5 * 65'536;
  auto segment = RandomBytes(random, payload);
  const Sizes zeros(2);
  std::vector<BoxDigests::Place> places;
  std::vector<std::uint64_t> expected;
  for (int i = 0; i < 3; ++i) {
    std::uint64_t size = 2;
    for (const std::uint64_t extent : shapes[i]) size *= extent;
    const std::span<const std::uint64_t> zero(zeros.data(), shapes[i].size());
    places.push_back({offsets[i], size, {zero, shapes[i]}, shapes[i], 2});
    expected.push_back(LinearDigest(std::span(segment).subspan(offsets[i], size)));
  }
  BoxDigests digests(places, payload);
  BoxDigests copy = digests;
  for (const std::uint64_t block : {3U, 0U, 4U, 1U, 1U, 2U, 3U})
    copy.AddBlock(block * 65'536, std::span(segment).subspan(block * 65'536, 65'536));
  EXPECT_EQ(digests.sums(), expected);
}

}  // namespace
}  // namespace ffrecord::client
