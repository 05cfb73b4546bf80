#include "libffrecord/io/this_host.h"

#include <sys/random.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"

namespace ffrecord {
namespace {

std::string MakeName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::uint64_t number = Xxh3(std::as_bytes(std::span(boot)));
  if (boot.empty()) FFR_ASSERT(::getrandom(&number, sizeof number, 0) == sizeof number);
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

}  // namespace

std::string_view ThisHost() {
  static const std::string name = MakeName();
  return name;
}

}  // namespace ffrecord
