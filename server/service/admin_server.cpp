#include "server/service/admin_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "server/service/dashboard_page.h"
#include "server/service/secret_file.h"

namespace ffrecord::server {
namespace {

// A scraper, two dashboards and a probe at one time; others wait.
constexpr std::size_t kThreadCount = 4;
// A request is one line and a few headers: who takes longer over a piece of it is hung up on.
constexpr std::time_t kReadSeconds = 2;
constexpr std::size_t kBodyBytesMax = 1024;

constexpr const char* kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

// Whoever owns a name in the DNS can make it lead here, and have a browser read us as if we were
// theirs. Numbers, localhost and the name that we were told to listen on cannot be claimed so.
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
  std::string text(coded.size(), '\0');
  const int size = ::EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(coded.data()),
                                     static_cast<int>(coded.size()));
  if (size < 0) return {};
  text.resize(static_cast<std::size_t>(size));
  // Padding is decoded as zeros.
  while (!text.empty() && text.back() == '\0') text.pop_back();
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? std::string() : text.substr(colon + 1);
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
  http.Get("/datasets", [datasets = pages.datasets](const Request&, Response& response) {
    auto listed = datasets();
    if (listed) {
      response.set_content(std::move(listed).value(), "application/json");
      return;
    }
    response.status = listed.error().code == ErrorCode::kDenied ? 403 : 503;
    response.set_content(listed.error().message + "\n", "text/plain");
  });
}

}  // namespace

struct AdminServer::Impl {
  httplib::Server http;
  net::Address address;
  std::atomic<bool> has_ended{false};
  std::thread thread;
};

Result<std::unique_ptr<AdminServer>> AdminServer::Start(const net::Address& address, Pages pages) {
  auto impl = std::make_unique<Impl>();
  httplib::Server& http = impl->http;
  impl->address = address;
  http.new_task_queue = [] { return new httplib::ThreadPool(kThreadCount); };
  http.set_keep_alive_max_count(1);  // Nobody holds a thread while he has no question.
  http.set_read_timeout(kReadSeconds);
  http.set_write_timeout(kReadSeconds);
  http.set_payload_max_length(kBodyBytesMax);
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
    const bool is_own = IsOwnName(request.get_header_value("Host"), own_host);
    const bool is_health = request.path == "/healthz" || request.path == "/readyz";
    if (is_own && (is_health || IsAdmitted(request, token)))
      return httplib::Server::HandlerResponse::Unhandled;
    response.status = is_own ? 401 : 403;
    if (is_own) response.set_header("WWW-Authenticate", "Basic realm=\"ffrecordd\"");
    response.set_content(is_own ? "this port wants its token\n"
                                : "ask for this page by the address of the machine\n",
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
