#include <ffrecord/client/checkpoint.h>

#include <algorithm>

#include "libffrecord/base/checksum.h"

namespace ffrecord::client {

std::vector<std::uint64_t> BlockChecksums(std::span<const std::byte> bytes, std::size_t block_bytes,
                                          std::uint64_t first) {
  std::vector<std::uint64_t> sums;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(block_bytes, bytes.size())))
    sums.push_back(Xxh3(bytes.first(std::min(block_bytes, bytes.size())), first + sums.size()));
  return sums;
}

}  // namespace ffrecord::client
