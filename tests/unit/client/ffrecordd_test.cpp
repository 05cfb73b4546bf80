// Goal: the program keeps what it has acknowledged, ends when it is told, and refuses what it
// cannot do with words and an exit status.
// Method: the real ffrecordd in a process of its own, published to and read from by the client;
// signals, kills, a disk of a few megabytes.

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <random>

#include <ffrecord/client/dataset.h>

#include "daemon_process.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using test::DaemonProcess;
using test::TempFolder;
using namespace std::chrono_literals;

constexpr int kExitUsage = 2;
constexpr int kExitEnvironment = 4;
constexpr SessionOptions kOptions{20s};

class FfrecorddTest : public testing::Test {
 protected:
  std::vector<std::string> Arguments(const std::string& listen = "127.0.0.1:0") const {
    return {"--data", (folder_ / "data").string(), "--listen", listen};
  }
  static Result<void> Publish(const std::filesystem::path& path, const std::string& uri) {
    return PublishDataset({{path}}, uri, /*replace=*/false, kOptions, {});
  }
  static std::vector<std::string> ReadAll(const std::string& uri) {
    const auto reader = OpenDataset({{uri}}, {}, kOptions);
    EXPECT_TRUE(reader) << reader.error().message;
    return reader ? test::ReadAll(reader.value()) : std::vector<std::string>();
  }

  TempFolder folder_;
};

TEST_F(FfrecorddTest, ServesAndEndsWithinTwoSecondsOfATermination) {
  for (const int signal : {SIGTERM, SIGINT}) {
    DaemonProcess daemon(FFRECORDD, Arguments());
    const std::string address = daemon.WaitReady();
    ASSERT_FALSE(address.empty()) << daemon.output();
    const std::string name = "name-" + std::to_string(signal);
    const test::TestFile file({"a", "b"});
    ASSERT_TRUE(Publish(file.path(), "ffrecord://" + address + "/" + name));
    // With a reader that is connected and idle.
    const auto reader = OpenDataset({{"ffrecord://" + address + "/" + name}}, {}, kOptions);
    ASSERT_TRUE(reader) << reader.error().message;

    daemon.Signal(signal);

    EXPECT_EQ(daemon.Wait(20s), 0) << daemon.output();
    EXPECT_NE(daemon.output().find("event=stopped drained=true"), std::string::npos)
        << daemon.output();
  }
}

