// Goal: the owner and the writer of a slab see the same bytes; a writer is harmed by no descriptor
// that a peer can send, and by nothing the peer does with it afterwards.
// Method: slabs made and mapped in one process; memfds with every seal and size but the right ones,
// files, pipes; a peer that shrinks and empties what it has given.

#include "libffrecord/net/transport/slab.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "interrupted_fallocate.h"
#include "temp_folder.h"

namespace ffrecord::net {
namespace {

constexpr std::uint64_t kSize = 16 * kSlabPageBytes;

UniqueFd Duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

UniqueFd Memfd(std::uint64_t size, int seals, unsigned flags = MFD_ALLOW_SEALING) {
  UniqueFd fd(::memfd_create("slab-test", MFD_CLOEXEC | flags));
  if (fd && ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return {};
  if (fd && seals != 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return {};
  return fd;
}

TEST(SlabTest, OwnerAndWriterSeeTheSameBytes) {
  const auto slab = Slab::Make(kSize);
  ASSERT_TRUE(slab) << slab.error().message;
  ASSERT_EQ(slab.value().bytes().size(), kSize);
  const auto remote = RemoteSlab::Map(Duplicate(slab.value().fd()), kSize);
  ASSERT_TRUE(remote) << remote.error().message;

  const auto place = remote.value()->At(kSize - 5, 5);
  ASSERT_TRUE(place);
  std::memcpy(place.value().data(), "bytes", 5);

  EXPECT_EQ(std::memcmp(slab.value().bytes().data() + kSize - 5, "bytes", 5), 0);
}

TEST(SlabTest, IsMadeWhileTheThreadIsInterrupted) {
  test::fallocate_interruptions = 3;
  const auto slab = Slab::Make(kSize);
  ASSERT_TRUE(slab) << slab.error().message;
  EXPECT_EQ(test::fallocate_interruptions, 0);
}

TEST(SlabTest, APeerThatReadsCanDoNothingElse) {
  const auto slab = Slab::Make(kSize, Slab::Peer::kReads).value();
  std::memcpy(slab.bytes().data() + kSize - 5, "bytes", 5);
  const auto upload = UploadSlab::Take(Duplicate(slab.fd()), kSize);
  ASSERT_TRUE(upload) << upload.error().message;

  std::array<std::byte, 5> read{};
  ASSERT_TRUE(upload.value()->Read(kSize - 5, read));
  EXPECT_EQ(std::memcmp(read.data(), "bytes", 5), 0);
  EXPECT_EQ(upload.value()->Read(kSize - 4, read).error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(upload.value()->Read(~std::uint64_t{0} - 3, read).error().code, ErrorCode::kOutOfRange);

  EXPECT_FALSE(RemoteSlab::Map(Duplicate(slab.fd()), kSize));
  EXPECT_LT(::pwrite(slab.fd(), "x", 1, 0), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(slab.fd());
  const UniqueFd anew(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_LT(::pwrite(anew.get(), "x", 1, 0), 0);
  slab.bytes()[0] = std::byte{7};  // Its owner can.
}

TEST(SlabTest, MemoryThatTheOwnerTakesAwayIsAnErrorForWhoReads) {
  UniqueFd fd = Memfd(kSize, 0);
  const auto upload = UploadSlab::Take(Duplicate(fd.get()), kSize).value();
  ASSERT_EQ(::ftruncate(fd.get(), kSlabPageBytes), 0);
  std::array<std::byte, 2> read{};
  EXPECT_TRUE(upload->Read(kSlabPageBytes - 2, read));
  EXPECT_EQ(upload->Read(kSlabPageBytes - 1, read).error().code, ErrorCode::kIo);
}

TEST(SlabTest, WhatIsNoMemoryOfItsSizeIsRefusedByWhoReads) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd pipe_end(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(UploadSlab::Take(std::move(pipe_end), kSize));
  EXPECT_FALSE(UploadSlab::Take(UniqueFd(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), kSize));
  EXPECT_FALSE(UploadSlab::Take(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), kSize));
  EXPECT_FALSE(UploadSlab::Take(Memfd(kSize + kSlabPageBytes, 0), kSize));
  EXPECT_FALSE(UploadSlab::Take(UniqueFd(), kSize));
  EXPECT_TRUE(UploadSlab::Take(Memfd(kSize, 0), kSize));
}

TEST(SlabTest, PlacesOutsideAreRefusedHoweverTheyAreAskedFor) {
  const auto slab = Slab::Make(kSize).value();
  const auto remote = RemoteSlab::Map(Duplicate(slab.fd()), kSize).value();
  EXPECT_TRUE(remote->At(0, kSize));
  EXPECT_TRUE(remote->At(kSize, 0));
  const std::uint64_t huge = ~std::uint64_t{0};
  for (const auto& [offset, size] : {std::pair<std::uint64_t, std::uint64_t>{0, kSize + 1},
                                     {1, kSize},
                                     {kSize, 1},
                                     {kSize + 1, 0},
                                     {huge, 1},
                                     {1, huge},
                                     {huge, huge},
                                     {huge - 3, 4}}) {
    const auto place = remote->At(offset, size);
    ASSERT_FALSE(place) << offset << " " << size;
    EXPECT_EQ(place.error().code, ErrorCode::kOutOfRange);
  }
}

TEST(SlabTest, OnlyWholePagesUpToTheLimitMakeASlab) {
  for (const std::uint64_t bad :
       {std::uint64_t{0}, std::uint64_t{1}, kSize + 1, kSlabSizeBytesMax + kSlabPageBytes,
        ~std::uint64_t{0}, ~std::uint64_t{0} - kSlabPageBytes + 1}) {
    EXPECT_EQ(Slab::Make(bad).error().code, ErrorCode::kInvalidArgument) << bad;
    EXPECT_EQ(RemoteSlab::Map(Memfd(kSize, 0), bad).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(SlabTest, WhatIsNoSealedMemoryOfItsSizeIsRefusedByTheWriter) {
  constexpr int kRight = F_SEAL_SHRINK | F_SEAL_GROW;
  const test::TempFolder folder;
  test::WriteFile(folder / "file", std::string(kSize, 'f'));
  const std::pair<const char*, std::function<UniqueFd()>> descriptors[] = {
      {"none", [] { return UniqueFd(); }},
      {"a file", [&] { return UniqueFd(::open((folder / "file").c_str(), O_RDWR | O_CLOEXEC)); }},
      {"a device", [] { return UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)); }},
      {"a pipe",
       [] {
         int ends[2];
         EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
         ::close(ends[0]);
         return UniqueFd(ends[1]);
       }},
      {"no seals", [] { return Memfd(kSize, 0); }},
      {"it may shrink", [] { return Memfd(kSize, F_SEAL_GROW); }},
      {"it may grow", [] { return Memfd(kSize, F_SEAL_SHRINK); }},
      {"too short", [] { return Memfd(kSize - kSlabPageBytes, kRight); }},
      {"too long", [] { return Memfd(kSize + kSlabPageBytes, kRight); }},
      {"empty", [] { return Memfd(0, kRight); }},
      {"not to be written", [] { return Memfd(kSize, kRight | F_SEAL_WRITE); }},
      {"opened for reading",
       [] {
         const UniqueFd fd = Memfd(kSize, kRight);
         const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
         return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
       }},
  };
  for (const auto& [name, make] : descriptors) {
    const auto mapped = RemoteSlab::Map(make(), kSize);
    ASSERT_FALSE(mapped) << name;
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument)
        << name << ": " << mapped.error().message;
    EXPECT_NE(mapped.error().message.find("slab is refused"), std::string::npos) << name;
  }
  EXPECT_TRUE(RemoteSlab::Map(Memfd(kSize, kRight), kSize));
}

// Their pages may be missing when they are first written to: that would be a signal.
TEST(SlabTest, HugePagesAreRefusedByTheWriter) {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  UniqueFd fd(::memfd_create("slab-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd || ::ftruncate(fd.get(), kHuge) != 0) GTEST_SKIP() << "no huge pages here";
  ASSERT_EQ(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  const auto mapped = RemoteSlab::Map(std::move(fd), kHuge);
  ASSERT_FALSE(mapped);
  EXPECT_NE(mapped.error().message.find("ordinary pages"), std::string::npos)
      << mapped.error().message;
}

TEST(SlabTest, NothingTheOwnerDoesLaterTakesTheMemoryAwayFromTheWriter) {
  auto slab = Slab::Make(kSize).value();
  const auto remote = RemoteSlab::Map(Duplicate(slab.fd()), kSize).value();

  EXPECT_NE(::ftruncate(slab.fd(), 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(::fcntl(slab.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  ASSERT_EQ(::fallocate(slab.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kSize), 0);
  std::memset(remote->At(0, kSize).value().data(), 1, kSize);
  slab = Slab::Make(kSlabPageBytes).value();  // The first one is unmapped and closed.
  std::memset(remote->At(0, kSize).value().data(), 2, kSize);

  EXPECT_EQ(remote->At(kSize - 1, 1).value()[0], std::byte{2});
}

}  // namespace
}  // namespace ffrecord::net
