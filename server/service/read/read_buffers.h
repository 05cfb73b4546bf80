#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"

namespace ffrecord::server {

// Memory for the reads of one worker. Returned blocks are kept here for the next read, which then
// takes no lock that other workers take too.
//
// Thread-bound, and so are the buffers: the last owner of a buffer releases it on the worker's
// thread, or when that has ended. They may outlive this.
class ReadBuffers {
 public:
  // Blocks beyond that go back to the process.
  static constexpr std::uint64_t kIdleBytesMax = std::uint64_t{16} << 20;

  ReadBuffers();
  ReadBuffers(const ReadBuffers&) = delete;
  ReadBuffers& operator=(const ReadBuffers&) = delete;
  ~ReadBuffers();

  // Takes a buffer of exactly that size, which is not 0. Fails as BufferPool::Take.
  Result<PooledBuffer> Take(std::size_t size_bytes);
  std::uint64_t idle_bytes() const noexcept;

 private:
  struct Idle;
  std::shared_ptr<Idle> idle_;
};

}  // namespace ffrecord::server
