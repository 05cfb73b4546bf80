#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace ffrecord::client {

// 16 bytes from the kernel's generator: ids that no other save will ever have.
std::array<std::byte, 16> RandomId();

// 32 lower-case hex digits.
std::string Hex(std::span<const std::byte, 16> id);

}  // namespace ffrecord::client
