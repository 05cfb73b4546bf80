#include "libffrecord/net/rpc/session.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/random.h"
#include "libffrecord/net/rpc/breaker.h"
#include "libffrecord/net/rpc/rails.h"
#include "libffrecord/net/rpc/slab_pool.h"

namespace ffrecord::net {
namespace {

using std::chrono_literals::operator""ms;

// More callers than this at one time wait for each other: a daemon has many clients to serve.
constexpr std::size_t kConnectionsMax = 16;

// How often idle connections are looked at, while there are calls.
constexpr auto kLookEvery = 1000ms;
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
  std::vector<std::unique_ptr<Connection>> idle;  // The one used last is at the end.
  std::size_t used_count = 0;
  bool reached = false;              // A greeting was answered once.
  Connector::Link link;              // Of the connection made last.
  std::string why_no_upload_memory;  // Over it; empty: it has some, or none was wanted yet.
  Rails rails;
  Deadline next_look{};  // At idle connections.
  Breaker breaker{RandomNumber()};
};

Session::Session(Connector connector)
    : connector_(std::move(connector)), pool_([] { return new Pool; }) {}

Session::~Session() = default;

std::shared_ptr<Session> Session::Get(const Address& address, Transport transport,
                                      const std::string& token_file, const std::string& tls_folder,
                                      const RdmaOptions& rdma) {
  using Key = std::tuple<std::string, Transport, std::string, std::string, RdmaOptions>;
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
    session =
        std::make_shared<Session>(Connector(address, transport, token_file, tls_folder, rdma));
  return session;
}

Connector::Link Session::link() {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  Connector::Link link = pool.link;
  if (!pool.why_no_upload_memory.empty())
    link.reason += "; uploads go as messages: " + pool.why_no_upload_memory;
  return link;
}

Result<PooledBuffer> Session::TakeMemory(std::uint64_t size_bytes) const {
  return uses_slabs_.load(std::memory_order_relaxed) ? SlabPool::Process().Take(size_bytes)
                                                     : BufferPool::Process().Take(size_bytes);
}

Result<void> Session::PrepareUploads(Connection& connection, Deadline deadline) {
  auto exposed = connection.ExposeUploads(deadline);
  if (exposed) return {};
  const Error& why = exposed.error();
  const bool is_refused = why.code == ErrorCode::kIo || why.code == ErrorCode::kInvalidArgument;
  if (!is_refused || !connection.reusable()) return connection.Break(why);
  const bool can_be_mended = why.system_errno != EOPNOTSUPP;
  if (connector_.transport() != Transport::kAuto && can_be_mended)
    return connector_.CannotBeHad(why.message, "uploads want that memory");
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  pool.why_no_upload_memory = why.message;
  return {};
}

Result<std::unique_ptr<Connection>> Session::ConnectApart(Deadline deadline) const {
  RetryAfter busy;
  return FFR_TRY(connector_.Connect(pool_.Get().rails, deadline, busy)).connection;
}

Result<std::unique_ptr<Connection>> Session::Take(Deadline deadline, RetryAfter& busy) {
  Pool& pool = pool_.Get();
  {
    std::unique_lock lock(pool.mutex);
    while (pool.used_count == kConnectionsMax) {
      if (!WaitPatiently(pool.returned, lock, deadline) && pool.used_count == kConnectionsMax)
        return Error{ErrorCode::kDeadlineExceeded,
                     "timed out waiting for one of " + std::to_string(kConnectionsMax) +
                         " connections to " + peer() + ", all of which are in use"};
    }
    ++pool.used_count;
    if (pool.rails.HasReturned()) pool.idle.clear();
    CloseDead(pool);
    while (!pool.idle.empty()) {
      auto connection = std::move(pool.idle.back());
      pool.idle.pop_back();
      if (connection->Alive()) return connection;
    }
  }
  auto made = connector_.Connect(pool.rails, deadline, busy);
  const std::lock_guard lock(pool.mutex);
  if (!made) {
    --pool.used_count;
    pool.returned.notify_one();
    return std::move(made).error();
  }
  auto& [connection, link] = made.value();
  uses_slabs_.store(connection->writes_slabs(), std::memory_order_relaxed);
  pool.link = std::move(link);
  pool.why_no_upload_memory.clear();
  pool.reached = true;
  return std::move(connection);
}

// A call looks at the connection it takes; others may hold a device that was taken away, and that
// nothing else uses any more.
void Session::CloseDead(Pool& pool) {
  const auto now = Clock::now();
  if (now < pool.next_look) return;
  pool.next_look = now + kLookEvery;
  std::erase_if(pool.idle, [](const auto& connection) { return !connection->Alive(); });
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

void Session::GiveBack(std::unique_ptr<Connection> connection) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  --pool.used_count;
  if (connection->reusable()) pool.idle.push_back(std::move(connection));
  pool.returned.notify_one();
}

void Session::CloseIdle(const std::function<bool(Connection&)>& unwanted) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  std::erase_if(pool.idle, [&](const auto& connection) { return unwanted(*connection); });
}

