#include "client/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include <ffrecord/client/dataset.h>

#include "client/session/rails.h"
#include "client/session/slabs.h"
#include "libffrecord/base/machine_identity.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/random.h"
#include "libffrecord/io/file.h"
#include "libffrecord/net/rpc/breaker.h"
#include "libffrecord/net/transport/tls/tls.h"

namespace ffrecord::client {
namespace {

using net::Channel;
using net::Deadline;
using net::FrameType;
using std::chrono_literals::operator""ms;

// More callers than this at one time wait for each other: a daemon has many clients to serve.
constexpr std::size_t kConnectionsMax = 16;

// How long a daemon that breaks a handshake off is left alone: there was no room for a frame.
constexpr auto kTurnedAwayFor = 1000ms;
// How long a connection over RDMA may take to be made, where there is another way.
constexpr auto kRailMax = 5000ms;
// How often idle connections are looked at, while there are calls.
constexpr auto kLookEvery = 1000ms;
constexpr std::string_view kUploadsAsMessages = "; uploads go as messages: ";
constexpr std::size_t kTokenSizeBytesMax = 3072;

// The token in a file: hexadecimal digits, with white space around them. No message quotes it.
Result<std::vector<std::byte>> ReadToken(const std::string& path) {
  std::vector<std::byte> token;
  if (path.empty()) return token;
  const ReadOnlyFile file = FFR_TRY(OpenReadOnly(path, /*want_direct=*/false));
  const auto bad = [&](const char* why) {
    return Error{ErrorCode::kInvalidArgument, path + ": " + why +
                                                  "; it holds the one token that ffrecord token "
                                                  "makes"};
  };
  std::string text(2 * kTokenSizeBytesMax + 2, '\0');
  const ssize_t got = ::pread(file.fd.get(), text.data(), text.size(), 0);
  if (got < 0) return ErrnoError("read", path, errno);
  text.resize(static_cast<std::size_t>(got));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.empty() || text.size() % 2 != 0 || text.size() > 2 * kTokenSizeBytesMax)
    return bad("it holds no token");
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned byte = 0;
    const char* const end = text.data() + i + 2;
    if (std::from_chars(text.data() + i, end, byte, 16).ptr != end) return bad("it holds no token");
    token.push_back(static_cast<std::byte>(byte));
  }
  return token;
}

// Whether a page is what was asked for, so that asking behind its last name leads to an end.
bool GoesOn(const net::ListReply& page, const net::List& asked) {
  std::string_view last = asked.after;
  for (const auto& entry : page.entries) {
    if (entry.name <= last || !entry.name.starts_with(asked.prefix)) return false;
    last = entry.name;
  }
  return !page.more || !page.entries.empty();
}

// For the deadline of a call that failed for another reason first: that one says more.
Error AtDeadline(Error last, const std::string& peer) {
  if (last.code == ErrorCode::kUnavailable)
    last.message += " (" + peer + " was tried until the timeout)";
  return last;
}

}  // namespace

// --- Connections ---------------------------------------------------------------------------------

struct Session::Pool {
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<Channel>> idle;  // The one used last is at the end.
  std::size_t used_count = 0;
  bool reached = false;  // A greeting was answered once.
  Link link;             // Of the connection made last.
  Rails rails;
  net::Deadline next_look{};  // At idle connections.
  net::Breaker breaker{RandomNumber()};
};

Session::Session(net::Address address, Transport transport, std::string token_file,
                 std::string tls_folder, net::RdmaOptions rdma)
    : address_(std::move(address)),
      transport_(transport),
      token_file_(std::move(token_file)),
      tls_folder_(std::move(tls_folder)),
      rdma_(std::move(rdma)),
      peer_(std::string(Location::kScheme) + address_.ToString()),
      pool_([] { return new Pool; }) {}

Session::~Session() = default;

std::shared_ptr<Session> Session::Get(const net::Address& address, Transport transport,
                                      const std::string& token_file, const std::string& tls_folder,
                                      const net::RdmaOptions& rdma) {
  using Key = std::tuple<std::string, Transport, std::string, std::string, net::RdmaOptions>;
  struct Registry {
    std::mutex mutex;
    std::map<Key, std::shared_ptr<Session>> sessions;
  };
  // Leaked: calls may still run in other threads when the process ends.
  static auto* const registries = new PerProcess<Registry>([] { return new Registry; });
  Registry& registry = registries->Get();
  const std::lock_guard lock(registry.mutex);
  auto& session =
      registry.sessions[Key(address.ToString(), transport, token_file, tls_folder, rdma)];
  if (!session)
    session = std::make_shared<Session>(address, transport, token_file, tls_folder, rdma);
  return session;
}

