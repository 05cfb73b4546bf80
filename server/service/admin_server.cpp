#include "server/service/admin_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "server/service/dashboard_page.h"

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

void AddPages(httplib::Server& http, AdminServer::Pages pages) {
  using httplib::Request;
  using httplib::Response;
  http.Get("/", [](const Request&, Response& response) {
    response.set_content(kDashboardPage.data(), kDashboardPage.size(), "text/html; charset=utf-8");
  });
  http.Get("/healthz",
           [](const Request&, Response& response) { response.set_content("ok\n", "text/plain"); });
  http.Get("/readyz", [not_ready = pages.not_ready](const Request&, Response& response) {
    const std::string why = not_ready();
    if (!why.empty()) response.status = 503;
    response.set_content((why.empty() ? "ok" : why) + "\n", "text/plain");
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
  http.set_pre_routing_handler(
      [own_host = address.host](const httplib::Request& request, httplib::Response& response) {
        if (IsOwnName(request.get_header_value("Host"), own_host))
          return httplib::Server::HandlerResponse::Unhandled;
        response.status = 403;
        response.set_content("ask for this page by the address of the machine\n", "text/plain");
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

AdminServer::AdminServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

AdminServer::~AdminServer() {
  impl_->http.stop();
  impl_->thread.join();
}

const net::Address& AdminServer::address() const noexcept { return impl_->address; }

}  // namespace ffrecord::server
