// Goal: every call ends by its deadline, has one effect however often it is sent, and believes no
// byte that it did not ask for.
// Method: a daemon that is a script: silent, busy, lying, breaking off at chosen places.

#include "libffrecord/net/rpc/session.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "bytes.h"
#include "child.h"
#include "client/dataset/catalog.h"
#include "client/dataset/upload.h"
#include "fake_daemon.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/net/rpc/remote_files.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using test::AsBytes;
using test::FakeDaemon;
using Request = test::FakeDaemon::Request;
using namespace std::chrono_literals;

net::Deadline In(std::chrono::milliseconds time) { return net::Clock::now() + time; }

DatasetManifest OneFile(std::uint64_t size_bytes) {
  return {{{"file", size_bytes, {{MakeExtentId(1, 0, 0), size_bytes, 0}}}}};
}

TEST(LocationTest, AddressesAreParsed) {
  const auto location = net::Location::Parse("ffrecord://localhost/run/a");
  ASSERT_TRUE(location) << location.error().message;
  EXPECT_EQ(location.value().address.host, "localhost");
  EXPECT_EQ(location.value().address.port, kDefaultPort);
  EXPECT_EQ(location.value().name, "run/a");
  EXPECT_EQ(net::Location::Parse("ffrecord://[::1]:77/x").value().address.port, 77);
  EXPECT_EQ(net::Location::Parse("ffrecord://h").value().name, "");
  EXPECT_EQ(net::Location::Parse("ffrecord://h:1/x").value().ToString(), "ffrecord://h:1/x");
  for (const char* bad : {"", "h/x", "http://h/x", "ffrecord:/h/x", "ffrecord://:1/x",
                          "ffrecord://h:x/y", "ffrecord://h:0/y"}) {
    const auto refused = net::Location::Parse(bad);
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(BackoffTest, GrowsToASecondAndVaries) {
  net::Backoff backoff(1);
  std::chrono::milliseconds last{0};
  for (int i = 0; i < 20; ++i) {
    last = backoff.Next();
    EXPECT_LE(last, 1s);
  }
  EXPECT_GE(last, 500ms);
  net::Backoff first(1);
  EXPECT_LE(first.Next(), 10ms);
}

TEST(SessionTest, ASilentDaemonCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([](Request&) { return true; }, /*greets=*/false);
  const auto started = net::Clock::now();

  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(300ms));

  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kDeadlineExceeded) << resolved.error().message;
  EXPECT_LT(net::Clock::now() - started, 20s);
}

TEST(SessionTest, ADaemonThatFallsSilentInACallCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([](Request&) { return true; });
  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(300ms));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kDeadlineExceeded) << resolved.error().message;
}

// Frames that come faster than they are taken are never waited for: no deadline ends them.
TEST(SessionTest, ADaemonTakesItsLeaveOnceAndStillAnswers) {
  for (const int leaves : {1, 2}) {
    FakeDaemon daemon([&](Request& request) {
      for (int i = 0; request.connection == 0 && i < leaves; ++i)
        EXPECT_TRUE(
            request.endpoint.Send({.type = FrameType::kGoAway}, net::GoAway{"bye"}.Encode(), {}));
      FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                       EncodeDatasetManifest(OneFile(10)).value());
      return true;
    });
    const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(60s));
    EXPECT_TRUE(resolved) << resolved.error().message;
    EXPECT_EQ(daemon.connection_count(), leaves);
  }
}

TEST(SessionTest, AListThatDoesNotGoOnIsNotFollowed) {
  std::vector<std::vector<net::ListReply::Entry>> pages;
  std::size_t asked = 0;
  FakeDaemon daemon([&](Request& request) {
    net::ListReply reply;
    reply.entries = pages[std::min(asked++, pages.size() - 1)];
    reply.more = asked < 1000;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kList), reply.Encode());
    return true;
  });
  const auto entry = [](const char* name) { return net::ListReply::Entry{name, 1, 1, 1}; };
  const std::vector<std::vector<net::ListReply::Entry>> lies[] = {
      {{entry("run/a")}},                    // The same page for ever.
      {{entry("run/b")}, {entry("run/a")}},  // Back again.
      {{entry("run/b"), entry("run/a")}},    // In no order.
      {{entry("run/a"), entry("run/a")}},    // The same name twice.
      {{entry("other/a")}},                  // Not what was asked for.
      {{entry("run/a")}, {}},                // There is more, and it is nothing.
  };
  for (const auto& lie : lies) {
    SCOPED_TRACE(&lie - lies);
    pages = lie;
    asked = 0;
    const auto listed = Catalog(net::Session::Get(daemon.address())).List("run/", In(60s));
    ASSERT_FALSE(listed);
    EXPECT_EQ(listed.error().code, ErrorCode::kCorruption) << listed.error().message;
    EXPECT_NE(listed.error().message.find(daemon.address().ToString()), std::string::npos)
        << listed.error().message;
    EXPECT_LT(asked, 5U);
  }
}