Result<std::unique_ptr<Channel>> Session::ConnectRemotely(Deadline deadline,
                                                          std::span<const std::byte> token,
                                                          RetryAfter& busy) const {
  if (tls_folder_.empty()) return Channel::Connect(address_, deadline, token, &busy);
  // Read each time, as the token is, and for the same reason.
  const auto tls = FFR_TRY(
      net::TlsContext::Load(net::TlsContext::Side::kClient, net::TlsFiles::In(tls_folder_)));
  bool is_turned_away = false;
  auto endpoint = net::ConnectTls(address_, *tls, deadline, &is_turned_away);
  if (is_turned_away) busy = kTurnedAwayFor;
  if (!endpoint) return std::move(endpoint).error();
  return Channel::Open(std::move(endpoint).value(), deadline, token, &busy);
}

// Whom we talk to is whoever has the TCP port: only that daemon tells where its local socket is,
// and turns the connection into one over RDMA.
Result<std::unique_ptr<Channel>> Session::Connect(Deadline deadline, Link& link,
                                                  RetryAfter& busy) const {
  // Read each time: tokens are short-lived, and whoever renews them writes the file anew.
  const std::vector<std::byte> token = FFR_TRY(ReadToken(token_file_));
  auto tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
  const std::string cipher = tls_folder_.empty() ? "" : tcp->cipher();
  link = {std::string(tcp->transport()), "asked for" + (cipher.empty() ? "" : ", " + cipher)};
  if (transport_ == Transport::kTcp) return tcp;

  std::string why;
  if (transport_ != Transport::kRdma) {
    auto local = ConnectLocally(*tcp, deadline, busy);
    if (local) {
      link = {"shm", transport_ == Transport::kShm ? "asked for" : "the daemon is on this machine"};
      return local;
    }
    // There is room for one of us less: that says nothing about shared memory.
    if (busy) return std::move(local).error();
    why = "no shared memory: " + local.error().message;
    if (transport_ == Transport::kShm)
      return DemandFailed(*tcp, std::move(local).error(), "run the client on the daemon's machine",
                          deadline);
  }
  auto over = GoOverRdma(tcp, deadline, link, token, busy);
  if (over) return tcp;
  if (transport_ == Transport::kRdma)
    return DemandFailed(*tcp, std::move(over).error(), "ffrecord doctor rdma shows what is there",
                        deadline);
  if ((tcp->hello().capabilities & net::kCapabilityRdma) != 0)
    why += "; no RDMA: " + over.error().message;
  link.reason = why + (cipher.empty() ? "" : "; " + cipher);
  if (!tcp->reusable()) tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
  return tcp;
}

Result<void> Session::GoOverRdma(std::unique_ptr<Channel>& tcp, Deadline deadline, Link& link,
                                 std::span<const std::byte> token, RetryAfter& busy) const {
  if (!tls_folder_.empty())
    return Error{ErrorCode::kInvalidArgument, "it is not encrypted, and the address requires TLS"};
  if ((tcp->hello().capabilities & net::kCapabilityRdma) == 0)
    return Error{ErrorCode::kUnavailable, "the daemon does not offer it"};
  Rails& rails = pool_.Get().rails;
  Result<void> over;
  const bool is_demanded = transport_ == Transport::kRdma;
  const auto order = FFR_TRY(rails.Order(rdma_, /*all=*/is_demanded));
  for (const std::size_t rail : order) {
    if (!tcp->reusable()) tcp = FFR_TRY(ConnectRemotely(deadline, token, busy));
    // Where there is another way, one that reaches nobody may not use up the caller's time.
    const bool is_only_way = is_demanded && rail == order.back();
    const Deadline end = is_only_way ? deadline : std::min(deadline, net::Clock::now() + kRailMax);
    over = TakeRail(*tcp, rail, end, link);
    if (over) {
      rails.Worked(rail);
      return over;
    }
    rails.Failed(rail);
    if (net::Clock::now() >= deadline) return over;
  }
  return over;
}

