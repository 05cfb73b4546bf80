#pragma once

#include <fcntl.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

namespace ffrecord::test {

// The descriptors that this process has open.
inline std::set<int> OpenFiles() {
  std::set<int> files;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    files.insert(std::atoi(entry.path().filename().c_str()));
  // The iterator's own is closed by now.
  std::erase_if(files, [](int fd) { return ::fcntl(fd, F_GETFD) < 0; });
  return files;
}

}  // namespace ffrecord::test
