#include "server/service/admin/admin_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "libffrecord/base/base64.h"
#include "libffrecord/base/timed_waits.h"
#include "server/service/access/secret_file.h"
#include "server/service/admin/dashboard_page.h"

namespace ffrecord::server {
namespace {

// Exchanges at one time. One more cuts off the oldest: those that keep the rules take milliseconds.
constexpr std::size_t kExchangeCountMax = 16;
// A request is one line and a few headers; that the client takes its time over each piece of it, or
// of the answer, makes it no longer.
constexpr auto kRequestTime = std::chrono::seconds(2);
constexpr auto kExchangeTime = std::chrono::seconds(5);
constexpr std::size_t kRequestBytesMax = std::size_t{32} << 10;

constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

// The owner of a name in the DNS can make it lead here, and have a browser read us as if we were
// theirs. Numbers, localhost and the name of the setting cannot be claimed so.
bool IsOwnName(const std::string& host_header, const std::string& own_host) {
  const auto address = net::Address::Parse(host_header, 0);
  if (!address) return false;
  const std::string& host = address.value().host;
  in6_addr ignored{};
  return host == "localhost" || host == own_host ||
         ::inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

bool IsSame(std::string_view one, std::string_view other) {
  return one.size() == other.size() && ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

// The password in "Basic <base64 of user:password>"; empty if it is something else.
std::string PasswordOf(std::string_view coded) {
  const auto decoded = DecodeBase64(coded);
  if (!decoded) return {};
  const std::string_view text(reinterpret_cast<const char*>(decoded->data()), decoded->size());
  const std::size_t colon = text.find(':');
  return colon == text.npos ? std::string() : std::string(text.substr(colon + 1));
}

bool IsAdmitted(const httplib::Request& request, const std::string& token) {
  if (token.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  constexpr std::string_view kBasic = "Basic ";
  const std::string given = request.get_header_value("Authorization");
  if (given.starts_with(kBearer)) return IsSame(given.substr(kBearer.size()), token);
  return given.starts_with(kBasic) &&
         IsSame(PasswordOf(std::string_view(given).substr(kBasic.size())), token);
}

// One request and its answer over a socket, within its time and its bytes. Thread-bound.
class Exchange final : public httplib::Stream {
 public:
  explicit Exchange(socket_t socket) : socket_(socket) {}

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN, kRequestTime); }
  bool is_writable() const override { return Wait(POLLOUT, kExchangeTime); }
  ssize_t read(char* to, std::size_t size) override {
    if (begin_ == end_ && !Receive()) return -1;
    const std::size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, count);
    begin_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* from, std::size_t size) override {
    if (!is_writable()) return -1;
    return ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // For httplib's log, which we do not use.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  bool Wait(short events, Clock::duration time) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(begun_ + time - Clock::now());
    pollfd waited{socket_, events, 0};
    return left.count() > 0 && PollFor({&waited, 1}, left) > 0;
  }
  bool Receive() {
    if (received_bytes_ >= kRequestBytesMax || !Wait(POLLIN, kRequestTime)) return false;
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) return false;
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
    received_bytes_ += end_;
    return true;
  }

  const socket_t socket_;
  const Clock::time_point begun_ = Clock::now();
  std::size_t received_bytes_ = 0;
  std::array<char, 4096> buffer_;
  std::size_t begin_ = 0;  // Range of received bytes that were not yet read.
  std::size_t end_ = 0;
};

// The sockets of the exchanges under way, the oldest in front. Thread-safe.
class OpenExchanges {
 public:
  void Add(socket_t socket) {
    const std::lock_guard lock(mutex_);
    if (owed_count_ == 0 && !is_ending_) return sockets_.push_back(socket);
    (void)::shutdown(socket, SHUT_RDWR);
    if (owed_count_ > 0) --owed_count_;
  }
  // To be called before the socket is closed.
  void Remove(socket_t socket) {
    const std::lock_guard lock(mutex_);
    std::erase(sockets_, socket);
  }
  void CutOldest() {
    const std::lock_guard lock(mutex_);
    if (sockets_.empty()) {
      ++owed_count_;  // The oldest still waits for a thread.
      return;
    }
    (void)::shutdown(sockets_.front(), SHUT_RDWR);  // Its thread notices.
    sockets_.pop_front();
  }
  // These, and those to come.
  void CutAll() {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const socket_t socket : sockets_) (void)::shutdown(socket, SHUT_RDWR);
  }