Result<void> Session::Run(const Attempt& attempt, Deadline deadline, bool patient) {
  std::optional<Backoff> backoff;  // A random number costs more than many a call.
  Pool& pool = pool_.Get();
  Error last{ErrorCode::kDeadlineExceeded,
             "timed out: " + peer() + " does not answer, and another caller was already trying it"};
  for (;;) {
    if (Patience::OfThread().IsOver()) return AtDeadline(std::move(last), peer());
    const auto entry = pool.breaker.Enter(deadline);
    if (entry == Breaker::Entry::kNotYet) return AtDeadline(std::move(last), peer());
    RetryAfter busy;
    bool connected = false;
    if (auto connection = Take(deadline, busy)) {
      connected = true;
      auto done = attempt(*connection.value());
      busy = connection.value()->retry_after();
      // Where the link is gone the others are as dead, and take as long to find out.
      const auto rail = connection.value()->rail();
      const bool is_link_gone = rail && !connection.value()->reusable();
      GiveBack(std::move(connection).value());
      if (is_link_gone) CloseIdle([rail](const Connection& other) { return other.rail() == rail; });
      if (done) {
        pool.breaker.Succeeded();
        return {};
      }
      last = std::move(done).error();
    } else if (last.code == ErrorCode::kUnavailable &&
               connection.error().code == ErrorCode::kDeadlineExceeded) {
      pool.breaker.Abandoned(entry);
      return AtDeadline(std::move(last), peer());  // Why it had to connect again says more.
    } else {
      last = std::move(connection).error();
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
      last.message = "no daemon answers at " + peer() + ": " + last.message +
                     "; start one there with: ffrecordd --data DIR";
      return last;
    }
    if (!backoff) backoff.emplace(RandomNumber());
    const Deadline next = Clock::now() + backoff->Next(busy.value_or(0ms));
    if (next >= deadline) return AtDeadline(std::move(last), peer());
    SleepPatiently(next);
  }
}

// --- Calls ---------------------------------------------------------------------------------------

Result<std::chrono::microseconds> Session::Ping(Deadline deadline) {
  constexpr int kTries = 5;
  auto best = std::chrono::microseconds::max();
  const Attempt attempt = [&](Connection& connection) -> Result<void> {
    for (int i = 0; i < kTries; ++i) {
      const auto begin = Clock::now();
      FFR_TRY(connection.Call(FrameType::kPing, {}, {}, deadline, "an answer to PING"));
      const auto end = Clock::now();
      best = std::min(best, std::chrono::duration_cast<std::chrono::microseconds>(end - begin));
    }
    return {};
  };
  FFR_TRY(Run(attempt, deadline));
  return best;
}

}  // namespace ffrecord::net
