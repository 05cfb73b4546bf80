#include "libffrecord/base/machine_identity.h"

#include <sys/stat.h>

#include <fstream>
#include <span>
#include <string>

#include "libffrecord/base/checksum.h"

namespace ffrecord {

std::optional<std::uint64_t> MachineIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  struct stat space {};
  if (!std::getline(file, identity) || ::stat("/proc/self/ns/net", &space) != 0)
    return std::nullopt;
  identity += " " + std::to_string(space.st_dev) + " " + std::to_string(space.st_ino);
  return Xxh3(std::as_bytes(std::span(identity)));
}

}  // namespace ffrecord
