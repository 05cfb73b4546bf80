#pragma once

#include <string>

#include "bytes.h"
#include "libffrecord/record/write/v2_stream.h"

namespace ffrecord::test {

// A V2Output into a string: files of any structures, right or wrong, without a writer.
class MemoryOutput final : public V2Output {
 public:
  std::string content;

  Result<void> Append(std::span<const std::byte> bytes) override {
    content += AsString(bytes);
    return {};
  }
  Result<void> AppendZeros(std::uint64_t count_bytes) override {
    content.append(count_bytes, '\0');
    return {};
  }
  std::uint64_t size_bytes() const noexcept override { return content.size(); }
  Result<void> Barrier() override { return {}; }
  Result<void> Commit() override { return {}; }
  Result<void> CutTo(std::uint64_t size_bytes) override {
    content.resize(size_bytes);
    return {};
  }
};

}  // namespace ffrecord::test
