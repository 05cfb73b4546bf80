#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord::test {

// A run of the real ffrecordd at the path `program`. Killed at the end if it still runs.
class DaemonProcess {
 public:
  static constexpr int kStillRunning = -1000;

  DaemonProcess(const std::string& program, std::vector<std::string> arguments) {
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) std::abort();
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipe[1], STDERR_FILENO);
      ::dup2(pipe[1], STDOUT_FILENO);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    output_fd_.Reset(pipe[0]);
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  ~DaemonProcess() {
    Signal(SIGKILL);
    (void)Wait(std::chrono::seconds(10));
  }

  pid_t pid() const { return pid_; }
  const std::string& output() const { return output_; }

  // Reads what the daemon says until `text` is in it. False if it ends or 20 s pass first.
  bool WaitFor(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (output_.find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline || !ReadSome()) return false;
    }
    return true;
  }

  // "127.0.0.1:12345", once it is ready; empty if it does not get there.
  std::string WaitReady() {
    if (!WaitFor("event=ready") || !WaitFor("engine=")) return "";
    const std::size_t begin = output_.find("listen=", output_.find("event=ready")) + 7;
    return output_.substr(begin, output_.find(' ', begin) - begin);
  }

  void Signal(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }

  // The exit status, or minus the signal that ended it.
  int Wait(std::chrono::milliseconds time) {
    const auto deadline = std::chrono::steady_clock::now() + time;
    while (pid_ > 0) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        while (ReadSome()) {
        }
      } else if (std::chrono::steady_clock::now() > deadline) {
        return kStillRunning;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    return status_;
  }

 private:
  bool ReadSome() {
    pollfd waited{output_fd_.get(), POLLIN, 0};
    if (::poll(&waited, 1, 20'000) <= 0) return false;
    char text[4096];
    const ssize_t got = ::read(output_fd_.get(), text, sizeof(text));
    if (got <= 0) return false;
    output_.append(text, static_cast<std::size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int status_ = 0;
  UniqueFd output_fd_;
  std::string output_;
};

}  // namespace ffrecord::test
