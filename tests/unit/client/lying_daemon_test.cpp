// Goal: a reader believes no byte that it did not ask for, and finds the truth on another
// connection. Method: a daemon that is a script answers reads with what was not asked for, too
// much, too little, twice, or not at all.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "fake_daemon.h"
#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::FakeDaemon;
using test::OneFile;
using Request = test::FakeDaemon::Request;
using namespace std::chrono_literals;

class LyingDaemonTest : public testing::Test {
 protected:
  // What is answered to a BATCH_READ of two entries of 100 and 50 bytes.
  using Lie = std::function<void(Request&)>;

  // Reads two ranges from a daemon that lies once, on its first connection if `lies_once`.
  // `timeout` is waited for where nothing else than lies is said.
  std::vector<ErrorCode> Read(const Lie& lie, bool lies_once = false,
                              std::chrono::milliseconds timeout = 400ms) {
    FakeDaemon daemon([&](Request& request) {
      if (request.header.type == FrameType::kExtentBind) {
        FakeDaemon::Send(request, net::ReplyTo(FrameType::kExtentBind),
                         net::ExtentBindReply{1, 0, {}}.Encode());
      } else if (lies_once && request.connection > 0) {
        Truth(request);
      } else {
        lie(request);
      }
      return true;
    });
    memory_.assign(400, std::byte{0xEE});
    const net::RemoteFiles files(net::Session::Get(daemon.address()), OneFile(1000), "location",
                                 {lies_once ? 10s : timeout});
    RangeRead ranges[] = {{0, 0, std::span(memory_).subspan(100, 100)},
                          {0, 500, std::span(memory_).subspan(250, 50)}};
    const auto read = files.Read(ranges);
    EXPECT_TRUE(read) << read.error().message;
    // Whatever it said, nothing was written but to the places that it was asked for.
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const bool is_asked = (i >= 100 && i < 200) || (i >= 250 && i < 300);
      EXPECT_TRUE(is_asked || memory_[i] == std::byte{0xEE}) << i;
    }
    // What is good has its bytes.
    for (const RangeRead& range : ranges)
      for (const std::byte byte : range.destination)
        EXPECT_TRUE(range.status != ErrorCode::kOk || byte == std::byte{0x11});
    return {ranges[0].status, ranges[1].status};
  }

  static void Data(Request& request, const std::vector<net::BatchPiece>& pieces,
                   std::size_t payload_size) {
    const std::vector<std::byte> payload(payload_size, std::byte{0x11});
    FakeDaemon::Send(request, FrameType::kBatchData, net::BatchData{pieces}.Encode(), payload);
  }
  static void Done(Request& request, const net::BatchDone& done) {
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kBatchRead), done.Encode());
  }
  // Every entry that was asked for, the last one first and in two pieces.
  static void Truth(Request& request) {
    const auto entries = net::BatchRead::Decode(request.body).value().entries;
    net::BatchDone done;
    for (auto i = static_cast<std::uint32_t>(entries.size()); i-- > 0;) {
      const std::uint32_t size = entries[i].size_bytes;
      Data(request, {{i, 0, 20}}, 20);
      Data(request, {{i, 20, size - 20}}, size - 20);
      ++done.ok_count;
      done.size_bytes += size;
    }
    Done(request, done);
  }

  static inline const std::vector<ErrorCode> kGood{ErrorCode::kOk, ErrorCode::kOk};
  std::vector<std::byte> memory_;
};

TEST_F(LyingDaemonTest, TheTruthIsBelieved) {
  EXPECT_EQ(Read(Truth), kGood);
  EXPECT_EQ(memory_[100], std::byte{0x11});
  EXPECT_EQ(memory_[299], std::byte{0x11});
}

TEST_F(LyingDaemonTest, NoLieIsBelievedAndTheTruthIsFoundOnAnotherConnection) {
  const std::pair<const char*, Lie> lies[] = {
      {"an entry that was not asked for",
       [](Request& r) {
         Data(r, {{2, 0, 10}}, 10);
       }},
      {"a piece past the entry",
       [](Request& r) {
         Data(r, {{1, 0, 51}}, 51);
       }},
      {"a gap",
       [](Request& r) {
         Data(r, {{0, 10, 10}}, 10);
       }},
      {"a piece twice",
       [](Request& r) {
         Data(r, {{0, 0, 10}, {0, 0, 10}}, 20);
       }},
      {"a payload that is larger",
       [](Request& r) {
         Data(r, {{0, 0, 10}}, 11);
       }},
      {"a payload that is smaller",
       [](Request& r) {
         Data(r, {{0, 0, 10}}, 9);
       }},
      {"good without bytes",
       [](Request& r) {
         Done(r, {2, 0, 150, 0, 0, 0, 0, {}});
       }},
      {"good with half the bytes",
       [](Request& r) {
         Data(r, {{0, 0, 99}, {1, 0, 50}}, 149);
         Done(r, {2, 0, 150, 0, 0, 0, 0, {}});
       }},
      {"too few statuses",
       [](Request& r) {
         Done(r, {0, 1, 0, 0, 0, 0, 0, {{}, {}}});
       }},
      {"another batch",
       [](Request& r) {
         Done(r, {3, 0, 0, 0, 0, 0, 0, {}});
       }},
      {"a batch of one entry",
       [](Request& r) {
         Done(r, {0, 1, 0, 0, 0, 0, 0, {net::EntryStatus::kNotHere}});
       }},
      {"another type", [](Request& r) { FakeDaemon::Send(r, FrameType::kPutData, {}); }},
      {"the end", [](Request& r) { r.endpoint.Close(); }},
  };
  for (const auto& [name, lie] : lies) {
    SCOPED_TRACE(name);
    EXPECT_EQ(Read(lie, /*lies_once=*/true), kGood);
    for (const ErrorCode status : Read(lie)) {
      EXPECT_TRUE(status == ErrorCode::kUnavailable || status == ErrorCode::kDeadlineExceeded ||
                  status == ErrorCode::kOk);
    }
  }
}