Result<void> Session::TakeRail(Channel& channel, std::size_t rail, Deadline deadline,
                               Link& link) const {
  net::RdmaLinks& links = pool_.Get().rails.links(rail);
  FFR_TRY(channel.UseRdma(links, deadline));
  channel.rail = rail;
  // The first slab, so that a limit of locked memory is told here and not by the first read.
  FFR_TRY(ExposeSlab(channel, deadline));
  const auto device = links.Device();
  link = {"rdma", (transport_ == Transport::kRdma ? "asked for" : "both ends support it") +
                      (device ? ", " + device.value()->port().device + " (" +
                                    device.value()->port().gid + ")"
                              : "")};
  return {};
}

// Only of a daemon that still answers can it be said that it does not give the transport. One that
// was killed, stopped or cut off meanwhile is another matter, and its connection may look whole.
Error Session::DemandFailed(Channel& tcp, Error why, std::string_view remedy,
                            Deadline deadline) const {
  if (why.code == ErrorCode::kDeadlineExceeded || !tcp.reusable()) return why;
  if (auto ping = tcp.Call(FrameType::kPing, {}, {}, deadline, "an answer to PING"); !ping)
    return std::move(ping).error();
  return CannotBeHad(why.message, remedy);
}

Error Session::CannotBeHad(const std::string& why, std::string_view remedy) const {
  return {ErrorCode::kInvalidArgument,
          "transport=" + std::string(NameOf(transport_)) + " was asked for, and " + peer_ +
              " does not give it: " + why + "; " + std::string(remedy) +
              ", or leave the transport to auto"};
}

// `tcp` stays open meanwhile: what was offered on it is good for so long. Where the daemon does not
// run, the name of its socket is anybody's.
Result<std::unique_ptr<Channel>> Session::ConnectLocally(const Channel& tcp, Deadline deadline,
                                                         RetryAfter& busy) const {
  const net::HelloReply& greeted = tcp.hello();
  if (!tcp.has_local_peer())
    return Error{ErrorCode::kUnavailable, "the daemon is on another machine"};
  if (!greeted.local) return Error{ErrorCode::kUnavailable, "the daemon does not offer it"};
  if (MachineIdentity() != greeted.local->machine)
    return Error{ErrorCode::kUnavailable,
                 "the daemon is on another machine, or in another network namespace"};
  auto local = FFR_TRY(
      net::ConnectLocal(net::LocalSocketName(greeted.epoch), address_.ToString(), deadline));
  return Channel::OpenLocal(std::move(local), *greeted.local, deadline, &busy);
}

Session::Link Session::link() {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  return pool.link;
}

Result<PooledBuffer> Session::TakeMemory(std::uint64_t size_bytes) const {
  return uses_slabs_.load(std::memory_order_relaxed) ? SlabPool::Process().Take(size_bytes)
                                                     : BufferPool::Process().Take(size_bytes);
}

Result<void> Session::PrepareUploads(Channel& channel, Deadline deadline) {
  if (!channel.pulls() || channel.uploads) return {};
  auto exposed = ExposeUploads(channel, deadline);
  if (exposed) return {};
  const Error& why = exposed.error();
  const bool is_refused = why.code == ErrorCode::kIo || why.code == ErrorCode::kInvalidArgument;
  if (!is_refused || !channel.reusable()) return channel.Break(why);
  const bool can_be_mended = why.system_errno != EOPNOTSUPP;
  if (transport_ != Transport::kAuto && can_be_mended)
    return CannotBeHad(why.message, "uploads want that memory");
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  if (pool.link.reason.find(kUploadsAsMessages) == std::string::npos)
    pool.link.reason += std::string(kUploadsAsMessages) + why.message;
  return {};
}

Result<std::unique_ptr<Channel>> Session::ConnectApart(Deadline deadline) const {
  Link link;
  RetryAfter busy;
  return Connect(deadline, link, busy);
}

Result<std::unique_ptr<Channel>> Session::Take(Deadline deadline, RetryAfter& busy) {
  Pool& pool = pool_.Get();
  {
    std::unique_lock lock(pool.mutex);
    while (pool.used_count == kConnectionsMax) {
      if (pool.returned.wait_until(lock, deadline) == std::cv_status::timeout &&
          pool.used_count == kConnectionsMax)
        return Error{ErrorCode::kDeadlineExceeded,
                     "timed out waiting for one of " + std::to_string(kConnectionsMax) +
                         " connections to " + peer_ + ", all of which are in use"};
    }
    ++pool.used_count;
    if (pool.rails.HasReturned()) pool.idle.clear();
    CloseDead(pool);
    while (!pool.idle.empty()) {
      auto channel = std::move(pool.idle.back());
      pool.idle.pop_back();
      if (channel->Alive()) return channel;
    }
  }
  Link link;
  auto channel = Connect(deadline, link, busy);
  const std::lock_guard lock(pool.mutex);
  if (channel) {
    uses_slabs_.store(channel.value()->writes_slabs(), std::memory_order_relaxed);
    pool.link = std::move(link);
    pool.reached = true;
    return channel;
  }
  --pool.used_count;
  pool.returned.notify_one();
  return channel;
}

