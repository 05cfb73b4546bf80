#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

namespace ffrecord::test {

// A child that was not allowed what its test needs says so with this exit status.
inline constexpr int kSkipped = 77;

// How a child ended: its exit status, or minus the signal that ended it.
inline int WaitForChild(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) != child) {
    if (errno != EINTR) std::abort();
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Runs `work` in a forked child and returns how it ended. `work` returns the exit status: by habit
// 0, kSkipped, or the number of the step that went wrong. A gtest failure in it gives 255.
template <class Work>
int RunInChild(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int status = work();
    ::_exit(testing::Test::HasFailure() ? 255 : status);
  }
  return WaitForChild(child);
}

// The numbers of the system calls that a traced child has entered so far, the newest last.
using SystemCalls = std::vector<std::uint64_t>;

// Kills a traced child at the entry of its n-th call. How often a ring or a heap calls the kernel
// differs from run to run: a loop over n is not sure to meet each call of the work.
inline auto AtCall(std::size_t n) {
  return [n](const SystemCalls& calls) { return calls.size() == n; };
}

// The system calls that `work` enters in a forked child, after `prepare`; the child is killed at
// the entry of the first call for which `kill` says so. Nothing if tracing is not allowed here.
// The process must have no other threads, and `work` must make none.
template <class Prepare, class Work, class Kill>
std::optional<SystemCalls> TraceInChild(Prepare prepare, Work work, Kill kill) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kSkipped);
    prepare();
    ::kill(::getpid(), SIGSTOP);
    work();
    ::_exit(0);
  }
  SystemCalls calls;
  bool traced = false;
  for (int status = 0;;) {
    if (::waitpid(child, &status, 0) != child) std::abort();
    if (WIFEXITED(status) || WIFSIGNALED(status)) break;
    if (!traced && WSTOPSIG(status) == SIGSTOP) {
      traced = true;
      ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    }
    __ptrace_syscall_info info{};
    if (WSTOPSIG(status) == (SIGTRAP | 0x80) &&
        ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) > 0 &&
        info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      calls.push_back(info.entry.nr);
      if (kill(calls)) ::kill(child, SIGKILL);
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  }
  if (!traced) return std::nullopt;
  return calls;
}

}  // namespace ffrecord::test
