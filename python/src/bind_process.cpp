#include <dirent.h>
#include <time.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "python/src/bind.h"
#include "python/src/time_limit.h"

namespace ffrecord::python {
namespace {

constexpr const char* kTasks = "/proc/self/task/";
constexpr timespec kBetweenLooks{.tv_sec = 0, .tv_nsec = 200'000};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// proc(5): the state is the letter behind the name, which is in brackets and may hold any others.
bool IsAtWork(const std::string& stat) {
  const std::size_t bracket = stat.rfind(')');
  const char state = bracket + 2 < stat.size() ? stat[bracket + 2] : 'S';
  return state == 'R' || state == 'D';
}

// Whether no thread of this process that has this name is at work. Threads that end meanwhile are
// not, and where there is no /proc there is nothing to see.
bool AreThreadsIdle(const std::string& name) {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir(kTasks), &::closedir);
  if (tasks == nullptr) return true;
  while (const dirent* const task = ::readdir(tasks.get())) {
    const std::string folder = std::string(kTasks) + task->d_name;
    if (TextOf(folder + "/comm") == name + "\n" && IsAtWork(TextOf(folder + "/stat"))) return false;
  }
  return true;
}

// Waits without the GIL, so that a thread that waits for it gets it, and is then seen at work. Two
// looks: a thread that was woken up just now is not shown as runnable everywhere at once.
bool WaitForIdleThreads(const std::string& name, TimeLimit timeout) {
  return WithoutGil([&] {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + timeout.value;
    for (int idle_looks = 0; idle_looks < 2;) {
      idle_looks = AreThreadsIdle(name) ? idle_looks + 1 : 0;
      if (Clock::now() > deadline) return false;
      ::nanosleep(&kBetweenLooks, nullptr);
    }
    return true;
  });
}

}  // namespace

void BindProcess(py::module_& module) {
  module.def("wait_for_idle_threads", &WaitForIdleThreads, py::arg("name"), py::arg("timeout_s"));
}

}  // namespace ffrecord::python
