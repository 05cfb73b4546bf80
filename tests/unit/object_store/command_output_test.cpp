// The output of a command, and what becomes of one that does not end.

#include "libffrecord/object_store/command_output.h"

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "temp_folder.h"

namespace ffrecord::object_store {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

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

TEST(CommandOutputTest, ACommandThatDoesNotEndIsKilledWithItsChildren) {
  const test::TempFolder folder;
  const std::string mark = folder / "mark";
  const auto begin = steady_clock::now();
  for (const std::string& command : {"(sleep 1; echo x >" + mark + ") & sleep 60",
                                     "exec >&-; (sleep 1; echo x >" + mark + ")"}) {
    const auto output = OutputOfCommand(command, milliseconds(100), kSizeMax);
    ASSERT_FALSE(output);
    EXPECT_EQ(output.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_LT(steady_clock::now() - begin, milliseconds(900));
  std::this_thread::sleep_for(milliseconds(1300));
  EXPECT_FALSE(std::ifstream(mark).good());
}

}  // namespace
}  // namespace ffrecord::object_store