// A call looks at the connection it takes; others may hold a device that was taken away, and that
// nothing else uses any more.
void Session::CloseDead(Pool& pool) {
  const auto now = net::Clock::now();
  if (now < pool.next_look) return;
  pool.next_look = now + kLookEvery;
  std::erase_if(pool.idle, [](const auto& channel) { return !channel->Alive(); });
}

void Session::NoteReached() {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  pool.reached = true;
}

bool Session::WasReached(Pool& pool) {
  const std::lock_guard lock(pool.mutex);
  return pool.reached;
}

void Session::GiveBack(std::unique_ptr<Channel> channel) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  --pool.used_count;
  if (channel->reusable()) pool.idle.push_back(std::move(channel));
  pool.returned.notify_one();
}

void Session::CloseIdle(const std::function<bool(Channel&)>& unwanted) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  std::erase_if(pool.idle, [&](const auto& channel) { return unwanted(*channel); });
}

Result<void> Session::Run(const Attempt& attempt, Deadline deadline, bool patient) {
  std::optional<net::Backoff> backoff;  // A random number costs more than many a call.
  Pool& pool = pool_.Get();
  Error last{ErrorCode::kDeadlineExceeded,
             "timed out: " + peer_ + " does not answer, and another caller was already trying it"};
  for (;;) {
    if (Patience::OfThread().IsOver()) return AtDeadline(std::move(last), peer_);
    const auto entry = pool.breaker.Enter(deadline);
    if (entry == net::Breaker::Entry::kNotYet) return AtDeadline(std::move(last), peer_);
    RetryAfter busy;
    bool connected = false;
    if (auto channel = Take(deadline, busy)) {
      connected = true;
      auto done = attempt(*channel.value());
      busy = channel.value()->retry_after();
      // Where the link is gone the others are as dead, and take as long to find out.
      const std::size_t rail = channel.value()->rail;
      const bool is_link_gone =
          !channel.value()->reusable() && channel.value()->transport() == "rdma";
      GiveBack(std::move(channel).value());
      if (is_link_gone)
        CloseIdle([rail](const Channel& other) {
          return other.transport() == "rdma" && other.rail == rail;
        });
      if (done) {
        pool.breaker.Succeeded();
        return {};
      }
      last = std::move(done).error();
    } else if (last.code == ErrorCode::kUnavailable &&
               channel.error().code == ErrorCode::kDeadlineExceeded) {
      pool.breaker.Abandoned(entry);
      return AtDeadline(std::move(last), peer_);  // Why it had to connect again says more.
    } else {
      last = std::move(channel).error();
    }
    const bool has_answered = busy || (connected && last.code != ErrorCode::kUnavailable &&
                                       last.code != ErrorCode::kDeadlineExceeded);
    if (has_answered)
      pool.breaker.Succeeded();
    else if (last.code == ErrorCode::kUnavailable)
      pool.breaker.Failed(entry);
    else
      pool.breaker.Abandoned(entry);
    if (last.code != ErrorCode::kUnavailable) return last;
    if (!connected && !busy && !patient && !WasReached(pool)) {
      last.message = "no daemon answers at " + peer_ + ": " + last.message +
                     "; start one there with: ffrecordd --data DIR";
      return last;
    }
    if (!backoff) backoff.emplace(RandomNumber());
    const Deadline next = net::Clock::now() + backoff->Next(busy.value_or(0ms));
    if (next >= deadline) return AtDeadline(std::move(last), peer_);
    std::this_thread::sleep_until(next);
  }
}

// --- Calls ---------------------------------------------------------------------------------------

Result<Session::Resolved> Session::Resolve(std::string_view name, Deadline deadline) {
  FFR_TRY(net::CheckName(name));
  const auto body = net::Resolve{std::string(name)}.Encode();
  Resolved resolved;
  const Attempt attempt = [&](Channel& channel) -> Result<void> {
    const auto reply = FFR_TRY(channel.Call(FrameType::kResolve, body, {}, deadline, "a manifest"));
    resolved.revision = FFR_TRY(net::RevisionReply::Decode(reply.body)).revision;
    auto manifest = DecodeDatasetManifest(reply.payload);
    if (!manifest)
      return Error{ErrorCode::kCorruption,
                   peer_ + "/" + std::string(name) + ": " + manifest.error().message};
    resolved.manifest = std::move(manifest).value();
    return {};
  };
  FFR_TRY(Run(attempt, deadline));
  return resolved;
}

