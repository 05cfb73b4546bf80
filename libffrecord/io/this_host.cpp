#include "libffrecord/io/this_host.h"

#include <fstream>
#include <string>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"

namespace ffrecord {
namespace {

std::string MakeName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::uint64_t number = Xxh3(std::as_bytes(std::span(boot)));
  if (boot.empty()) number = RandomNumber();
  return Hex(number);
}

}  // namespace

std::string_view ThisHost() {
  static const std::string name = MakeName();
  return name;
}

}  // namespace ffrecord
