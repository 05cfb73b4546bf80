#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

// --- Signals, with their senders -----------------------------------------------------------------

// Python's handlers do not tell who has sent a signal, and sigwaitinfo() misses those that the
// kernel gives to a thread that does not block them.
std::atomic<int> g_notes{-1};
std::vector<std::pair<int, struct sigaction>> g_handlers_before;

void NoteSignal(int number, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const std::array<unsigned char, 2> note{static_cast<unsigned char>(number),
                                          static_cast<unsigned char>(info->si_code > 0)};
  // A full pipe has 32,768 signals that nobody has looked at.
  [[maybe_unused]] const auto written = ::write(g_notes.load(), note.data(), note.size());
  errno = saved;
}

void ForgetSignals() {
  for (const auto& [number, before] : std::exchange(g_handlers_before, {}))
    ::sigaction(number, &before, nullptr);
}

void NoteSignals(const std::vector<int>& numbers, int descriptor) {
  ForgetSignals();
  g_notes = descriptor;
  for (const int number : numbers) {
    struct sigaction noting {};
    noting.sa_sigaction = &NoteSignal;
    noting.sa_flags = SA_SIGINFO | SA_RESTART;
    struct sigaction before {};
    if (::sigaction(number, &noting, &before) != 0) {
      PyErr_SetFromErrno(PyExc_OSError);
      ForgetSignals();
      throw py::error_already_set();
    }
    g_handlers_before.emplace_back(number, before);
  }
}

}  // namespace

void BindProcess(py::module_& module) {
  module.def("note_signals", &NoteSignals, py::arg("numbers"), py::arg("descriptor"));
  module.def("forget_signals", &ForgetSignals);
  module.def("wait_for_idle_threads", &WaitForIdleThreads, py::arg("name"), py::arg("timeout_s"));
}

}  // namespace ffrecord::python
