#include "server/monitoring/log_sink.h"

#include <spdlog/sinks/base_sink.h>

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>

#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {
namespace {

constexpr std::chrono::milliseconds kPatience{100};

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LogSink(int descriptor) : descriptor_(descriptor) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (dropped_count_ > 0 && !ReportDropped(message)) {
      ++dropped_count_;
      return;
    }
    if (!Write({line.data(), line.size()})) ++dropped_count_;
  }

  void flush_() override {}  // Nothing is buffered.

  // Writes how many lines are missing, in the place where they are.
  bool ReportDropped(const spdlog::details::log_msg& next) {
    const std::string text = fmt::format("event=log_lines_dropped count={}", dropped_count_);
    const spdlog::details::log_msg report(next.time, spdlog::source_loc{}, next.logger_name,
                                          spdlog::level::warn, text);
    spdlog::memory_buf_t line;
    formatter_->format(report, line);
    if (!Write({line.data(), line.size()})) return false;
    dropped_count_ = 0;
    return true;
  }

  // Whether all of `line` is written. poll(2) promises room for PIPE_BUF bytes in a pipe, so a
  // longer line goes in parts; if its end finds no room, the next line starts on a line of its own.
  bool Write(std::string_view line) {
    if (is_line_open_ && !WritePart("\n")) return false;
    is_line_open_ = false;
    while (!line.empty()) {
      const std::string_view part = line.substr(0, PIPE_BUF);
      if (!WritePart(part)) return false;
      is_line_open_ = part.back() != '\n';
      line.remove_prefix(part.size());
    }
    return true;
  }

  bool WritePart(std::string_view part) {
    while (!part.empty()) {
      if (!HasRoom()) return false;
      const ::ssize_t written = ::write(descriptor_, part.data(), part.size());
      if (written < 0 && errno != EINTR && errno != EAGAIN) return false;
      if (written > 0) part.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  // Whether the reader leaves room. Only the first of several lines that find none waits for it.
  bool HasRoom() {
    pollfd entry{descriptor_, POLLOUT, 0};
    const auto patience = dropped_count_ > 0 ? std::chrono::milliseconds(0) : kPatience;
    return PollFor({&entry, 1}, patience) == 1 && (entry.revents & POLLOUT) != 0;
  }

  const int descriptor_;
  std::uint64_t dropped_count_ = 0;
  bool is_line_open_ = false;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> MakeLogSink(int descriptor) {
  return std::make_shared<LogSink>(descriptor);
}

}  // namespace ffrecord::server
