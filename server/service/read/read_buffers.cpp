#include "server/service/read/read_buffers.h"

#include <algorithm>
#include <bit>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ffrecord::server {
namespace {

// Blocks have few sizes, so that they are found again: at most a quarter of one is not used.
std::size_t BlockSize(std::size_t size_bytes) {
  const std::size_t unit = std::max(std::bit_floor(size_bytes) / 4, BufferPool::kAlignment);
  return (size_bytes + unit - 1) / unit * unit;
}

}  // namespace

struct ReadBuffers::Idle {
  std::unordered_map<std::size_t, std::vector<PooledBuffer>> blocks;  // By their sizes.
  std::uint64_t size_bytes = 0;

  PooledBuffer Take(std::size_t block_size) {
    const auto found = blocks.find(block_size);
    if (found == blocks.end() || found->second.empty()) return nullptr;
    PooledBuffer block = std::move(found->second.back());
    found->second.pop_back();
    size_bytes -= block_size;
    return block;
  }
  void Return(PooledBuffer block) {
    const std::size_t block_size = block->size();
    if (size_bytes + block_size > kIdleBytesMax) return;
    blocks[block_size].push_back(std::move(block));
    size_bytes += block_size;
  }
};

ReadBuffers::ReadBuffers() : idle_(std::make_shared<Idle>()) {}
ReadBuffers::~ReadBuffers() = default;

Result<PooledBuffer> ReadBuffers::Take(std::size_t size_bytes) {
  const std::size_t block_size = BlockSize(size_bytes);
  PooledBuffer block = idle_->Take(block_size);
  if (!block) block = FFR_TRY(BufferPool::Process().Take(block_size));
  auto* const view = new std::span<std::byte>(block->first(size_bytes));
  return PooledBuffer(view,
                      [idle = idle_, block = std::move(block)](std::span<std::byte>* dead) mutable {
                        delete dead;
                        idle->Return(std::move(block));
                      });
}

std::uint64_t ReadBuffers::idle_bytes() const noexcept { return idle_->size_bytes; }

}  // namespace ffrecord::server
