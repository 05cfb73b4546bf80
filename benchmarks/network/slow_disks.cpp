// A daemon whose disks all answer as many reads/s, and no more, for the benchmark `daemon`.
//
//   slow-disks PORT READS_PER_S FOLDER...
//
// Each FOLDER is one disk. Its reads are real, and each ends no sooner than a disk would end it
// that takes one after the other: what is measured is how the daemon keeps several disks busy.
// Nothing is sent from the page cache. Serves until SIGTERM.

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../support/arm.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/io_engine.h"
#include "server/service/core/server.h"

namespace {

using ffrecord::IoRequest;
using ffrecord::Result;
using ffrecord::UniqueFd;
using ffrecord::bench::Clock;
using ffrecord::bench::Fail;

// When the reads of each disk end. Thread-safe: the event loops share their disks.
class Disks {
 public:
  Disks(std::vector<std::string> folders, double reads_per_s)
      : folders_(std::move(folders)),
        read_time_(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(1 / reads_per_s))),
        free_at_(folders_.size()) {}

  Clock::time_point EndOfRead(int fd) {
    const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string();
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < folders_.size(); ++i)
      if (path.starts_with(folders_[i]))
        return free_at_[i] = std::max(free_at_[i], Clock::now()) + read_time_;
    return Clock::now();
  }

 private:
  const std::vector<std::string> folders_;
  const Clock::duration read_time_;
  std::mutex mutex_;
  std::vector<Clock::time_point> free_at_;
};

class SlowEngine final : public ffrecord::IoEngine {
 public:
  SlowEngine(Disks& disks, UniqueFd timer) : disks_(disks), timer_(std::move(timer)) {}
  std::string_view name() const noexcept override { return "slow"; }
  Result<int> EventDescriptor() override { return timer_.get(); }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(taken_.size());
  }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* const request : requests)
      taken_.emplace(disks_.EndOfRead(request->fd), request);
    SetTimer();
    return static_cast<std::uint32_t>(requests.size());
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    if (count_min > 0 && !taken_.empty() && timeout.count() > 0)
      std::this_thread::sleep_until(std::min(taken_.begin()->first, Clock::now() + timeout));
    std::uint32_t count = 0;
    while (count < done.size() && !taken_.empty() && taken_.begin()->first <= Clock::now()) {
      IoRequest& request = *taken_.begin()->second;
      request.result = ::pread(request.fd, request.buffer.data(), request.buffer.size(),
                               static_cast<off_t>(request.offset_bytes));
      if (request.result < 0) request.result = -errno;
      done[count++] = &request;
      taken_.erase(taken_.begin());
    }
    SetTimer();
    return count;
  }

 private:
  // Readable when the next read ends.
  void SetTimer() {
    itimerspec time{};
    if (!taken_.empty()) {
      const auto ns = taken_.begin()->first.time_since_epoch() / std::chrono::nanoseconds(1);
      time.it_value = {ns / 1'000'000'000, ns % 1'000'000'000};
    }
    (void)::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &time, nullptr);
  }

  Disks& disks_;
  const UniqueFd timer_;
  std::multimap<Clock::time_point, IoRequest*> taken_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) Fail("see the first lines of slow_disks.cpp");
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  ffrecord::server::Server::Options options;
  std::vector<std::string> folders;
  for (const char* const folder : std::span(argv, static_cast<std::size_t>(argc)).subspan(3)) {
    std::filesystem::create_directories(folder);
    options.data.emplace_back(folder);
    folders.push_back(std::filesystem::canonical(folder).string() + "/");
  }
  Disks disks(std::move(folders), std::strtod(argv[2], nullptr));
  options.listen.port = static_cast<std::uint16_t>(std::strtoul(argv[1], nullptr, 10));
  options.mapped_count_max = 0;
  options.make_engine = [&](std::uint32_t) -> Result<std::unique_ptr<ffrecord::IoEngine>> {
    UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!timer) return ffrecord::Error{ffrecord::ErrorCode::kIo, "cannot make a timer", errno};
    return std::unique_ptr<ffrecord::IoEngine>(new SlowEngine(disks, std::move(timer)));
  };
  const auto server = ffrecord::server::Server::Start(options);
  if (!server) Fail(server.error().message);
  int signal = 0;
  (void)::sigwait(&stop, &signal);
  return 0;
}