TEST(SessionTest, BusyIsAskedAgainOnTheSameConnection) {
  int asked = 0;
  FakeDaemon daemon([&](Request& request) {
    if (++asked < 4) {
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{5}.Encode());
      return true;
    }
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });

  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(60s));

  ASSERT_TRUE(resolved) << resolved.error().message;
  EXPECT_EQ(resolved.value().revision, 3U);
  EXPECT_EQ(resolved.value().manifest, OneFile(10));
  EXPECT_EQ(daemon.connection_count(), 1);
}

TEST(SessionTest, ABusyDaemonIsLeftAloneForAsLongAsItWants) {
  constexpr auto kWanted = 150ms;
  std::vector<net::Clock::time_point> asked;
  FakeDaemon daemon([&](Request& request) {
    asked.push_back(net::Clock::now());
    if (asked.size() < 3) {
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{150}.Encode());
      return true;
    }
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });

  ASSERT_TRUE(Catalog(net::Session::Get(daemon.address())).Resolve("name", In(60s)));

  ASSERT_EQ(asked.size(), 3U);
  EXPECT_GE(asked[1] - asked[0], kWanted);
  EXPECT_GE(asked[2] - asked[1], kWanted);
}

TEST(SessionTest, ABusyDaemonThatWantsForeverCostsTheTimeoutAndNoMore) {
  FakeDaemon daemon([&](Request& request) {
    FakeDaemon::Send(request, FrameType::kBusy, net::Busy{UINT32_MAX}.Encode());
    return true;
  });
  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(300ms));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(resolved.error().message.find("busy"), std::string::npos) << resolved.error().message;
}

TEST(SessionTest, AConnectionThatBreaksIsMadeAnew) {
  FakeDaemon daemon([](Request& request) {
    if (request.connection < 2) return false;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     EncodeDatasetManifest(OneFile(10)).value());
    return true;
  });
  EXPECT_TRUE(Catalog(net::Session::Get(daemon.address())).Resolve("name", In(60s)));
  EXPECT_EQ(daemon.connection_count(), 3);
}

TEST(SessionTest, AnErrorOfTheDaemonIsFinalAndNamesIt) {
  int asked = 0;
  FakeDaemon daemon([&](Request& request) {
    ++asked;
    FakeDaemon::SendError(request, ErrorCode::kIo, EROFS);
    return true;
  });
  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("name", In(60s));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kIo);
  EXPECT_EQ(resolved.error().system_errno, EROFS);
  EXPECT_NE(resolved.error().message.find(daemon.address().ToString()), std::string::npos)
      << resolved.error().message;
  EXPECT_EQ(asked, 1);
}

TEST(SessionTest, ADamagedManifestIsCorruptionAndNamesTheDataset) {
  FakeDaemon daemon([](Request& request) {
    auto manifest = EncodeDatasetManifest(OneFile(10)).value();
    manifest[20] ^= std::byte{1};
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kResolve), net::RevisionReply{3}.Encode(),
                     manifest);
    return true;
  });
  const auto resolved = Catalog(net::Session::Get(daemon.address())).Resolve("some/name", In(60s));
  ASSERT_FALSE(resolved);
  EXPECT_EQ(resolved.error().code, ErrorCode::kCorruption);
  EXPECT_NE(resolved.error().message.find("some/name"), std::string::npos);
}

TEST(SessionTest, ARemovalWhoseReplyWasLostIsDone) {
  FakeDaemon daemon([](Request& request) {
    if (request.connection == 0) return false;  // It was done, but the reply did not arrive.
    FakeDaemon::SendError(request, ErrorCode::kNotFound);
    return true;
  });
  EXPECT_TRUE(Catalog(net::Session::Get(daemon.address())).Remove("name", In(60s)));
}

TEST(SessionTest, ARemovalThatABusyDaemonDidNotTakeIsNotDone) {
  int asked = 0;
  FakeDaemon daemon([&](Request& request) {
    if (++asked == 1)
      FakeDaemon::Send(request, FrameType::kBusy, net::Busy{5}.Encode());
    else
      FakeDaemon::SendError(request, ErrorCode::kNotFound);
    return true;
  });
  const auto removed = Catalog(net::Session::Get(daemon.address())).Remove("name", In(60s));
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(asked, 2);
}

