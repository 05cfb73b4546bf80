// An object store for benchmarks: serves the files of a folder over HTTP/1.1, whole or in ranges,
// each answer so many milliseconds after its request, as a store far away does.
//
//   range-server FOLDER FIRST_BYTE_MS [ADDRESS PORT]
//
// Listens at any port of loopback, or at that IPv4 address and port. Prints {"port": N} and serves
// until its input ends. The path of a request is that of a file below FOLDER: with a folder for
// each bucket, S3 clients that write the bucket into the path find their objects. Nothing is
// checked: neither signatures nor headers other than Range. One thread; bodies go from the page
// cache to the socket without a copy in this program.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/support/arm.h"

namespace {

using ffrecord::bench::Clock;
using ffrecord::bench::Fail;

struct File {
  int fd = -1;
  std::uint64_t size_bytes = 0;
  std::string version_headers;
};

struct Connection {
  int fd = -1;
  std::string received;
  bool is_waiting = false;  // For the time of its answer.
  // The answer: its head, then bytes of a file.
  std::string head;
  std::size_t head_sent = 0;
  const File* file = nullptr;
  off_t at = 0;
  std::uint64_t left_bytes = 0;

  bool has_answer() const { return head_sent < head.size() || left_bytes > 0; }
};

// As servers write it, whatever the locale.
std::string HttpDate(std::time_t time) {
  std::array<char, 64> text{};
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text.data();
}

class Server {
 public:
  Server(std::string folder, std::chrono::milliseconds first_byte_after)
      : folder_(std::move(folder)), first_byte_after_(first_byte_after) {}

  void Listen(const char* at, std::uint16_t port) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (::inet_pton(AF_INET, at, &address.sin_addr) != 1) Fail("range-server: no such address");
    socklen_t size = sizeof address;
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    if (listener_ < 0 || ::bind(listener_, plain, size) != 0 || ::listen(listener_, 4096) != 0 ||
        ::getsockname(listener_, plain, &size) != 0)
      Fail("range-server cannot listen");
    Watch(EPOLL_CTL_ADD, listener_, EPOLLIN);
    Watch(EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN);
    std::printf("{\"port\": %u}\n", ntohs(address.sin_port));
    std::fflush(stdout);
  }

