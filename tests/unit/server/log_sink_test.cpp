// Goal: a reader of the log that stops costs log lines, never the thread that logs.
// Method: a pipe that nobody reads, filled by lines; then it is read, and lines go on.

#include "server/monitoring/log_sink.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "libffrecord/base/unique_fd.h"

namespace ffrecord::server {
namespace {

constexpr std::size_t kPipeBytes = 1 << 16;

class LogSinkTest : public testing::Test {
 protected:
  LogSinkTest() : log_("test", MakeLogSink(write_end_.get())) { log_.set_pattern("%v"); }

  // Everything that the pipe holds.
  std::string Drain() {
    std::string text;
    char buffer[4096];
    for (::ssize_t size = 0; (size = ::read(read_end_.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(size));
    return text;
  }

  static std::vector<std::string> LinesOf(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  UniqueFd read_end_;
  UniqueFd write_end_ = OpenPipe();
  spdlog::logger log_;

 private:
  UniqueFd OpenPipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EXPECT_EQ(::fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    EXPECT_EQ(::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes), static_cast<int>(kPipeBytes));
    read_end_ = UniqueFd(ends[0]);
    return UniqueFd(ends[1]);
  }
};

TEST_F(LogSinkTest, LinesComeInOrder) {
  for (int i = 0; i < 5; ++i) log_.info("line {}", i);
  EXPECT_EQ(Drain(), "line 0\nline 1\nline 2\nline 3\nline 4\n");
}

TEST_F(LogSinkTest, AReaderThatStopsLosesLinesAndIsToldHowMany) {
  // Without the sink's care, the write that finds the pipe full never returns.
  constexpr std::size_t kLines = 4000;
  for (std::size_t i = 0; i < kLines; ++i) log_.info("line {:060}", i);
  const auto kept = LinesOf(Drain());
  ASSERT_LT(kept.size(), kLines);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i], fmt::format("line {:060}", i));

  log_.info("again");
  const auto count = fmt::format("event=log_lines_dropped count={}", kLines - kept.size());
  EXPECT_EQ(LinesOf(Drain()), (std::vector<std::string>{count, "again"}));
  log_.info("and again");
  EXPECT_EQ(Drain(), "and again\n");
}

TEST_F(LogSinkTest, ALineLongerThanThePipeEndsWithALineBreakLater) {
  const std::string longer(3 * kPipeBytes, 'x');
  log_.info(longer);
  const std::string begun = Drain();
  EXPECT_EQ(begun, longer.substr(0, begun.size()));
  EXPECT_LT(begun.size(), longer.size());
  log_.info("next");
  EXPECT_EQ(Drain(), "\nevent=log_lines_dropped count=1\nnext\n");
}

TEST_F(LogSinkTest, AReaderThatIsGoneIsNoError) {
  std::signal(SIGPIPE, SIG_IGN);
  read_end_ = UniqueFd();
  for (int i = 0; i < 3; ++i) log_.info("line");
}

}  // namespace
}  // namespace ffrecord::server