Result<std::uint64_t> Session::Publish(std::string_view name, const DatasetManifest& manifest,
                                       net::Publish::Mode mode, std::uint64_t expected_revision,
                                       Deadline deadline) {
  FFR_TRY(net::CheckName(name));
  const auto payload = FFR_TRY(EncodeDatasetManifest(manifest));
  net::Publish publish;
  publish.mode = mode;
  publish.attempt = std::max<std::uint64_t>(RandomNumber(), 1);
  publish.expected_revision = expected_revision;
  publish.name = name;
  const auto body = publish.Encode();
  const std::span<const std::byte> piece(payload);
  std::uint64_t revision = 0;
  const Attempt attempt = [&](Channel& channel) -> Result<void> {
    const auto reply =
        FFR_TRY(channel.Call(FrameType::kPublish, body, {&piece, 1}, deadline, "a publication"));
    revision = FFR_TRY(net::RevisionReply::Decode(reply.body)).revision;
    return {};
  };
  FFR_TRY(Run(attempt, deadline));
  return revision;
}

Result<void> Session::CheckRoom(std::string_view name, std::uint64_t size_bytes,
                                Deadline deadline) {
  FFR_TRY(net::CheckName(name));
  const auto body = net::CheckRoom{size_bytes, std::string(name)}.Encode();
  return Run(
      [&](Channel& channel) -> Result<void> {
        auto reply = channel.Call(FrameType::kCheckRoom, body, {}, deadline, "an answer");
        // The name is good, so it can only be the question that is not.
        if (!reply && reply.error().code != ErrorCode::kInvalidArgument)
          return std::move(reply).error();
        return {};
      },
      deadline);
}

Result<std::vector<net::ListReply::Entry>> Session::List(std::string_view prefix,
                                                         Deadline deadline) {
  if (prefix.size() > net::kNameSizeMax)
    return Error{ErrorCode::kInvalidArgument, "a prefix has at most 255 characters"};
  std::vector<net::ListReply::Entry> entries;
  net::List list;
  list.prefix = prefix;
  net::ListReply page;
  const Attempt attempt = [&](Channel& channel) -> Result<void> {
    const auto reply =
        FFR_TRY(channel.Call(FrameType::kList, list.Encode(), {}, deadline, "a list of names"));
    page = FFR_TRY(net::ListReply::Decode(reply.body));
    if (GoesOn(page, list)) return {};
    return Error{ErrorCode::kCorruption, peer_ + ": a list of names that is not the one asked for"};
  };
  do {
    FFR_TRY(Run(attempt, deadline));
    std::ranges::move(page.entries, std::back_inserter(entries));
    if (!entries.empty()) list.after = entries.back().name;
  } while (page.more);
  return entries;
}

Result<std::chrono::microseconds> Session::Ping(Deadline deadline) {
  constexpr int kTries = 5;
  auto best = std::chrono::microseconds::max();
  const Attempt attempt = [&](Channel& channel) -> Result<void> {
    for (int i = 0; i < kTries; ++i) {
      const auto begin = net::Clock::now();
      FFR_TRY(channel.Call(FrameType::kPing, {}, {}, deadline, "an answer to PING"));
      const auto end = net::Clock::now();
      best = std::min(best, std::chrono::duration_cast<std::chrono::microseconds>(end - begin));
    }
    return {};
  };
  FFR_TRY(Run(attempt, deadline));
  return best;
}

Result<void> Session::Remove(std::string_view name, Deadline deadline) {
  FFR_TRY(net::CheckName(name));
  const auto body = net::Delete{0, std::string(name)}.Encode();
  int tries = 0;
  return Run(
      [&](Channel& channel) -> Result<void> {
        ++tries;
        auto reply = channel.Call(FrameType::kDelete, body, {}, deadline, "a removal");
        if (reply) return {};
        // A repeated request that finds nothing: the first one did it, and its reply was lost.
        if (tries > 1 && reply.error().code == ErrorCode::kNotFound) return {};
        return std::move(reply).error();
      },
      deadline);
}

}  // namespace ffrecord::client
