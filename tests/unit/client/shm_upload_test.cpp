// Goal: uploads through shared memory: the daemon takes each piece out of memory that it may only
// read, and its refusals end the upload at once.
// Method: a daemon by hand, which keeps what it took.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bytes.h"
#include "client/dataset/upload.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/slab.h"
#include "local_daemon.h"
#include "one_daemon.h"
#include "test_file.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;

// The daemon's side of uploads through shared memory, by hand: keeps what it took.
class UploadsTest : public testing::Test {
 protected:
  bool Answer(LocalDaemon::Request& request) {
    net::Endpoint& endpoint = request.endpoint;
    const auto reply = [&](std::span<const std::byte> body) {
      (void)endpoint.Send(ReplyHeader(net::ReplyTo(request.header.type), request.header), body, {});
    };
    if (request.header.type == FrameType::kSlabRegister) {
      const auto given = net::SlabRegister::Decode(endpoint.body()).value();
      EXPECT_EQ(given.use, net::SlabRegister::Use::kIsRead);
      ForeignFd memory = endpoint.descriptors()->TakeDescriptor();
      EXPECT_LT(::pwrite(memory.get(), "x", 1, 0), 0);  // It is there to be read.
      slab_ = net::UploadSlab::Take(std::move(memory), given.size_bytes).value();
      if (refuses_slabs_) return Refuse(request);
      reply({});
    } else if (request.header.type == FrameType::kPutBegin) {
      ++begun_count_;
      connection_ = request.connection;
      taken_.clear();
      reply(net::PutBeginReply{false}.Encode());
    } else if (request.header.type == FrameType::kPutPull) {
      const auto pull = net::PutPull::Decode(endpoint.body()).value();
      if (refuses_pieces_) return Refuse(request);
      EXPECT_EQ(pull.offset_bytes, taken_.size());
      taken_.resize(taken_.size() + pull.size_bytes);
      EXPECT_TRUE(slab_->Read(pull.slab_offset_bytes,
                              std::span(taken_).subspan(pull.offset_bytes, pull.size_bytes)));
      ++pulled_count_;
      reply({});
    } else if (request.header.type == FrameType::kPutSeal) {
      EXPECT_EQ(net::PutSeal::Decode(endpoint.body()).value().xxh3, Xxh3(taken_));
      reply({});
    } else {
      ADD_FAILURE() << static_cast<int>(request.header.type);
    }
    return true;
  }
  static bool Refuse(LocalDaemon::Request& request) {
    (void)request.endpoint.Send(ReplyHeader(FrameType::kError, request.header),
                                net::ErrorReply{ErrorCode::kIo, ENOSPC, "no room"}.Encode(), {});
    return true;
  }

  bool refuses_slabs_ = false, refuses_pieces_ = false;
  std::shared_ptr<const net::UploadSlab> slab_;
  std::vector<std::byte> taken_;
  std::atomic<int> begun_count_ = 0, pulled_count_ = 0, connection_ = -1;
  const LocalDaemon daemon_{[this](auto& request) { return Answer(request); }};
  std::mt19937_64 random_{5};
  const std::string data_ = test::RandomText(9'500'000, random_);
};

TEST_F(UploadsTest, TheDaemonTakesThePiecesOutOfMemoryThatItMayOnlyRead) {
  Upload upload(test::OneDaemon(daemon_.address(), {20s, Transport::kShm}));
  const test::TempFolder folder;
  test::WriteFile(folder / "file", data_);
  const auto bytes = test::AsBytes(data_);
  const std::span<const std::byte> pieces[] = {bytes.first(1), bytes.subspan(1, 5'000'000),
                                               bytes.subspan(5'000'001)};
  for (const bool is_file : {true, false}) {
    const auto put = [&]() -> Result<ManifestFile> {
      if (!is_file) return upload.PutBytes("name", pieces);
      const std::vector<Upload::LocalFile> files{{"name", folder / "file"}};
      return FFR_TRY(upload.PutFiles(files)).front();
    }();
    ASSERT_TRUE(put) << put.error().message;
    EXPECT_TRUE(std::ranges::equal(taken_, bytes));
    EXPECT_EQ(put.value().extents[0].xxh3, Xxh3(bytes));
  }
  EXPECT_GE(pulled_count_, 20);
}

TEST_F(UploadsTest, AnErrorForAPieceEndsTheUploadAtOnce) {
  refuses_pieces_ = true;
  Upload upload(test::OneDaemon(daemon_.address(), {20s, Transport::kShm}));
  const auto bytes = test::AsBytes(data_);
  const auto put = upload.PutBytes("name", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kIo) << put.error().message;
  EXPECT_EQ(put.error().system_errno, ENOSPC);
  EXPECT_EQ(begun_count_, 1);
}

// Answers to its pieces may still come: nobody else gets that connection.
TEST_F(UploadsTest, AFileThatCannotBeReadOnEndsItsConnectionAndTheNextUploadHasAnother) {
  Upload upload(test::OneDaemon(daemon_.address(), {20s, Transport::kShm}));
  const auto bytes = test::AsBytes(data_);
  const auto failed = upload.PutFrom(
      "name", bytes.size(),
      [&](std::uint64_t offset, std::span<std::byte> room) -> Result<std::span<const std::byte>> {
        if (offset > 2'000'000) return Error{ErrorCode::kCorruption, "the file is gone"};
        return bytes.subspan(offset, room.size());
      });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kCorruption);
  const int connection = connection_;

  ASSERT_TRUE(upload.PutBytes("name", {&bytes, 1}));
  EXPECT_NE(connection_, connection);
  EXPECT_TRUE(std::ranges::equal(taken_, bytes));
}

TEST_F(UploadsTest, MemoryThatIsRefusedIsAnErrorWhereItWasDemanded) {
  refuses_slabs_ = true;
  Upload upload(test::OneDaemon(daemon_.address(), {20s, Transport::kShm}));
  const auto bytes = test::AsBytes(data_);
  const auto put = upload.PutBytes("name", {&bytes, 1});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(put.error().message.find("transport=shm was asked for"), std::string::npos)
      << put.error().message;
}

}  // namespace
}  // namespace ffrecord::client