TEST_F(FfrecorddTest, KeepsEverythingAcknowledgedThroughKills) {
  std::mt19937 random(test::Seed());
  std::vector<std::pair<std::string, std::vector<std::string>>> acknowledged;
  for (int round = 0; round < 6; ++round) {
    DaemonProcess daemon(FFRECORDD, Arguments());
    const std::string address = daemon.WaitReady();
    ASSERT_FALSE(address.empty()) << daemon.output();
    const auto uri = [&](const std::string& name) { return "ffrecord://" + address + "/" + name; };
    for (const auto& [name, records] : acknowledged) EXPECT_EQ(ReadAll(uri(name)), records);
    EXPECT_EQ(daemon.output().find("event=extent_"), std::string::npos) << daemon.output();

    // One more for sure, then as many as a kill lets through.
    std::thread killer;
    for (int i = 0; i < 20; ++i) {
      const std::string name = std::to_string(round) + "/" + std::to_string(i);
      const test::TestFile file({name, std::string(random() % 100'000, 'x')});
      const SessionOptions patience = i == 0 ? kOptions : SessionOptions{700ms};
      const auto published = PublishDataset({{file.path()}}, uri(name), false, patience, {});
      if (!published) break;
      acknowledged.emplace_back(name, file.records());
      if (i == 0) {
        killer = std::thread([&daemon, wait = random() % 150] {
          std::this_thread::sleep_for(std::chrono::milliseconds(wait));
          daemon.Signal(SIGKILL);
        });
      }
    }
    killer.join();
    EXPECT_EQ(daemon.Wait(60s), -SIGKILL);
  }
  EXPECT_GE(acknowledged.size(), 6U);
}

TEST_F(FfrecorddTest, RefusesWhatItCannotDoWithWordsAndAStatus) {
  DaemonProcess daemon(FFRECORDD, Arguments());
  const std::string address = daemon.WaitReady();
  ASSERT_FALSE(address.empty()) << daemon.output();
  test::WriteFile(folder_ / "file", "");
  test::WriteFile(folder_ / "folder.sqlite", "");
  std::filesystem::create_directory(folder_ / "damaged");
  test::WriteFile(folder_ / "damaged" / "metadata.sqlite", std::string(8192, 'x'));
  struct Refusal {
    std::vector<std::string> arguments;
    int exit_code;
    std::string words;
  };
  const std::string data = (folder_ / "data").string();
  const std::string other = (folder_ / "other").string();
  const std::string any = "127.0.0.1:0";
  const Refusal refusals[] = {
      {{"--data", other, "--listen", address}, kExitEnvironment, address},
      {{"--data", data, "--listen", any}, kExitEnvironment, "another ffrecordd uses"},
      {{"--data", (folder_ / "file").string(), "--listen", any}, kExitEnvironment, "file"},
      {{"--data", (folder_ / "no/parent").string(), "--listen", any}, kExitEnvironment, "parent"},
      {{"--data", (folder_ / "damaged").string(), "--listen", any}, kExitEnvironment, "metadata"},
      {{"--data", other, "--listen", "0.0.0.0:0"}, kExitUsage, "--insecure"},
      {{"--data", other, "--listen", "127.example.org:0"}, kExitUsage, "--insecure"},
      {{"--data", other, "--listen", "nonsense:port"}, kExitUsage, "nonsense"},
      {{"--data", other, "--cores", "-1"}, kExitUsage, "cores"},
      {{"--data", other, "--io-engine", "magic"}, kExitUsage, "magic"},
      {{"--data", other, "--bogus"}, kExitUsage, "bogus"},
      {{}, kExitUsage, "--data"},
  };
  for (const Refusal& refusal : refusals) {
    DaemonProcess refused(FFRECORDD, refusal.arguments);
    EXPECT_EQ(refused.Wait(60s), refusal.exit_code) << refusal.words << "\n" << refused.output();
    EXPECT_NE(refused.output().find(refusal.words), std::string::npos) << refusal.words << "\n"
                                                                       << refused.output();
  }
  EXPECT_FALSE(std::filesystem::exists(other + "/metadata.sqlite"));
}

TEST_F(FfrecorddTest, EachEngineServes) {
  for (const char* engine : {"threads", "io_uring"}) {
    auto arguments = Arguments();
    arguments.insert(arguments.end(), {"--io-engine", engine, "--cores", "1"});
    DaemonProcess daemon(FFRECORDD, arguments);
    const std::string address = daemon.WaitReady();
    if (address.empty() && engine == std::string("io_uring")) GTEST_SKIP() << daemon.output();
    ASSERT_FALSE(address.empty()) << daemon.output();
    EXPECT_NE(daemon.output().find(std::string("engine=") + engine), std::string::npos);
    const test::TestFile file({engine, std::string(3 << 20, 'r')});
    const std::string uri = "ffrecord://" + address + "/" + engine;
    const auto published = Publish(file.path(), uri);
    ASSERT_TRUE(published) << published.error().message;
    EXPECT_EQ(ReadAll(uri), file.records());
  }
}

TEST_F(FfrecorddTest, AFullDiskIsToldAndNothingHalfVisibleStays) {
  std::filesystem::create_directory(folder_ / "data");
  if (::mount("tmpfs", (folder_ / "data").c_str(), "tmpfs", 0, "size=6m") != 0)
    GTEST_SKIP() << "tmpfs cannot be mounted here";
  {
    DaemonProcess daemon(FFRECORDD, Arguments());
    const std::string address = daemon.WaitReady();
    ASSERT_FALSE(address.empty()) << daemon.output();
    const std::string base = "ffrecord://" + address + "/";
    const test::TestFile small({"small"});
    const test::TestFile large({std::string(16 << 20, 'l')});

    const auto refused = Publish(large.path(), base + "large");

    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kIo) << refused.error().message;
    EXPECT_EQ(refused.error().system_errno, ENOSPC) << refused.error().message;
    EXPECT_EQ(OpenDataset({{base + "large"}}, {}, kOptions).error().code, ErrorCode::kNotFound);
    ASSERT_TRUE(Publish(small.path(), base + "small"));
    EXPECT_EQ(ReadAll(base + "small"), small.records());
    daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(20s), 0);
  }
  ::umount((folder_ / "data").c_str());
}

}  // namespace
}  // namespace ffrecord::client