  void Run() {
    std::array<epoll_event, 256> events{};
    for (;;) {
      const int count = ::epoll_wait(epoll_, events.data(), events.size(), WaitMs());
      for (int i = 0; i < std::max(count, 0); ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == STDIN_FILENO) return;
        if (fd == listener_)
          Accept();
        else if (const auto found = connections_.find(fd); found != connections_.end())
          Serve(*found->second);
      }
      SendDue();
    }
  }

 private:
  struct Due {
    Clock::time_point when;
    int fd;
    const Connection* connection;  // Another may have the descriptor by then.
    bool operator>(const Due& other) const { return when > other.when; }
  };

  void Watch(int operation, int fd, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (::epoll_ctl(epoll_, operation, fd, &event) != 0) Fail("range-server cannot watch");
  }

  int WaitMs() const {
    if (due_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(due_.top().when - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
  }

  void Accept() {
    for (;;) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) return;
      const int yes = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      auto connection = std::make_unique<Connection>();
      connection->fd = fd;
      connections_[fd] = std::move(connection);
      Watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }

  void Close(Connection& connection) {
    const int fd = connection.fd;
    connections_.erase(fd);
    ::close(fd);
  }

  // Takes what has come, and goes on with an answer that the socket had no room for.
  void Serve(Connection& connection) {
    if (connection.has_answer() && !connection.is_waiting) return Send(connection);
    std::array<char, 16384> piece{};
    for (;;) {
      const auto got = ::recv(connection.fd, piece.data(), piece.size(), 0);
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) return Close(connection);
      connection.received.append(piece.data(), static_cast<std::size_t>(got));
    }
    Begin(connection);
  }

  void Begin(Connection& connection) {
    if (connection.is_waiting || connection.has_answer()) return;
    const std::size_t end = connection.received.find("\r\n\r\n");
    if (end == std::string::npos) return;
    Answer(connection, std::string_view(connection.received).substr(0, end + 2));
    connection.received.erase(0, end + 4);
    connection.is_waiting = true;
    due_.push({Clock::now() + first_byte_after_, connection.fd, &connection});
  }

  void SendDue() {
    const auto now = Clock::now();
    while (!due_.empty() && due_.top().when <= now) {
      const Due due = due_.top();
      due_.pop();
      const auto found = connections_.find(due.fd);
      if (found == connections_.end() || found->second.get() != due.connection) continue;
      found->second->is_waiting = false;
      Send(*found->second);
    }
  }

  void Send(Connection& connection) {
    while (connection.has_answer()) {
      const bool is_head = connection.head_sent < connection.head.size();
      const ssize_t sent =
          is_head ? ::send(connection.fd, connection.head.data() + connection.head_sent,
                           connection.head.size() - connection.head_sent,
                           MSG_NOSIGNAL | (connection.left_bytes > 0 ? MSG_MORE : 0))
                  : ::sendfile(connection.fd, connection.file->fd, &connection.at,
                               connection.left_bytes);
      if (sent < 0 && errno == EAGAIN) return Watch(EPOLL_CTL_MOD, connection.fd, EPOLLOUT);
      if (sent <= 0) return Close(connection);
      if (is_head)
        connection.head_sent += static_cast<std::size_t>(sent);
      else
        connection.left_bytes -= static_cast<std::uint64_t>(sent);
    }
    Watch(EPOLL_CTL_MOD, connection.fd, EPOLLIN);
    Begin(connection);
  }

  const File* Find(std::string_view path) {
    const std::string name(path.substr(0, path.find('?')));
    if (const auto found = files_.find(name); found != files_.end()) return &found->second;
    if (name.find("..") != std::string::npos) return nullptr;
    File file;
    file.fd = ::open((folder_ + name).c_str(), O_RDONLY | O_CLOEXEC);
    struct stat facts {};
    if (file.fd < 0) return nullptr;
    if (::fstat(file.fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
      ::close(file.fd);
      return nullptr;
    }
    file.size_bytes = static_cast<std::uint64_t>(facts.st_size);
    file.version_headers =
        "ETag: \"" + std::to_string(facts.st_ino) + "-" + std::to_string(facts.st_size) +
        "\"\r\nLast-Modified: " + HttpDate(facts.st_mtim.tv_sec) + "\r\nAccept-Ranges: bytes\r\n";
    return &files_.emplace(name, std::move(file)).first->second;
  }

  // The value of a header, whatever its case.
  static std::string_view HeaderOf(std::string_view request, std::string_view name) {
    for (std::size_t at = request.find("\r\n"); at != std::string_view::npos;
         at = request.find("\r\n", at + 2)) {
      const std::string_view line = request.substr(at + 2);
      if (line.size() <= name.size() || line[name.size()] != ':' ||
          ::strncasecmp(line.data(), name.data(), name.size()) != 0)
        continue;
      std::string_view value = line.substr(name.size() + 1, line.find("\r\n") - name.size() - 1);
      value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
      return value;
    }
    return {};
  }

  void Answer(Connection& connection, std::string_view request) {
    const std::size_t method_end = request.find(' ');
    const std::size_t path_end = request.find(' ', method_end + 1);
    const std::string_view method = request.substr(0, method_end);
    connection.head_sent = 0;
    connection.left_bytes = 0;
    connection.file = path_end == std::string_view::npos
                          ? nullptr
                          : Find(request.substr(method_end + 1, path_end - method_end - 1));
    if (connection.file == nullptr || (method != "GET" && method != "HEAD")) {
      connection.head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
      return;
    }
    const File& file = *connection.file;
    std::uint64_t begin = 0;
    std::uint64_t end = file.size_bytes;
    std::string_view range = HeaderOf(request, "Range");
    const bool is_part = range.starts_with("bytes=");
    if (is_part) {
      range.remove_prefix(6);
      const char* const range_end = range.data() + range.size();
      std::uint64_t last = end - 1;
      if (range.starts_with('-')) {
        std::from_chars(range.data() + 1, range_end, begin);
        begin = end - std::min(begin, end);
      } else {
        const char* const dash = std::from_chars(range.data(), range_end, begin).ptr;
        if (dash + 1 < range_end) std::from_chars(dash + 1, range_end, last);
      }
      end = std::min(last + 1, end);
      if (begin >= end) {
        connection.head = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n";
        return;
      }
    }
    connection.head = is_part ? "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes " +
                                    std::to_string(begin) + "-" + std::to_string(end - 1) + "/" +
                                    std::to_string(file.size_bytes) + "\r\n"
                              : "HTTP/1.1 200 OK\r\n";
    connection.head += file.version_headers + "Content-Type: binary/octet-stream\r\n" +
                       "Content-Length: " + std::to_string(end - begin) + "\r\n\r\n";
    connection.at = static_cast<off_t>(begin);
    connection.left_bytes = method == "HEAD" ? 0 : end - begin;
  }

  const std::string folder_;
  const std::chrono::milliseconds first_byte_after_;
  const int epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  int listener_ = -1;
  std::map<int, std::unique_ptr<Connection>> connections_;
  std::map<std::string, File> files_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 3 && argument_count != 5) {
    std::fprintf(stderr, "usage: range-server FOLDER FIRST_BYTE_MS [ADDRESS PORT]\n");
    return 2;
  }
  ::signal(SIGPIPE,
           SIG_IGN);  // Clients that hang up end their connection alone; sendfile raises it.
  Server server(arguments[1], std::chrono::milliseconds(std::atoi(arguments[2])));
  const bool is_placed = argument_count == 5;
  server.Listen(is_placed ? arguments[3] : "127.0.0.1",
                static_cast<std::uint16_t>(is_placed ? std::atoi(arguments[4]) : 0));
  server.Run();
  return 0;
}
