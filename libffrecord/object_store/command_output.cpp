#include "libffrecord/object_store/command_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "libffrecord/base/timed_waits.h"
#include "libffrecord/base/uninterrupted.h"
#include "libffrecord/base/unique_fd.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;

// A command in a process group of its own, which ends with this object.
class Command {
 public:
  Command(const std::string& text, UniqueFd output) : output_(std::move(output)) { Start(text); }
  ~Command() {
    if (pid_ <= 0 || status_) return;
    ::kill(-pid_, SIGKILL);
    Uninterrupted([this] { return ::waitpid(pid_, nullptr, 0); });
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  int start_errno() const noexcept { return start_errno_; }

  // The exit status, -1 after a signal; nothing if it has not ended in time.
  std::optional<int> WaitUntil(Clock::time_point end) {
    while (!status_) {
      int status = 0;
      const pid_t ended = Uninterrupted([&] { return ::waitpid(pid_, &status, WNOHANG); });
      if (ended == pid_) status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      if (ended < 0) status_ = 0;  // The program ignores SIGCHLD, so the status is unknown.
      if (ended == 0 && Clock::now() >= end) break;
      if (ended == 0) SleepFor(milliseconds(1));
    }
    return status_;
  }

 private:
  void Start(const std::string& text) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, output_.get(), STDOUT_FILENO);
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    std::string shell = "sh";
    std::string option = "-c";
    std::string line = text;
    const std::array<char*, 4> words{shell.data(), option.data(), line.data(), nullptr};
    start_errno_ = ::posix_spawn(&pid_, "/bin/sh", &files, &attributes, words.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    output_.Reset();  // The command alone writes to it, so its end is seen.
  }

  UniqueFd output_;
  pid_t pid_ = -1;
  int start_errno_ = 0;
  std::optional<int> status_;
};

Error TooLate(milliseconds timeout) {
  return {ErrorCode::kUnavailable,
          "it has not ended after " + std::to_string(timeout.count()) + " ms"};
}

}  // namespace

Result<std::string> OutputOfCommand(const std::string& command, milliseconds timeout,
                                    std::size_t size_max) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return Error{ErrorCode::kIo, std::string("no pipe: ") + std::strerror(errno), errno};
  const UniqueFd reading(ends[0]);
  Command running(command, UniqueFd(ends[1]));
  if (running.start_errno() != 0)
    return Error{ErrorCode::kDenied,
                 std::string("it cannot be started: ") + std::strerror(running.start_errno())};
  const auto end = Clock::now() + timeout;
  std::string output;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
    pollfd wanted{.fd = reading.get(), .events = POLLIN, .revents = 0};
    const int ready = Uninterrupted([&] { return PollFor({&wanted, 1}, left); });
    if (ready == 0) return TooLate(timeout);
    std::array<char, 4096> piece{};
    const auto got =
        Uninterrupted([&] { return ::read(reading.get(), piece.data(), piece.size()); });
    if (got <= 0) break;
    output.append(piece.data(), static_cast<std::size_t>(got));
    if (output.size() > size_max)
      return Error{ErrorCode::kDenied, "it wrote more than " + std::to_string(size_max) + " bytes"};
  }
  const auto status = running.WaitUntil(end);
  if (!status) return TooLate(timeout);
  if (*status != 0)
    return Error{ErrorCode::kDenied, *status < 0
                                         ? std::string("it was killed")
                                         : "it ended with status " + std::to_string(*status)};
  return output;
}

}  // namespace ffrecord::object_store