TEST_F(LyingDaemonTest, StatusesAreThoseOfTheEntriesAndOnlyBusyOnesAreAskedAgain) {
  using net::EntryStatus;
  const auto answer = [](EntryStatus status) {
    return [status](Request& r) {
      Data(r, {{0, 0, 100}}, 100);
      Done(r, {1, 1, 100, 0, 0, 0, 0, {EntryStatus::kOk, status}});
    };
  };
  const std::pair<EntryStatus, ErrorCode> expected[] = {
      {EntryStatus::kNotHere, ErrorCode::kNotFound},
      {EntryStatus::kCorrupt, ErrorCode::kCorruption},
      {EntryStatus::kDenied, ErrorCode::kDenied},
      {EntryStatus::kIoError, ErrorCode::kIo},
      {EntryStatus::kDeadline, ErrorCode::kDeadlineExceeded},
  };
  for (const auto& [status, code] : expected)
    EXPECT_EQ(Read(answer(status), false, 20s), (std::vector{ErrorCode::kOk, code}));

  int asked = 0;
  const auto busy_at_first = [&](Request& request) {
    if (++asked == 1) return answer(EntryStatus::kBusy)(request);
    const auto batch = net::BatchRead::Decode(request.body).value();
    EXPECT_EQ(batch.entries.size(), 1U);  // Only the one that failed.
    EXPECT_EQ(batch.entries.at(0).offset_bytes, 500U);
    Data(request, {{0, 0, 50}}, 50);
    Done(request, {1, 0, 50, 0, 0, 0, 0, {}});
  };
  EXPECT_EQ(Read(busy_at_first, false, 20s), kGood);
}

// A range over two extents, of which the first comes in pieces, and the second does not come.
TEST_F(LyingDaemonTest, ARangeHasArrivedWhenItsLastByteHas) {
  const DatasetManifest two{
      {{"file",
        kExtentSizeMax + 100,
        {{MakeExtentId(1, 0, 0), kExtentSizeMax, 0}, {MakeExtentId(1, 0, 1), 100, 0}}}}};
  FakeDaemon daemon([&](Request& request) {
    if (request.header.type == FrameType::kExtentBind) {
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kExtentBind),
                       net::ExtentBindReply{2, 0, {}}.Encode());
      return true;
    }
    Data(request, {{0, 0, 40}, {0, 40, 60}}, 100);
    Done(request, {1, 1, 100, 0, 0, 0, 0, {net::EntryStatus::kOk, net::EntryStatus::kIoError}});
    return true;
  });
  const net::RemoteFiles files(net::Session::Get(daemon.address()), two, "location", {10s});
  std::vector<std::byte> memory(150);
  RangeRead range{0, kExtentSizeMax - 100, memory};
  std::vector<ErrorCode> told;

  ASSERT_TRUE(files.RangeReader::ReadEach({&range, 1},
                                          [&](RangeRead& one) { told.push_back(one.status); }));

  EXPECT_EQ(told, std::vector{ErrorCode::kIo});
}

TEST_F(LyingDaemonTest, ExtentsAreBoundOnceUntilTheTableIsFull) {
  std::atomic<int> bound_at_0 = 0;
  FakeDaemon daemon([&](Request& request) {
    if (request.header.type != FrameType::kExtentBind) {
      Truth(request);
      return true;
    }
    bound_at_0 += net::ExtentBind::Decode(request.body).value().first_index == 0;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kExtentBind),
                     net::ExtentBindReply{1, 0, {}}.Encode());
    return true;
  });
  // Of two such files the table holds one.
  DatasetManifest manifest = OneFile(kExtentSizeMax * (net::kBoundExtentCountMax / 2 + 1));
  manifest.files[0].extents.resize(net::kBoundExtentCountMax / 2 + 1);
  const auto session = net::Session::Get(daemon.address());
  const net::RemoteFiles first(session, manifest, "first", {10s});
  const net::RemoteFiles second(session, manifest, "second", {10s});
  const auto reads = [](const net::RemoteFiles& files) {
    std::vector<std::byte> memory(100);
    RangeRead range{0, 0, memory};
    return files.Read({&range, 1}) && range.status == ErrorCode::kOk;
  };

  EXPECT_TRUE(reads(first) && reads(first));
  EXPECT_EQ(bound_at_0, 1);
  EXPECT_TRUE(reads(second) && reads(second));
  EXPECT_EQ(bound_at_0, 2);
  EXPECT_TRUE(reads(first));
  EXPECT_EQ(bound_at_0, 3);
}

TEST_F(LyingDaemonTest, ARangePastTheFileIsCorruptAndIsNotAskedFor) {
  FakeDaemon daemon([](Request&) { return true; });
  const net::RemoteFiles files(net::Session::Get(daemon.address()), OneFile(1000), "location",
                               {300ms});
  std::vector<std::byte> memory(100);
  RangeRead ranges[] = {{0, 901, memory}, {0, ~std::uint64_t{0}, memory}, {0, 1000, {}}};
  ASSERT_TRUE(files.Read(ranges));
  EXPECT_EQ(ranges[0].status, ErrorCode::kCorruption);
  EXPECT_EQ(ranges[1].status, ErrorCode::kCorruption);
  EXPECT_EQ(ranges[2].status, ErrorCode::kOk);
  EXPECT_EQ(files.MapIndex(0, 900, 101).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(daemon.connection_count(), 0);
}

}  // namespace
}  // namespace ffrecord::client