 private:
  std::mutex mutex_;
  std::size_t owed_count_ = 0;  // To be cut as soon as they are added.
  bool is_ending_ = false;
  std::deque<socket_t> sockets_;
};

class ExchangeQueue final : public httplib::TaskQueue {
 public:
  explicit ExchangeQueue(OpenExchanges& open) : open_(open), pool_(kExchangeCountMax) {}
  void enqueue(std::function<void()> exchange) override {
    if (count_.fetch_add(1) >= kExchangeCountMax) open_.CutOldest();
    pool_.enqueue([this, exchange = std::move(exchange)] {
      exchange();
      count_.fetch_sub(1);
    });
  }
  void shutdown() override {
    open_.CutAll();  // Nobody's slowness is waited for at the end.
    pool_.shutdown();
  }

 private:
  OpenExchanges& open_;
  std::atomic<std::size_t> count_{0};  // Waiting or under way.
  httplib::ThreadPool pool_;
};

// httplib bounds the time between two bytes and not that of a request, and counts no body that
// comes in chunks: so the sockets are ours.
class BoundedServer final : public httplib::Server {
 public:
  BoundedServer() {
    new_task_queue = [this] { return new ExchangeQueue(open_); };
  }
  // Once it is bound: httplib has the kernel hold five, and who comes too many waits for a second.
  void WidenBacklog() { (void)::listen(svr_sock_, SOMAXCONN); }

 private:
  bool process_and_close_socket(socket_t socket) override {
    open_.Add(socket);
    Exchange exchange(socket);
    bool is_closed = false;
    constexpr bool kCloses = true;
    // Pages are served whole: thousands of ranges of one make an answer of thousands of pages.
    const auto ask_whole = [](httplib::Request& request) { request.ranges.clear(); };
    const bool is_answered = process_request(exchange, kCloses, is_closed, ask_whole);
    (void)::shutdown(socket, SHUT_WR);
    // Unread bytes would make the kernel reset the connection, and the answer would be lost.
    std::array<char, 4096> ignored;
    for (std::size_t i = 0; i < kRequestBytesMax / ignored.size(); ++i)
      if (::recv(socket, ignored.data(), ignored.size(), MSG_DONTWAIT) <= 0) break;
    open_.Remove(socket);
    (void)::close(socket);
    return is_answered;
  }

  OpenExchanges open_;
};

int StatusOf(ErrorCode code) {
  if (code == ErrorCode::kDenied) return 403;
  return code == ErrorCode::kNotFound ? 404 : 503;
}

void Answer(Result<std::string> json, httplib::Response& response) {
  if (json) {
    response.set_content(std::move(json).value(), "application/json");
    return;
  }
  response.status = StatusOf(json.error().code);
  response.set_content(json.error().message + "\n", "text/plain");
}

void AddJson(httplib::Server& http, const char* path, std::function<Result<std::string>()> page) {
  http.Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& response) {
    Answer(page(), response);
  });
}

AdminServer::PlannedChange ChangeOf(const httplib::Request& request) {
  AdminServer::PlannedChange change;
  for (const auto& [key, value] : request.params) {
    if (key == "down" && value == "lost") change.are_down_lost = true;
    if (key == "without") change.without.insert(value);
  }
  return change;
}

