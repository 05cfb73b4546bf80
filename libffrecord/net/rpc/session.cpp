#include "libffrecord/net/rpc/session.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/random.h"
#include "libffrecord/net/rpc/breaker.h"
#include "libffrecord/net/rpc/rails.h"
#include "libffrecord/net/rpc/slab_pool.h"
#include "libffrecord/net/rpc/token_file.h"

namespace ffrecord::net {
namespace {

using std::chrono_literals::operator""ms;

// More callers than this at one time wait for each other: a daemon has many clients to serve.
constexpr std::size_t kConnectionsMax = 16;
// Beside them, connections whose callers only wait for late answers.
constexpr std::size_t kParkedMax = 16;

// How often idle connections are looked at, while there are calls.
constexpr auto kLookEvery = 1000ms;

}  // namespace

Error TriedUntilTimeout(Error last, const std::string& peer) {
  if (last.code == ErrorCode::kUnavailable)
    last.message += " (" + peer + " was tried until the timeout)";
  return last;
}

// --- Connections ---------------------------------------------------------------------------------

struct Session::Pool {
  TokenFile token;  // With a lock of its own.
  std::mutex mutex;
  std::condition_variable returned;
  std::vector<std::unique_ptr<Connection>> idle;  // The one used last is at the end.
  std::size_t used_count = 0;
  std::size_t parked_count = 0;      // Beside those.
  bool reached = false;              // A greeting was answered once.
  Connector::Link link;              // Link of the connection made last.
  std::string why_no_upload_memory;  // Over it; empty: it has some, or none was wanted yet.
  Rails rails;
  Deadline next_look{};  // At idle connections.
  Breaker breaker{RandomNumber()};
};

Session::Session(Connector connector, std::string token_file)
    : connector_(std::move(connector)),
      token_file_(std::move(token_file)),
      pool_([] { return new Pool; }) {}

Session::~Session() = default;

std::shared_ptr<Session> Session::Get(const Address& address, Transport transport,
                                      const std::string& token_file, const std::string& tls_folder,
                                      const RdmaOptions& rdma,
                                      const std::optional<NodeIdentity>& node) {
  using Key = std::tuple<std::string, Transport, std::string, std::string, RdmaOptions,
                         std::optional<NodeIdentity>>;
  struct Registry {
    std::mutex mutex;
    std::map<Key, std::shared_ptr<Session>> sessions;
  };
  // Leaked: calls may still run in other threads when the process ends.
  static auto* const registries = new PerProcess<Registry>([] { return new Registry; });
  Registry& registry = registries->Get();
  const std::lock_guard lock(registry.mutex);
  auto& session =
      registry.sessions[Key(address.ToString(), transport, token_file, tls_folder, rdma, node)];
  if (!session)
    session = std::make_shared<Session>(Connector(address, transport, tls_folder, rdma, node),
                                        token_file);
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
  return uses_slabs() ? SlabPool::Process().Take(size_bytes)
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
  return FFR_TRY(Connect(deadline, busy)).connection;
}

// The token is read each time: tokens are short-lived, and the file is written anew to renew them.
Result<Connector::Connected> Session::Connect(Deadline deadline, RetryAfter& busy) const {
  Pool& pool = pool_.Get();
  const TokenFile::Token token = FFR_TRY(pool.token.Read(token_file_));
  auto made = FFR_TRY(connector_.Connect(token.bytes, pool.rails, deadline, busy));
  made.connection->NoteToken(token.number);
  return made;
}

Result<std::unique_ptr<Connection>> Session::Take(Deadline deadline, RetryAfter& busy) {
  Pool& pool = pool_.Get();
  const std::uint64_t token = pool.token.Number(token_file_);
  {
    std::unique_lock lock(pool.mutex);
    while (pool.used_count == kConnectionsMax) {
      if (!WaitPatiently(pool.returned, lock, deadline) && pool.used_count == kConnectionsMax)
        return Error{ErrorCode::kDeadlineExceeded,
                     "timed out waiting for one of " + std::to_string(kConnectionsMax) +
                         " connections to " + peer() + ", all of which are in use"};
    }
    ++pool.used_count;
    if (auto connection = TakeIdle(pool, token)) return connection;
  }
  auto made = Connect(deadline, busy);
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

// A connection has the rights of the token that it was made with: the others are closed.
std::unique_ptr<Connection> Session::TakeIdle(Pool& pool, std::uint64_t token) {
  if (pool.rails.HasReturned()) pool.idle.clear();
  CloseDead(pool);
  while (!pool.idle.empty()) {
    auto connection = std::move(pool.idle.back());
    pool.idle.pop_back();
    if (connection->token_number() == token && connection->Alive()) return connection;
  }
  return nullptr;
}

// A call looks at the connection it takes; others may hold a device that was taken away, and that
// nothing else uses any more, or memory.
void Session::CloseDead(Pool& pool) {
  const auto now = Clock::now();
  if (now < pool.next_look) return;
  pool.next_look = now + kLookEvery;
  std::erase_if(pool.idle, [](const auto& connection) {
    return !connection->Alive() || connection->HoldsRetiredSlab();
  });
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

void Session::GiveBack(std::unique_ptr<Connection> connection, bool was_parked) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  --(was_parked ? pool.parked_count : pool.used_count);
  if (connection->reusable() && !connection->HoldsRetiredSlab())
    pool.idle.push_back(std::move(connection));
  pool.returned.notify_one();
}

void Session::CloseIdle(const std::function<bool(Connection&)>& unwanted) {
  Pool& pool = pool_.Get();
  const std::lock_guard lock(pool.mutex);
  std::erase_if(pool.idle, [&](const auto& connection) { return unwanted(*connection); });
}

Result<void> Session::Run(const Attempt& attempt, Deadline deadline, bool patient,
                          const FailureNote& note) {
  Tries tries(*this, patient ? Tries::Until::kDeadline : Tries::Until::kNeverReached, note);
  for (;;) {
    FFR_TRY(tries.Begin(deadline));
    auto done = tries.End(attempt(*tries.connection()));
    if (done || done.error().code != ErrorCode::kUnavailable) return done;
  }
}

// --- Tries ---------------------------------------------------------------------------------------

Result<void> Session::Tries::Begin(Deadline deadline) {
  FFR_ASSERT(connection_ == nullptr);
  Pool& pool = session_.pool_.Get();
  const auto at_deadline = [&]() -> Error {
    if (last_) return TriedUntilTimeout(*last_, session_.peer());
    return {ErrorCode::kDeadlineExceeded,
            "timed out: " + session_.peer() +
                " does not answer, and another caller was already trying it"};
  };
  for (;;) {
    if (next_ != Deadline{}) {
      if (next_ >= deadline) return at_deadline();
      SleepPatiently(next_);
    }
    if (Patience::OfThread().IsOver()) return at_deadline();
    entry_ = pool.breaker.Enter(deadline);
    if (entry_ == Breaker::Entry::kNotYet) return at_deadline();
    RetryAfter busy;
    auto taken = session_.Take(deadline, busy);
    if (taken) {
      connection_ = std::move(taken).value();
      return {};
    }
    if (last_ && taken.error().code == ErrorCode::kDeadlineExceeded) {
      pool.breaker.Abandoned(entry_);
      return at_deadline();  // Why it had to connect again says more.
    }
    Error error = std::move(taken).error();
    Note(error, busy.has_value(), busy.value_or(0ms));
    if (error.code != ErrorCode::kUnavailable) return error;
    if (until_ == Until::kFirstFailure) return error;
    if (!busy && until_ == Until::kNeverReached && !WasReached(pool)) {
      error.message = "no daemon answers at " + session_.peer() + ": " + error.message +
                      "; start one there with: ffrecordd --data DIR";
      return error;
    }
  }
}

bool Session::Tries::BeginAtOnce() {
  Pool& pool = session_.pool_.Get();
  if (Clock::now() < next_ || pool.breaker.is_open()) return false;
  const std::uint64_t token = pool.token.Number(session_.token_file_);
  const std::lock_guard lock(pool.mutex);
  if (pool.used_count == kConnectionsMax) return false;
  connection_ = session_.TakeIdle(pool, token);
  if (connection_ == nullptr) return false;
  ++pool.used_count;
  entry_ = Breaker::Entry::kTogether;
  return true;
}

void Session::Tries::NoteConnected() {
  if (std::exchange(entry_, Breaker::Entry::kTogether) == Breaker::Entry::kAlone)
    session_.pool_.Get().breaker.Succeeded();
}

bool Session::Tries::Park() {
  Pool& pool = session_.pool_.Get();
  const std::lock_guard lock(pool.mutex);
  if (pool.parked_count == kParkedMax) return false;
  ++pool.parked_count;
  --pool.used_count;
  pool.returned.notify_one();
  is_parked_ = true;
  return true;
}

bool Session::Tries::Unpark() {
  Pool& pool = session_.pool_.Get();
  const std::lock_guard lock(pool.mutex);
  if (pool.used_count == kConnectionsMax) return false;
  ++pool.used_count;
  --pool.parked_count;
  is_parked_ = false;
  return true;
}

Result<void> Session::Tries::End(Result<void> done) {
  const auto busy = connection_->retry_after();
  // Where the link is gone the others are as dead, and take as long to find out.
  const auto rail = connection_->rail();
  const bool is_link_gone = rail && !connection_->reusable();
  session_.GiveBack(std::move(connection_), std::exchange(is_parked_, false));
  if (is_link_gone)
    session_.CloseIdle([rail](const Connection& other) { return other.rail() == rail; });
  if (done) {
    session_.pool_.Get().breaker.Succeeded();
    return done;
  }
  const ErrorCode code = done.error().code;
  const bool has_answered =
      busy || (code != ErrorCode::kUnavailable && code != ErrorCode::kDeadlineExceeded);
  Note(done.error(), has_answered, busy.value_or(0ms));
  return done;
}

void Session::Tries::Note(const Error& error, bool has_answered,
                          std::chrono::milliseconds at_least) {
  Breaker& breaker = session_.pool_.Get().breaker;
  if (has_answered)
    breaker.Succeeded();
  else if (error.code == ErrorCode::kUnavailable)
    breaker.Failed(entry_);
  else
    breaker.Abandoned(entry_);
  if (error.code != ErrorCode::kUnavailable) return;
  if (failure_note_) failure_note_(error, has_answered);
  last_ = error;
  if (!back_off_) back_off_.emplace(BackOff::kOfDaemons);
  next_ = Clock::now() + back_off_->Next(at_least);
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
