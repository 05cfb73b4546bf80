#include "libffrecord/base/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace ffrecord {

std::uint64_t MachineMemoryBytes() {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream file("/sys/fs/cgroup/memory.max");  // "max", which is no number, if there is none.
  std::uint64_t limit = 0;
  return file >> limit ? std::min(machine, limit) : machine;
}

}  // namespace ffrecord
