#include "client/collective/replacements.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "libffrecord/base/timed_waits.h"
#include "libffrecord/net/transport/packet_marks.h"
#include "libffrecord/pace/marks.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;
using namespace std::chrono_literals;

constexpr auto kConnectMax = 1s;
// Before the first try too, for a connection may break as soon as it is made.
constexpr net::Clock::duration kWaitMin = 20ms;
// A rail that comes back is used again after so long at most.
constexpr net::Clock::duration kWaitMax = 30s;
// Connections that have not said who they are: the oldest goes when there are more.
constexpr std::size_t kCandidatesMax = 16;
// When none can be taken, for want of descriptors: the listener would be readable all the time.
constexpr auto kAcceptPause = 1s;

}  // namespace

Replacements::Replacements(const GroupHello& hello, std::vector<std::string> addresses,
                           net::TcpListener listener, int wake_fd)
    : hello_(hello),
      addresses_(std::move(addresses)),
      listener_(std::move(listener)),
      wake_fd_(wake_fd) {}

Replacements::~Replacements() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// --- Making --------------------------------------------------------------------------------------

void Replacements::Ask(std::uint32_t rank, std::uint16_t stream) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(
        {.rank = rank, .stream = stream, .wait = kWaitMin, .due = Clock::now() + kWaitMin});
  }
  // Started by the progress thread, which no signal is delivered to: nor is any to this one.
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    // The system has no thread to give: the group goes on over the streams that it has.
  }
  changed_.notify_all();
}

std::vector<Link> Replacements::TakeMade() {
  const std::lock_guard lock(mutex_);
  return std::exchange(made_, {});
}

void Replacements::Run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const auto next = std::ranges::min_element(requests_, {}, &Request::due);
    if (next == requests_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (const auto due = next->due; due > Clock::now()) {
      WaitUntil(changed_, lock, due);
      continue;
    }
    Request request = *next;
    requests_.erase(next);
    lock.unlock();
    auto link = Connect(request);
    lock.lock();
    if (link) {
      made_.push_back(std::move(link).value());
      const std::uint64_t one = 1;
      (void)!::write(wake_fd_, &one, sizeof(one));  // Fails only if it is rung already.
    } else {
      request.wait = std::min(2 * request.wait, kWaitMax);
      request.due = Clock::now() + request.wait;
      requests_.push_back(request);
    }
  }
}

Result<Link> Replacements::Connect(const Request& request) const {
  const auto deadline = Clock::now() + kConnectMax;
  Link link;
  link.rank = request.rank;
  link.stream = request.stream;
  const auto at = FFR_TRY(net::Address::Parse(addresses_[request.rank], 0));
  link.endpoint = FFR_TRY(net::ConnectTcp(at, deadline));
  net::MarkPackets(*link.endpoint, pace::MarkOfCollectives());
  link.endpoint->SetLimits({4096, 0});
  GroupHello hello = hello_;
  hello.stream = request.stream;
  FFR_TRY(link.endpoint->Send({.type = FrameType::kHello}, hello.Encode(), {}));
  const auto event = FFR_TRY(net::NextEvent(*link.endpoint, deadline, "a stream to be taken"));
  if (event != Endpoint::Event::kFrame ||
      link.endpoint->header().type != net::ReplyTo(FrameType::kHello))
    return Error{ErrorCode::kUnavailable, "the stream was not taken"};
  return link;
}

// --- Taking --------------------------------------------------------------------------------------

std::vector<Link> Replacements::TakeCome() {
  for (;;) {
    auto accepted = listener_.Accept();
    if (!accepted) accepts_at_ = Clock::now() + kAcceptPause;
    if (!accepted || !accepted.value()) break;
    if (candidates_.size() == kCandidatesMax) candidates_.erase(candidates_.begin());
    candidates_.push_back(std::move(accepted).value());
  }
  std::vector<Link> come;
  for (auto& candidate : candidates_) {
    const auto event = candidate->Poll();
    if (event && event.value() == Endpoint::Event::kNone) continue;
    if (event && event.value() == Endpoint::Event::kFrame)
      if (auto link = Welcome(candidate)) come.push_back(std::move(*link));
    candidate = nullptr;
  }
  std::erase(candidates_, nullptr);
  return come;
}

// Takes the candidate, whose first frame has come, if it is one of the group.
std::optional<Link> Replacements::Welcome(std::unique_ptr<Endpoint>& candidate) const {
  const auto theirs = GroupHello::Decode(candidate->body());
  if (candidate->header().type != FrameType::kHello || !theirs || !IsOfGroup(theirs.value()))
    return std::nullopt;
  candidate->SetLimits({4096, static_cast<std::uint32_t>(hello_.chunk_size_bytes)});
  if (!candidate->Send({.type = net::ReplyTo(FrameType::kHello)}, {}, {})) return std::nullopt;
  // This sends. The other end may be so quick that its first piece is there.
  const auto sent = candidate->Poll();
  if (!sent || sent.value() == Endpoint::Event::kClosed) return std::nullopt;
  Link link;
  link.rank = theirs.value().rank;
  link.stream = theirs.value().stream;
  link.has_frame = sent.value() == Endpoint::Event::kFrame;
  link.endpoint = std::move(candidate);
  return link;
}

bool Replacements::IsOfGroup(const GroupHello& theirs) const {
  return SecretsEqual(theirs, hello_) && theirs.world_size == hello_.world_size &&
         theirs.chunk_size_bytes == hello_.chunk_size_bytes && theirs.wire == hello_.wire &&
         theirs.streams == hello_.streams;
}

std::vector<int> Replacements::fds() const {
  std::vector<int> found;
  if (Clock::now() >= accepts_at_) found.push_back(listener_.fd());
  for (const auto& candidate : candidates_) found.push_back(candidate->fd());
  return found;
}

}  // namespace ffrecord::client
