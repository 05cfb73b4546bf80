// Goal: however many threads decode at once, with however many threads each, the process has one
// pool of workers, and what comes out is the same.
// Method: batches of pixels, decoded by several threads and by a forked child; the tasks that the
// kernel lists, and the signals that they block.

#include <ffrecord/images.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace ffrecord {
namespace {

constexpr std::uint32_t kSide = 90;
constexpr std::size_t kCount = 40;

// What becomes of a batch of noise.
std::vector<std::byte> Decoded(std::uint32_t threads) {
  const auto decoder = ImageDecoder::Make({.height = 32,
                                           .width = 24,
                                           .crop = CropKind::kRandom,
                                           .flip_probability = 0.5,
                                           .type = PixelType::kF16,
                                           .layout = PixelLayout::kPlanar})
                           .value();
  std::vector<std::byte> pixels(kSide * kSide * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::byte>(i * i >> 7);
  std::vector<Picture> pictures(kCount);
  const std::size_t size = decoder.SizeOf(pictures[0]);
  std::vector<std::byte> out(kCount * size);
  for (std::size_t i = 0; i < kCount; ++i) {
    pictures[i].pixels = pixels.data();
    pictures[i].height = pictures[i].width = kSide - static_cast<std::uint32_t>(i);
    pictures[i].position = i;
    pictures[i].out = out.data() + i * size;
  }
  decoder.Decode(pictures, 1, 2, threads);
  for (const Picture& picture : pictures)
    if (picture.error) return {};
  return out;
}

std::size_t Processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0
             ? static_cast<std::size_t>(CPU_COUNT(&allowed))
             : 64;
}

// Whether a task of this process leaves signals to others, but for faults, as workers do.
bool IsQuiet(const std::filesystem::path& task) {
  std::ifstream status(task / "status");
  for (std::string word; status >> word;) {
    if (word != "SigBlk:" || !(status >> word)) continue;
    const std::uint64_t blocked = std::stoull(word, nullptr, 16);
    return (blocked >> (SIGINT - 1) & 1) == 1 && (blocked >> (SIGSEGV - 1) & 1) == 0;
  }
  return false;  // It has ended.
}

TEST(DecodeThreadsTest, AnyNumberOfThreadsMakesTheSame) {
  const auto alone = Decoded(1);
  ASSERT_FALSE(alone.empty());
  for (const std::uint32_t threads : {0U, 2U, 7U, 1000U, 0xFFFF'FFFFU})
    EXPECT_EQ(Decoded(threads), alone) << threads;
}

TEST(DecodeThreadsTest, ABatchThatIsGivenUpEndsEarly) {
  const auto decoder = ImageDecoder::Make({.height = 2, .width = 2}).value();
  constexpr std::uint32_t kLargeSide = 1000;
  const std::vector<std::byte> pixels(kLargeSide * kLargeSide * 3, std::byte{1});
  std::vector<Picture> pictures(4000);
  const std::size_t size = decoder.SizeOf(pictures[0]);
  for (const std::uint32_t threads : {1U, 4U}) {
    std::vector<std::byte> out(pictures.size() * size, std::byte{0xAA});
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      pictures[i].pixels = pixels.data();
      pictures[i].height = pictures[i].width = kLargeSide;
      pictures[i].out = out.data() + i * size;
    }
    int questions = 0;
    decoder.Decode(pictures, 1, 2, threads, [&] { return ++questions > 0; });
    EXPECT_EQ(questions, 1);
    EXPECT_EQ(out.front(), std::byte{1});
    EXPECT_EQ(out.back(), std::byte{0xAA});
  }
}

TEST(DecodeThreadsTest, ManyLoaderThreadsShareTheWorkersOfTheProcess) {
  const auto alone = Decoded(1);
  constexpr std::size_t kLoaders = 6;
  std::atomic<int> right{0};
  std::vector<std::thread> loaders;
  for (std::size_t i = 0; i < kLoaders; ++i)
    loaders.emplace_back([&] {
      for (int round = 0; round < 10; ++round) right += Decoded(64) == alone ? 1 : 0;
    });
  for (std::thread& loader : loaders) loader.join();
  EXPECT_EQ(right, 60);

  std::size_t workers = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    workers += IsQuiet(task.path()) ? 1 : 0;
  EXPECT_LT(workers, Processors());
  EXPECT_EQ(workers > 0, Processors() > 1);
}

TEST(DecodeThreadsTest, AForkedChildDecodesWithWorkersOfItsOwn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's allocator may be locked for ever in a child of many threads";
#endif
  const auto alone = Decoded(1);
  ASSERT_EQ(Decoded(64), alone);  // Now there are workers, which the child does not have.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(Decoded(64) == alone ? 7 : 8);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace ffrecord
