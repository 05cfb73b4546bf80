// The output of a command, and what becomes of one that does not end.

#include "libffrecord/object_store/command_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "eventually.h"
#include "libffrecord/base/unique_fd.h"
#include "temp_folder.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{20'000};
constexpr std::size_t kSizeMax = 100'000;

TEST(CommandOutputTest, IsWhatTheCommandWrites) {
  EXPECT_EQ(OutputOfCommand("printf 'a b'; printf c", kLong, kSizeMax).value(), "a bc");
  EXPECT_EQ(OutputOfCommand("cat; printf end", kLong, kSizeMax).value(), "end");  // No input.
  EXPECT_EQ(OutputOfCommand("head -c 100000 /dev/zero", kLong, kSizeMax).value().size(), kSizeMax);
  EXPECT_EQ(OutputOfCommand("head -c 100001 /dev/zero", kLong, kSizeMax).error().code,
            ErrorCode::kDenied);
}

TEST(CommandOutputTest, ACommandThatFailsHasNone) {
  for (const char* const command : {"printf x; exit 1", "kill -9 $$", "exec /nowhere 2>/dev/null"})
    EXPECT_EQ(OutputOfCommand(command, kLong, kSizeMax).error().code, ErrorCode::kDenied);
}

// All that it has begun hold a pipe open; it ends with the last of them.
TEST(CommandOutputTest, ACommandThatDoesNotEndIsKilledWithItsChildren) {
  const test::TempFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& command : {"exec 3<>" + pipe + "; (sleep 1000) & sleep 1000",
                                     "exec 3<>" + pipe + "; exec >&-; (sleep 1000)"}) {
    const UniqueFd reading(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const auto output = OutputOfCommand(command, milliseconds(500), kSizeMax);
    ASSERT_FALSE(output);
    EXPECT_EQ(output.error().code, ErrorCode::kUnavailable);
    char byte = 0;
    EXPECT_TRUE(test::Eventually([&] { return ::read(reading.get(), &byte, 1) == 0; }));
  }
}

}  // namespace
}  // namespace ffrecord::object_store
