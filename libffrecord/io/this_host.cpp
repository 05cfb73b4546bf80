#include "libffrecord/io/this_host.h"

#include <fstream>
#include <span>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"

namespace ffrecord {
namespace {

std::string ReadBootId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? Hex(RandomNumber()) : boot;
}

}  // namespace

std::string ThisHost(std::uint64_t device) {
  static const std::string boot = ReadBootId();
  return Hex(Xxh3(std::as_bytes(std::span(boot)), device));
}

}  // namespace ffrecord
