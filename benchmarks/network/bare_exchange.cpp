#include "bare_exchange.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <thread>

#include "../support/arm.h"

namespace ffrecord::bench {

namespace {

constexpr std::size_t kEntryBytes = 16;  // An entry of a request, for each record.

void SendAtOnce(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// False: the other one is done.
bool SendAll(int socket, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool ReceiveAll(int socket, std::span<char> place) {
  while (!place.empty()) {
    const ssize_t got = ::recv(socket, place.data(), place.size(), MSG_WAITALL);
    if (got <= 0) return false;
    place = place.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// One connection: nothing to wait for but its own bytes.
void ServeOne(int socket, std::span<char> request, std::span<const char> answer) {
  while (ReceiveAll(socket, request) && SendAll(socket, answer)) {
  }
}

struct Connection {
  int socket;
  std::size_t asked_bytes = 0;  // Received of the request.
  std::size_t owed_bytes = 0;   // Still to send of the answer.
};

// Goes on until the socket blocks. False: the client is done.
bool Advance(Connection& connection, std::span<char> request, std::span<const char> answer) {
  for (;;) {
    const ssize_t moved = connection.owed_bytes > 0
                              ? ::send(connection.socket, answer.last(connection.owed_bytes).data(),
                                       connection.owed_bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : ::recv(connection.socket, request.data(),
                                       request.size() - connection.asked_bytes, MSG_DONTWAIT);
    if (moved < 0 && errno == EAGAIN) return true;
    if (moved <= 0) return false;
    if (connection.owed_bytes > 0) {
      connection.owed_bytes -= static_cast<std::size_t>(moved);
      continue;
    }
    connection.asked_bytes += static_cast<std::size_t>(moved);
    if (connection.asked_bytes < request.size()) continue;
    connection.asked_bytes = 0;
    connection.owed_bytes = answer.size();
  }
}

// Edges are enough, as every turn goes on until the socket blocks.
void ServeMany(std::span<Connection> connections, std::vector<char> request,
               std::span<const char> answer) {
  const int queue = ::epoll_create1(EPOLL_CLOEXEC);
  for (Connection& connection : connections) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.ptr = &connection;
    if (::epoll_ctl(queue, EPOLL_CTL_ADD, connection.socket, &event) != 0) Fail("no epoll");
  }
  std::array<epoll_event, 64> events{};
  for (std::size_t left = connections.size(); left > 0;) {
    const int count = ::epoll_wait(queue, events.data(), static_cast<int>(events.size()), -1);
    const std::size_t ready = count > 0 ? static_cast<std::size_t>(count) : 0;
    for (const epoll_event& event : std::span(events).first(ready)) {
      auto& connection = *static_cast<Connection*>(event.data.ptr);
      if (Advance(connection, request, answer)) continue;
      ::close(connection.socket);
      --left;
    }
  }
  ::close(queue);
}

void Serve(int listener, std::size_t count, std::vector<char> request,
           std::span<const char> answer) {
  std::vector<Connection> connections;
  while (connections.size() < count) {
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket < 0) Fail("cannot accept");
    SendAtOnce(socket);
    connections.push_back({socket});
  }
  if (count == 1) return ServeOne(connections[0].socket, request, answer);
  // A thread for each core, as the daemon has them.
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  const std::size_t share = (count + cores - 1) / cores;
  std::vector<std::jthread> threads;
  for (std::size_t first = 0; first < count; first += share)
    threads.emplace_back([&, first] {
      ServeMany(std::span(connections).subspan(first, std::min(share, count - first)), request,
                answer);
    });
}

}  // namespace

BareServer::BareServer(std::size_t connections, std::size_t batch, std::size_t record_bytes) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address_);
  auto* const any = reinterpret_cast<sockaddr*>(&address_);
  if (listener < 0 || ::bind(listener, any, size) != 0 ||
      ::listen(listener, static_cast<int>(connections)) != 0 ||
      ::getsockname(listener, any, &size) != 0)
    Fail("cannot listen");
  child_ = ::fork();
  if (child_ < 0) Fail("cannot fork");
  if (child_ == 0) {
    Serve(listener, connections, std::vector<char>(batch * kEntryBytes),
          std::vector<char>(batch * record_bytes, '\1'));
    std::_Exit(0);
  }
  ::close(listener);
}

BareServer::~BareServer() { (void)::waitpid(child_, nullptr, 0); }

BareClient::BareClient(const BareServer& server, std::size_t batch, std::size_t record_bytes)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      request_(batch * kEntryBytes),
      answer_(batch * record_bytes) {
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&server.address()),
                sizeof(sockaddr_in)) != 0)
    Fail("cannot connect");
  SendAtOnce(socket_);
}

BareClient::~BareClient() { ::close(socket_); }

std::uint64_t BareClient::MakeOne() {
  if (!SendAll(socket_, request_) || !ReceiveAll(socket_, answer_)) Fail("the server has ended");
  return answer_.size();
}

}  // namespace ffrecord::bench
