// Goal: every transport moves frames and payloads unchanged and in order, refuses what is
// malformed, and never holds more than it must. Method: two ends in this process; scripted and
// random traffic, slow readers, broken frames.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "endpoint_pairs.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "seed.h"
#include "tls_pairs.h"

namespace ffrecord::net {
namespace {

using namespace test;
using namespace std::chrono_literals;
using testing::HasSubstr;

std::span<const std::span<const std::byte>> None() { return {}; }

// Sends one frame with its payload in one piece.
void SendFrame(Endpoint& endpoint, const FrameHeader& header, const Bytes& body,
               std::span<const std::byte> payload) {
  const std::span<const std::byte> pieces[] = {payload};
  const auto sent = endpoint.Send(header, body, pieces);
  ASSERT_TRUE(sent) << sent.error().message;
}

// Polls `other` while waiting for the next event of `endpoint`: both ends are in this thread.
Result<Endpoint::Event> NextEventOf(Endpoint& endpoint, Endpoint& other) {
  const Deadline deadline = Soon();
  for (;;) {
    if (other.fd() >= 0 && other.bytes_queued() > 0) (void)other.Poll();
    const auto event = FFR_TRY(endpoint.Poll());
    if (event != Endpoint::Event::kNone) return event;
    if (Clock::now() > deadline) return Error{ErrorCode::kDeadlineExceeded, "no event came"};
    Endpoint* const one[] = {&endpoint};
    FFR_TRY(WaitReady(one, Clock::now() + 1ms));
  }
}

struct EndpointUnderTest {
  std::string name;
  std::function<EndpointPair()> make_pair;
};

class EndpointConformance : public testing::TestWithParam<EndpointUnderTest> {
 protected:
  void SetUp() override {
    if (GetParam().name == "rdma" && !TestRdmaDevice())
      GTEST_SKIP() << TestRdmaDevice().error().message;
    if (GetParam().name == "tls" && !HasTls()) GTEST_SKIP() << "this build has no TLS";
    auto pair = GetParam().make_pair();
    near_ = std::move(pair.near);
    far_ = std::move(pair.far);
    near_->SetLimits({.descriptor_count_max = 2});
    far_->SetLimits({.descriptor_count_max = 2});
  }
  std::unique_ptr<Endpoint> near_;
  std::unique_ptr<Endpoint> far_;
};

TEST_P(EndpointConformance, AFrameArrivesAsItWasSentInEitherDirection) {
  EXPECT_EQ(near_->transport(), GetParam().name);
  EXPECT_FALSE(near_->peer().empty());
  std::mt19937 random(1);
  for (const std::size_t body_size : {0U, 1U, 100U, 16'384U, 16'385U, 2U << 20}) {
    const Bytes body = RandomBytes(random, body_size);
    for (const auto& [from, to] : {std::pair(near_.get(), far_.get()), {far_.get(), near_.get()}}) {
      ASSERT_TRUE(
          from->Send({.type = FrameType::kStat, .request_id = 42, .map_version = 9}, body, None()));

      const auto event = NextEventOf(*to, *from);

      ASSERT_TRUE(event) << event.error().message;
      ASSERT_EQ(event.value(), Endpoint::Event::kFrame);
      EXPECT_EQ(to->header().type, FrameType::kStat);
      EXPECT_EQ(to->header().request_id, 42U);
      EXPECT_EQ(to->header().map_version, 9U);
      EXPECT_EQ(to->header().payload_size_bytes, 0U);
      EXPECT_TRUE(std::ranges::equal(to->body(), body));
      EXPECT_EQ(from->bytes_queued(), 0U);
    }
  }
}

TEST_P(EndpointConformance, APayloadIsGatheredFromPiecesAndScatteredIntoPlaces) {
  std::mt19937 random(2);
  const Bytes payload = RandomBytes(random, 100'000);
  const std::span<const std::byte> all(payload);
  std::vector<std::span<const std::byte>> pieces = {all.first(1), {}, all.subspan(1, 70'000)};
  for (std::size_t at = 70'001; at < payload.size(); at += 100)
    pieces.push_back(all.subspan(at, std::min<std::size_t>(100, payload.size() - at)));
  ASSERT_TRUE(near_->Send({}, {}, pieces));
  EXPECT_EQ(near_->payload_bytes_queued(), payload.size());
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
  ASSERT_EQ(far_->header().payload_size_bytes, payload.size());

  Bytes received(payload.size());
  std::vector<std::span<std::byte>> places = {std::span(received).first(3), {}};
  for (std::size_t at = 3; at < received.size(); at += 333)
    places.push_back(
        std::span(received).subspan(at, std::min<std::size_t>(333, received.size() - at)));
  ASSERT_TRUE(far_->ReceivePayload(places));
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);

  EXPECT_EQ(received, payload);
  EXPECT_EQ(near_->payload_bytes_queued(), 0U);
}

TEST_P(EndpointConformance, WhatIsMappedFromAFileArrivesLikeOtherBytes) {
  std::mt19937 random(3);
  const Bytes data = RandomBytes(random, 6 << 20);
  const UniqueFd file(::memfd_create("conformance", MFD_CLOEXEC));
  ASSERT_EQ(::pwrite(file.get(), data.data(), data.size(), 0), 6 << 20);
  const std::span<const std::byte> all(data);
  Bytes payload;
  std::vector<Endpoint::MappedPiece> pieces;
  const auto add = [&](std::size_t offset, std::size_t size, bool is_mapped) {
    const auto bytes = all.subspan(offset, size);
    pieces.push_back({bytes, is_mapped ? file.get() : -1, offset});
    payload.insert(payload.end(), bytes.begin(), bytes.end());
  };
  add(5, 6'000'000, true);  // More than a transport takes at once.
  add(0, 0, true);
  add(9, 100'000, false);
  for (int i = 0; i < 20; ++i) add(random() % 900'000, random() % 90'000, random() % 4 != 0);
  ASSERT_TRUE(near_->SendMapped({.request_id = 7}, Bytes(9), pieces));
  SendFrame(*near_, {.request_id = 8}, {}, all.first(1));
  EXPECT_EQ(near_->payload_bytes_queued(), payload.size() + 1);
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
  ASSERT_EQ(far_->header().request_id, 7U);
  ASSERT_EQ(far_->header().payload_size_bytes, payload.size());
  Bytes received(payload.size());
  const std::span<std::byte> place(received);
  ASSERT_TRUE(far_->ReceivePayload({&place, 1}));
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);

  EXPECT_TRUE(received == payload);
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
  EXPECT_EQ(far_->header().request_id, 8U);
  EXPECT_EQ(near_->payload_bytes_queued(), 0U);
}

TEST_P(EndpointConformance, CapabilitiesAreThoseOfTheTransportOnBothEndsAndOutliveAClose) {
  for (Endpoint* endpoint : {near_.get(), far_.get()}) {
    RemoteMemory* const memory = endpoint->remote_memory();
    DescriptorPassing* const descriptors = endpoint->descriptors();
    EXPECT_EQ(memory != nullptr, GetParam().name == "rdma");
    EXPECT_EQ(descriptors != nullptr, GetParam().name == "shm");

    endpoint->Close();

    EXPECT_EQ(endpoint->remote_memory(), memory);
    EXPECT_EQ(endpoint->descriptors(), descriptors);
    if (memory != nullptr) {
      Bytes bytes(4096);
      const auto code = [](const auto& result) { return result.error().code; };
      EXPECT_EQ(code(memory->Expose(bytes, RemoteMemory::Reach::kWrite)), ErrorCode::kUnavailable);
      EXPECT_EQ(code(memory->MakeStaging(4096)), ErrorCode::kUnavailable);
      EXPECT_EQ(code(memory->SendPlaced({}, {}, {})), ErrorCode::kUnavailable);
      EXPECT_EQ(code(memory->FetchPayload({}, bytes)), ErrorCode::kUnavailable);
    }
    if (descriptors != nullptr) {
      EXPECT_EQ(descriptors->SendDescriptor({}, {}, STDIN_FILENO).error().code,
                ErrorCode::kUnavailable);
      EXPECT_FALSE(descriptors->TakeDescriptor());
    }
  }
}

TEST_P(EndpointConformance, ADescriptorIsThereWithItsFrame) {
  if (near_->descriptors() == nullptr) GTEST_SKIP() << near_->transport() << " carries none";
  const UniqueFd file(::memfd_create("conformance", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  // Between frames with payloads, and two in a row.
  const Bytes payload(300'000, std::byte{5});
  SendFrame(*near_, {.request_id = 0}, Bytes(9), payload);
  for (std::uint64_t id : {1U, 2U})
    ASSERT_TRUE(near_->descriptors()->SendDescriptor({.request_id = id}, Bytes(30), file.get()));
  SendFrame(*near_, {.request_id = 3}, Bytes(9), payload);

  for (std::uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
    EXPECT_EQ(far_->header().request_id, id);
    if (id == 1 || id == 2) {
      const ForeignFd arrived = far_->descriptors()->TakeDescriptor();
      ASSERT_TRUE(arrived);
      struct stat sent_status {
      }, arrived_status{};
      ASSERT_EQ(::fstat(file.get(), &sent_status), 0);
      ASSERT_EQ(::fstat(arrived.get(), &arrived_status), 0);
      EXPECT_EQ(arrived_status.st_ino, sent_status.st_ino);
      EXPECT_EQ(::fcntl(arrived.get(), F_GETFD), FD_CLOEXEC);
    } else {
      EXPECT_FALSE(far_->descriptors()->TakeDescriptor());
      Bytes received(payload.size());
      const std::span<std::byte> places[] = {received};
      ASSERT_TRUE(far_->ReceivePayload(places));
      ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);
      EXPECT_EQ(received, payload);
    }
  }
}

TEST_P(EndpointConformance, OneUntakenDescriptorMoreThanTheLimitEndsTheConnection) {
  if (near_->descriptors() == nullptr) GTEST_SKIP() << near_->transport() << " carries none";
  const UniqueFd file(::memfd_create("conformance", MFD_CLOEXEC));
  const auto send_one = [&] {
    EXPECT_TRUE(near_->descriptors()->SendDescriptor({}, {}, file.get()));
    return NextEventOf(*far_, *near_);
  };
  for (int i = 0; i < 2; ++i) ASSERT_EQ(send_one().value(), Endpoint::Event::kFrame);
  ASSERT_TRUE(far_->descriptors()->TakeDescriptor());
  ASSERT_EQ(send_one().value(), Endpoint::Event::kFrame);

  const auto event = send_one();

  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kCorruption) << event.error().message;
}

TEST_P(EndpointConformance, ACloseClosesDescriptorsThatWereNotSent) {
  if (near_->descriptors() == nullptr) GTEST_SKIP() << near_->transport() << " carries none";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  ASSERT_TRUE(near_->descriptors()->SendDescriptor({}, {}, writing.get()));
  writing.Reset();
  char byte;
  ASSERT_EQ(::read(reading.get(), &byte, 1), -1);  // Somebody could still write.

  near_->Close();

  EXPECT_EQ(::read(reading.get(), &byte, 1), 0);
}

TEST_P(EndpointConformance, MemoryOfThePeerIsFetchedAsAPayload) {
  if (near_->remote_memory() == nullptr) GTEST_SKIP() << near_->transport() << " reaches none";
  std::mt19937 random(4);
  Bytes memory = RandomBytes(random, 300'000);
  const auto exposed = near_->remote_memory()->Expose(memory, RemoteMemory::Reach::kRead);
  RemoteMemory& fetching = *far_->remote_memory();
  const auto staging = fetching.MakeStaging(100'000);
  SendFrame(*near_, {.request_id = 1}, Bytes(9), {});
  SendFrame(*near_, {.request_id = 2}, {}, {});
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
  ASSERT_TRUE(exposed && staging);
  const RemoteRegion source{exposed.value().address + 777, exposed.value().key};
  // Not where no payload may go.
  EXPECT_EQ(fetching.FetchPayload(source, memory).error().code, ErrorCode::kInvalidArgument);
  const auto place = staging.value()->subspan(1, 99'999);
  ASSERT_TRUE(fetching.FetchPayload(source, place));
  EXPECT_EQ(fetching.FetchPayload(source, place).error().code, ErrorCode::kInvalidArgument);
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);
  EXPECT_EQ(far_->header().request_id, 1U);
  EXPECT_TRUE(std::ranges::equal(place, std::span(memory).subspan(777, place.size())));
  // What came behind it is next.
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
  EXPECT_EQ(far_->header().request_id, 2U);
}

TEST_P(EndpointConformance, PlacesOfTheWrongSizeAreRefusedAndTheRightOnesStillWork) {
  const Bytes payload(1000, std::byte{7});
  SendFrame(*near_, {}, {}, payload);
  Bytes received(2000);
  const auto give = [&](std::size_t size) {
    const std::span<std::byte> places[] = {std::span(received).first(size)};
    return far_->ReceivePayload(places);
  };
  EXPECT_EQ(give(1000).error().code, ErrorCode::kInvalidArgument);  // No frame yet.
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);

  for (const std::size_t wrong : {0U, 999U, 1001U, 2000U})
    EXPECT_EQ(give(wrong).error().code, ErrorCode::kInvalidArgument) << wrong;
  EXPECT_EQ(far_->Poll().error().code, ErrorCode::kInvalidArgument);  // Without any place.

  ASSERT_TRUE(give(1000));
  ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);
  EXPECT_TRUE(std::ranges::equal(std::span(received).first(1000), payload));
  EXPECT_EQ(received[1000], std::byte{0});
}

TEST_P(EndpointConformance, ASlowReaderHoldsTheSenderBackAndLosesNothing) {
  const Bytes payload(1 << 20, std::byte{3});
  constexpr std::size_t kFrames = 16;
  for (std::size_t i = 0; i < kFrames; ++i)
    SendFrame(*near_, {.request_id = i}, Bytes(100), payload);

  for (int i = 0; i < 100; ++i) ASSERT_EQ(near_->Poll().value(), Endpoint::Event::kNone);
  EXPECT_GT(near_->payload_bytes_queued(), 0U);
  EXPECT_GE(near_->bytes_queued(), near_->payload_bytes_queued());
  Endpoint* const sender[] = {near_.get()};
  EXPECT_FALSE(WaitReady(sender, Clock::now() + 10ms).value());  // Full: nothing can be done.

  for (std::size_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kFrame);
    EXPECT_EQ(far_->header().request_id, i);
    Bytes received(payload.size());
    const std::span<std::byte> places[] = {received};
    ASSERT_TRUE(far_->ReceivePayload(places));
    ASSERT_EQ(NextEventOf(*far_, *near_).value(), Endpoint::Event::kPayload);
    EXPECT_EQ(received, payload);
  }
  EXPECT_EQ(near_->bytes_queued(), 0U);
}

TEST_P(EndpointConformance, AFullSenderIsWokenWhenTheReaderMakesRoom) {
  const Bytes payload(8 << 20);
  SendFrame(*near_, {}, {}, payload);
  std::thread reader([this] {
    ASSERT_EQ(NextEvent(*far_, Soon(), "a frame").value(), Endpoint::Event::kFrame);
    Bytes received(8 << 20);
    const std::span<std::byte> places[] = {received};
    ASSERT_TRUE(far_->ReceivePayload(places));
    ASSERT_EQ(NextEvent(*far_, Soon(), "its payload").value(), Endpoint::Event::kPayload);
  });
  const auto flushed = Flush(*near_, Soon());
  reader.join();
  EXPECT_TRUE(flushed) << flushed.error().message;
}

TEST_P(EndpointConformance, BeforeHelloOnlySmallFramesWithoutPayloadAreTaken) {
  for (const bool too_large : {false, true}) {
    for (const bool with_payload : {false, true}) {
      auto pair = GetParam().make_pair();  // Limits as they are at first.
      const Bytes body(too_large ? 4097 : 4096);
      const Bytes payload(with_payload ? 1 : 0);
      SendFrame(*pair.near, {}, body, payload);
      ASSERT_EQ(pair.near->Poll().value(), Endpoint::Event::kNone);

      const auto event = NextEventOf(*pair.far, *pair.near);

      if (!too_large && !with_payload) {
        ASSERT_TRUE(event) << event.error().message;
        continue;
      }
      ASSERT_FALSE(event);
      EXPECT_EQ(event.error().code, ErrorCode::kCorruption);
      EXPECT_THAT(event.error().message, HasSubstr("limit"));
      EXPECT_EQ(pair.far->fd(), -1);
    }
  }
}

TEST_P(EndpointConformance, WhatPassesTheProtocolsLimitsIsNotSent) {
  const Bytes large((2 << 20) + 1);
  EXPECT_EQ(near_->Send({}, large, None()).error().code, ErrorCode::kInvalidArgument);
  const std::vector<std::span<const std::byte>> pieces(5, std::span<const std::byte>(large));
  EXPECT_EQ(near_->Send({}, {}, pieces).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(near_->bytes_queued(), 0U);
}

TEST_P(EndpointConformance, ACloseBetweenFramesIsInGoodOrder) {
  ASSERT_TRUE(near_->Send({.request_id = 5}, {}, None()));
  ASSERT_TRUE(Flush(*near_, Soon()));
  near_->Close();
  near_->Close();
  EXPECT_EQ(near_->fd(), -1);

  ASSERT_EQ(NextEvent(*far_, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  EXPECT_EQ(far_->header().request_id, 5U);
  EXPECT_EQ(NextEvent(*far_, Soon(), "the end").value(), Endpoint::Event::kClosed);

  for (Endpoint* endpoint : {near_.get(), far_.get()}) {
    const auto polled = endpoint->Poll();
    ASSERT_FALSE(polled);
    EXPECT_EQ(polled.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(polled.error().message, HasSubstr(endpoint->peer()));
    EXPECT_EQ(endpoint->Send({}, {}, None()).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(endpoint->bytes_queued(), 0U);
  }
}

TEST_P(EndpointConformance, ACloseInTheMiddleOfAPayloadIsUnavailable) {
  const Bytes payload(8 << 20);
  SendFrame(*near_, {}, {}, payload);
  ASSERT_EQ(near_->Poll().value(), Endpoint::Event::kNone);
  ASSERT_GT(near_->bytes_queued(), 0U);
  ASSERT_EQ(NextEvent(*far_, Soon(), "a frame").value(), Endpoint::Event::kFrame);
  Bytes received(8 << 20);
  const std::span<std::byte> places[] = {received};
  ASSERT_TRUE(far_->ReceivePayload(places));
  near_->Close();

  const auto event = NextEvent(*far_, Soon(), "the payload");

  ASSERT_FALSE(event);
  EXPECT_EQ(event.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(event.error().message, HasSubstr(far_->peer()));
  EXPECT_EQ(far_->fd(), -1);
}

TEST_P(EndpointConformance, TheLastWordOfAPeerIsHeardThoughSendingToItFails) {
  ASSERT_TRUE(far_->Send({.type = FrameType::kError}, {}, None()));
  ASSERT_TRUE(Flush(*far_, Soon()));
  far_->Close();
  Endpoint* const one[] = {near_.get()};
  ASSERT_TRUE(WaitReady(one, Soon()).value());
  const Bytes payload(1 << 20);
  SendFrame(*near_, {}, {}, payload);

  const auto word = NextEvent(*near_, Soon(), "the last word");
  ASSERT_TRUE(word) << word.error().message;
  EXPECT_EQ(word.value(), Endpoint::Event::kFrame);
  EXPECT_EQ(near_->header().type, FrameType::kError);

  Result<Endpoint::Event> event = Endpoint::Event::kNone;
  for (int i = 0; i < 2 && event; ++i) event = NextEvent(*near_, Soon(), "the failure");
  if (event) {  // A kernel that took all of it cannot know that it was lost.
    EXPECT_EQ(event.value(), Endpoint::Event::kClosed);
  } else {
    EXPECT_EQ(event.error().code, ErrorCode::kUnavailable);
  }
}

TEST_P(EndpointConformance, TimeIsUpNamesThePeerAndWhatWasWaitedFor) {
  const auto before = Clock::now();
  const auto event = NextEvent(*far_, before + 20ms, "the answer to everything");

  ASSERT_FALSE(event);
  EXPECT_GE(Clock::now(), before + 20ms);
  EXPECT_EQ(event.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(event.error().message, HasSubstr("the answer to everything"));
  EXPECT_THAT(event.error().message, HasSubstr(far_->peer()));

  const Bytes payload(8 << 20);
  SendFrame(*near_, {}, {}, payload);
  const auto flushed = Flush(*near_, Clock::now() + 20ms);
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(flushed.error().message, HasSubstr(near_->peer()));
  ASSERT_TRUE(far_->Send({}, {}, None()));
  ASSERT_TRUE(Flush(*far_, Soon()).error().code == ErrorCode::kConflict);
}

TEST_P(EndpointConformance, WaitReadySkipsNullAndReturnsAtOnceForAClosedEnd) {
  Endpoint* const null[] = {nullptr};
  EXPECT_FALSE(WaitReady(null, Clock::now()).value());
  near_->Close();
  Endpoint* const closed[] = {nullptr, near_.get()};
  EXPECT_TRUE(WaitReady(closed, Soon()).value());
}

// One side of the random traffic: sends frames made from its seed, and expects those of the other.
class Talker {
 public:
  Talker(Endpoint& endpoint, std::uint32_t seed_out, std::uint32_t seed_in)
      : endpoint_(endpoint), out_(seed_out), in_(seed_in), places_(seed_out ^ seed_in) {}

  // Runs until all frames are sent and all are received.
  void Run() {
    while (!IsDone()) {
      if (endpoint_.payload_bytes_queued() == 0) payloads_.clear();
      while (CanSend()) SendOne();
      const auto event = endpoint_.Poll();
      ASSERT_TRUE(event) << event.error().message;
      if (event.value() == Endpoint::Event::kNone) {
        // Both sides may have got all that was sent: who has more to say must not wait for the
        // other.
        if (CanSend()) continue;
        Endpoint* const one[] = {&endpoint_};
        ASSERT_TRUE(IsDone() || WaitReady(one, Soon()).value());
      } else if (event.value() == Endpoint::Event::kFrame) {
        CheckFrame();
      } else {
        ASSERT_EQ(event.value(), Endpoint::Event::kPayload);
        ASSERT_EQ(payload_, expected_.payload);
        ++received_;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  static constexpr std::uint64_t kFrames = 400;
  struct Frame {
    Bytes body;
    Bytes payload;
  };

  bool CanSend() const { return sent_ < kFrames && endpoint_.bytes_queued() < 100'000; }
  bool IsDone() const {
    return sent_ == kFrames && received_ == kFrames && endpoint_.bytes_queued() == 0;
  }

  static std::size_t RandomSize(std::mt19937& random) {
    constexpr std::size_t kSizes[] = {0, 1, 40, 300, 5'000, 16'344, 16'385, 70'000};
    return random() % 2 == 0 ? kSizes[random() % std::size(kSizes)] : random() % 3'000;
  }
  static Frame MakeFrame(std::mt19937& random) {
    Bytes body = RandomBytes(random, RandomSize(random));
    return {std::move(body), RandomBytes(random, RandomSize(random))};
  }

  void SendOne() {
    Frame frame = MakeFrame(out_);
    payloads_.push_back(std::move(frame.payload));
    SendFrame(endpoint_, {.request_id = sent_++}, frame.body, payloads_.back());
  }

  void CheckFrame() {
    expected_ = MakeFrame(in_);
    ASSERT_EQ(endpoint_.header().request_id, received_);
    ASSERT_TRUE(std::ranges::equal(endpoint_.body(), expected_.body));
    ASSERT_EQ(endpoint_.header().payload_size_bytes, expected_.payload.size());
    if (expected_.payload.empty()) {
      ++received_;
      return;
    }
    payload_.assign(expected_.payload.size(), std::byte{});
    std::vector<std::span<std::byte>> places;
    for (std::span<std::byte> rest(payload_); !rest.empty();) {
      const std::size_t size = std::min<std::size_t>(rest.size(), places_() % 20'000);
      places.push_back(rest.first(size));
      rest = rest.subspan(size);
    }
    ASSERT_TRUE(endpoint_.ReceivePayload(places));
  }

  Endpoint& endpoint_;
  std::mt19937 out_, in_, places_;
  std::deque<Bytes> payloads_;  // Borrowed by the endpoint.
  Frame expected_;
  Bytes payload_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

TEST_P(EndpointConformance, RandomFramesInBothDirectionsAtOnceArriveUnchangedAndInOrder) {
  const std::uint32_t seed = ffrecord::test::Seed();
  Talker near(*near_, seed, seed + 1);
  Talker far(*far_, seed + 1, seed);

  std::thread other([&] { far.Run(); });
  near.Run();
  other.join();
}

INSTANTIATE_TEST_SUITE_P(
    AllTransports, EndpointConformance,
    testing::Values(EndpointUnderTest{"tcp", MakeTcpPair}, EndpointUnderTest{"tls", MakeTlsPair},
                    EndpointUnderTest{"shm", MakeLocalPair},
                    EndpointUnderTest{"rdma", MakeRdmaPair},
                    EndpointUnderTest{"loopback", [] { return MakeLoopbackPair({}).value(); }}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord::net
