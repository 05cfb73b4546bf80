// Goal: an upload cuts what it is given into extents with their checksums, and ends at the first
// error that waiting cannot mend.
// Method: a daemon that is a script takes the pieces, or says that its disk is full.

#include "client/dataset/upload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>

#include "bytes.h"
#include "fake_daemon.h"
#include "libffrecord/base/checksum.h"
#include "one_daemon.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::AsBytes;
using test::FakeDaemon;
using Request = test::FakeDaemon::Request;
using namespace std::chrono_literals;

TEST(UploadTest, AFullDiskEndsTheUploadAtOnce) {
  int begun = 0;
  FakeDaemon daemon([&](Request& request) {
    if (request.header.type == FrameType::kPutBegin) {
      ++begun;
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutBegin),
                       net::PutBeginReply{false}.Encode());
    } else if (request.header.type == FrameType::kPutData) {
      FakeDaemon::SendError(request, ErrorCode::kIo, ENOSPC);
    } else {
      FakeDaemon::SendError(request, ErrorCode::kIo, ENOSPC);
    }
    return true;
  });
  Upload upload(test::OneDaemon(daemon.address(), {1h}));
  const std::vector<std::byte> bytes(20 << 20);
  const std::span<const std::byte> piece(bytes);

  const auto put = upload.PutBytes("file", {&piece, 1});

  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kIo) << put.error().message;
  EXPECT_EQ(put.error().system_errno, ENOSPC);
  EXPECT_EQ(begun, 1);
}

TEST(UploadTest, PiecesBecomeExtentsWithTheirSums) {
  std::vector<std::byte> received;
  FakeDaemon daemon([&](Request& request) {
    const bool is_begin = request.header.type == FrameType::kPutBegin;
    if (is_begin)
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutBegin),
                       net::PutBeginReply{false}.Encode());
    else if (request.header.type == FrameType::kPutSeal)
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutSeal), {});
    return true;
  });
  Upload upload(test::OneDaemon(daemon.address(), {20s}));
  const std::vector<std::byte> large(kExtentSizeMax - 1, std::byte{7});
  const std::span<const std::byte> pieces[] = {AsBytes("ab"), {}, large, AsBytes("yz")};
  std::uint64_t told = 0;

  const auto file = upload.PutBytes("name", pieces, [&](std::uint64_t done) {
    EXPECT_GT(done, told);
    told = done;
  });

  ASSERT_TRUE(file) << file.error().message;
  std::vector<std::byte> whole;
  for (const auto piece : pieces) whole.insert(whole.end(), piece.begin(), piece.end());
  EXPECT_EQ(file.value().size_bytes, whole.size());
  EXPECT_EQ(told, whole.size());
  ASSERT_EQ(file.value().extents.size(), 2U);
  EXPECT_EQ(file.value().extents[0].xxh3, Xxh3(std::span(whole).first(kExtentSizeMax)));
  EXPECT_EQ(file.value().extents[1].xxh3, Xxh3(std::span(whole).subspan(kExtentSizeMax)));
  EXPECT_EQ(UploadOf(file.value().extents[0].id), UploadOf(file.value().extents[1].id));
  EXPECT_TRUE(upload.PutBytes("empty", {}).value().extents.empty());
}

TEST(UploadTest, AFileIsSentWhileAnotherWaitsForItsSeal) {
  int begun = 0;
  std::deque<Request> waiting;
  const auto seal = [](Request& request) {
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutSeal), {});
  };
  FakeDaemon daemon([&](Request& request) {
    if (request.header.type == FrameType::kPutBegin) {
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kPutBegin),
                       net::PutBeginReply{false}.Encode());
      if (++begun == 2) std::ranges::for_each(waiting, seal);
    } else if (request.header.type == FrameType::kPutSeal && begun < 2) {
      waiting.push_back(request);
    } else if (request.header.type == FrameType::kPutSeal) {
      seal(request);
    }
    return true;
  });
  const test::TempFolder folder;
  const std::vector<std::string> texts{"the first", "", "the third"};
  std::vector<Upload::LocalFile> files;
  for (const std::string& text : texts) {
    files.push_back(
        {"file-" + std::to_string(files.size()), folder / std::to_string(files.size())});
    test::WriteFile(files.back().path, text);
  }
  Upload upload(test::OneDaemon(daemon.address(), {10s}), 7);
  std::uint64_t told = 0;

  const auto put = upload.PutFiles(files, [&](std::uint64_t done) { told = done; });

  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(told, 18U);
  ASSERT_EQ(put.value().size(), texts.size());
  for (std::uint32_t i = 0; i < texts.size(); ++i) {
    const ManifestFile& file = put.value()[i];
    EXPECT_EQ(file.name, files[i].name);
    EXPECT_EQ(file.size_bytes, texts[i].size());
    ASSERT_EQ(file.extents.size(), texts[i].empty() ? 0U : 1U);
    if (texts[i].empty()) continue;
    EXPECT_EQ(file.extents.front().id, MakeExtentId(7, i, 0));
    EXPECT_EQ(file.extents.front().xxh3, Xxh3(AsBytes(texts[i])));
  }
}

TEST(UploadTest, AFileThatIsNotThereFailsTheCallBeforeAnythingIsSent) {
  int begun = 0;
  FakeDaemon daemon([&](Request&) { return ++begun < 0; });
  const test::TempFolder folder;
  test::WriteFile(folder / "there", "bytes");
  const std::vector<Upload::LocalFile> files{{"a", folder / "there"}, {"b", folder / "absent"}};
  Upload upload(test::OneDaemon(daemon.address(), {5s}));
  const auto put = upload.PutFiles(files);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kNotFound) << put.error().message;
  EXPECT_EQ(begun, 0);
}

}  // namespace
}  // namespace ffrecord::client
