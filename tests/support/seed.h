#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace ffrecord::test {

// The seed of a random test: FFRECORD_TEST_SEED if it is set, else a fresh one. Printed, so that a
// failure can be repeated.
inline std::uint32_t Seed() {
  static const std::uint32_t seed = [] {
    const char* given = std::getenv("FFRECORD_TEST_SEED");
    const std::uint32_t value = given != nullptr
                                    ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))
                                    : std::random_device{}();
    std::cout << "FFRECORD_TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

}  // namespace ffrecord::test