TEST(SessionTest, ARepeatedPublicationIsTheSameAttempt) {
  std::vector<std::vector<std::byte>> bodies;
  FakeDaemon daemon([&](Request& request) {
    bodies.push_back(request.body);
    if (request.connection < 2) return false;
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kPublish), net::RevisionReply{9}.Encode());
    return true;
  });
  const auto published = Catalog(net::Session::Get(daemon.address()))
                             .Publish("name", OneFile(10), net::Publish::Mode::kCreate, 0, In(60s));
  ASSERT_TRUE(published) << published.error().message;
  ASSERT_EQ(bodies.size(), 3U);
  EXPECT_EQ(bodies[0], bodies[1]);
  EXPECT_EQ(bodies[0], bodies[2]);
}

// Threads that hold the lock of the parent's pool are not in the child.
TEST(SessionTest, AForkedChildHasAPoolOfItsOwn) {
  FakeDaemon daemon([](Request& request) {
    FakeDaemon::Send(request, net::ReplyTo(FrameType::kList), net::ListReply{}.Encode());
    return true;
  });
  const auto session = net::Session::Get(daemon.address());
  ASSERT_TRUE(Catalog(session).List("", In(60s)));
  EXPECT_EQ(test::RunInChild([&] { return Catalog(session).List("", In(60s)) ? 0 : 1; }), 0);
  EXPECT_TRUE(Catalog(session).List("", In(60s)));
  EXPECT_EQ(daemon.connection_count(), 2);
}

// --- Uploads -------------------------------------------------------------------------------------

// --- Callers who give up -------------------------------------------------------------------------

// Whoever gives a call up has lost patience long before the deadline of these tests.
class GivenUpTest : public testing::Test {
 protected:
  static constexpr auto kLong = 60s;

  // Runs `call` with a caller who gives it up when he is first asked.
  void ExpectSoonOver(const std::function<void()>& call) {
    const auto started = net::Clock::now();
    const Patience::GiveUp give_up = [] { return true; };
    {
      const Patience patience(give_up);
      call();
    }
    EXPECT_LT(net::Clock::now() - started, kLong / 2);
  }

  static Result<void> Nothing(net::Connection&) { return {}; }
};

TEST_F(GivenUpTest, WhileAllConnectionsAreInUse) {
  constexpr int kBound = 16;
  FakeDaemon daemon([](Request&) { return true; });
  const auto session = net::Session::Get(daemon.address());
  int depth = 0;
  const net::Session::Attempt nested = [&](net::Connection&) -> Result<void> {
    if (++depth < kBound) return session->Run(nested, In(kLong));
    ExpectSoonOver([&] { EXPECT_FALSE(session->Run(Nothing, In(kLong))); });
    return {};
  };
  EXPECT_TRUE(session->Run(nested, In(kLong)));
}

TEST_F(GivenUpTest, WhileTheDaemonIsBusy) {
  FakeDaemon daemon([](Request& request) {
    FakeDaemon::Send(request, FrameType::kBusy, net::Busy{60'000}.Encode());
    return true;
  });
  const auto started = net::Clock::now();
  ExpectSoonOver([&] {
    EXPECT_FALSE(Catalog(net::Session::Get(daemon.address())).Resolve("name", In(kLong)));
  });
  EXPECT_LT(net::Clock::now() - started, net::Channel::kRetryAfterMax / 2);
}

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
  Upload upload(net::Session::Get(daemon.address()), {60s});
  const std::vector<std::byte> bytes(20 << 20);
  const std::span<const std::byte> piece(bytes);
  const auto started = net::Clock::now();

  const auto put = upload.PutBytes("file", {&piece, 1});

  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kIo) << put.error().message;
  EXPECT_EQ(put.error().system_errno, ENOSPC);
  EXPECT_EQ(begun, 1);
  EXPECT_LT(net::Clock::now() - started, 30s);
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
  Upload upload(net::Session::Get(daemon.address()), {20s});
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

// --- Reading from a daemon that lies -------------------------------------------------------------

class LyingDaemonTest : public testing::Test {
 protected:
  // What is answered to a BATCH_READ of two entries of 100 and 50 bytes.
  using Lie = std::function<void(Request&)>;

  // Reads two ranges from a daemon that lies once, on its first connection if `lies_once`.
  std::vector<ErrorCode> Read(const Lie& lie, bool lies_once = false) {
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
                                 {lies_once ? 10s : 400ms});
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
    EXPECT_EQ(Read(answer(status)), (std::vector{ErrorCode::kOk, code}));

  int asked = 0;
  const auto busy_at_first = [&](Request& request) {
    if (++asked == 1) return answer(EntryStatus::kBusy)(request);
    const auto batch = net::BatchRead::Decode(request.body).value();
    EXPECT_EQ(batch.entries.size(), 1U);  // Only the one that failed.
    EXPECT_EQ(batch.entries.at(0).offset_bytes, 500U);
    Data(request, {{0, 0, 50}}, 50);
    Done(request, {1, 0, 50, 0, 0, 0, 0, {}});
  };
  EXPECT_EQ(Read(busy_at_first), kGood);
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