void AddPages(httplib::Server& http, AdminServer::Pages pages) {
  using httplib::Request;
  using httplib::Response;
  http.Get("/", [](const Request&, Response& response) {
    response.set_content(kDashboardPage.data(), kDashboardPage.size(), "text/html; charset=utf-8");
  });
  http.Get("/healthz",
           [](const Request&, Response& response) { response.set_content("ok\n", "text/plain"); });
  http.Get("/readyz", [not_ready = pages.not_ready, remark = pages.remark](const Request&,
                                                                           Response& response) {
    const std::string why = not_ready();
    if (!why.empty()) response.status = 503;
    const std::string more = why.empty() ? remark() : why;
    response.set_content((why.empty() ? more.empty() ? "ok" : "ok, " + more : why) + "\n",
                         "text/plain");
  });
  http.Get("/metrics", [metrics = pages.metrics](const Request&, Response& response) {
    response.set_content(metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  AddJson(http, "/datasets", std::move(pages.datasets));
  AddJson(http, "/cluster", std::move(pages.cluster));
  AddJson(http, "/cluster/slots", std::move(pages.cluster_slots));
  AddJson(http, "/cluster/lost", std::move(pages.cluster_lost));
  http.Get("/cluster/plan",
           [plan = std::move(pages.cluster_plan)](const Request& request, Response& response) {
             Answer(plan(ChangeOf(request)), response);
           });
}

}  // namespace

struct AdminServer::Impl {
  BoundedServer http;
  net::Address address;
  std::atomic<bool> has_ended{false};
  std::thread thread;
};

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const net::Address& address, Pages pages) {
  auto impl = std::make_unique<Impl>();
  BoundedServer& http = impl->http;
  impl->address = address;
  // A port in use is to be refused, so no SO_REUSEPORT, which is what httplib would set.
  http.set_socket_options([](socket_t socket) {
    const int yes = 1;
    (void)::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  http.set_default_headers({{"Content-Security-Policy", kPolicy},
                            {"X-Content-Type-Options", "nosniff"},
                            {"Cache-Control", "no-store"}});
  http.set_pre_routing_handler([own_host = address.host, token = pages.token](
                                   const httplib::Request& request, httplib::Response& response) {
    // Before a body is read: there is none that we want.
    if (request.method != "GET" && request.method != "HEAD") {
      response.status = 405;
      response.set_header("Allow", "GET, HEAD");
      return httplib::Server::HandlerResponse::Handled;
    }
    const bool is_own = IsOwnName(request.get_header_value("Host"), own_host);
    const bool is_health = request.path == "/healthz" || request.path == "/readyz";
    if (is_own && (is_health || IsAdmitted(request, token)))
      return httplib::Server::HandlerResponse::Unhandled;
    response.status = is_own ? 401 : 403;
    if (is_own) response.set_header("WWW-Authenticate", "Basic realm=\"ffrecordd\"");
    response.set_content(
        is_own ? "this port requires its token\n" : "open this page by the machine's own address\n",
        "text/plain");
    return httplib::Server::HandlerResponse::Handled;
  });
  AddPages(http, std::move(pages));

  errno = 0;
  const int bound_port = address.port == 0 ? http.bind_to_any_port(address.host)
                         : http.bind_to_port(address.host, address.port)
                             ? static_cast<int>(address.port)
                             : -1;
  if (bound_port < 0) {
    const int number = errno;
    return Error{number == EADDRINUSE ? ErrorCode::kConflict : ErrorCode::kInvalidArgument,
                 "cannot serve the admin port at " + address.ToString() + ": " +
                     (number != 0 ? std::strerror(number) : "no such address here"),
                 number};
  }
  http.WidenBacklog();
  impl->address.port = static_cast<std::uint16_t>(bound_port);
  impl->thread = std::thread([&http, &has_ended = impl->has_ended] {
    http.listen_after_bind();
    has_ended = true;
  });
  // Else a stop that comes first would stop nothing.
  while (!http.is_running() && !impl->has_ended) std::this_thread::yield();
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

Result<std::string> ReadAdminToken(const std::filesystem::path& path) {
  constexpr std::size_t kSizeMin = 16;
  if (path.empty()) return std::string();
  std::string token = FFR_TRY(ReadSecret(path));
  token.resize(std::min(token.find_first_of("\r\n"), token.size()));
  if (token.size() >= kSizeMin) return token;
  return Error{ErrorCode::kInvalidArgument,
               path.string() +
                   ": an admin token is a line of 16 or more characters, as openssl "
                   "rand -hex 32 makes them"};
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

AdminServer::~AdminServer() {
  impl_->http.stop();
  impl_->thread.join();
}

const net::Address& AdminServer::address() const noexcept { return impl_->address; }

}  // namespace ffrecord::server
