#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/group_messages.h"
#include "client/collective/links.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

// New connections in the place of streams that were lost: makes those to ranks that this one sends
// to, in a thread of its own, for connecting blocks; takes those of ranks that send to this one.
//
// Thread-bound but for that thread, which rings `wake_fd` when it has made one. The destructor
// waits for it, a second at most.
class Replacements {
 public:
  // `hello` is that of the group and of this rank; `addresses` are "host:port" of all ranks.
  // Borrows `wake_fd`.
  Replacements(const GroupHello& hello, std::vector<std::string> addresses,
               net::TcpListener listener, int wake_fd);
  Replacements(const Replacements&) = delete;
  Replacements& operator=(const Replacements&) = delete;
  ~Replacements();

  // Connects to that rank, and tries again, ever less often, until it has answered.
  void Ask(std::uint32_t rank, std::uint16_t stream);
  // Connections that were asked for and have been made since the last time.
  std::vector<Link> TakeMade();

  // Connections of ranks of the group, proven by the secret, that have come since the last time.
  // Others are shut out.
  std::vector<Link> TakeCome();
  // Descriptors to wait for before there may be more.
  std::vector<int> fds() const;

 private:
  struct Request {
    std::uint32_t rank;
    std::uint16_t stream;
    net::Clock::duration wait;
    net::Clock::time_point due;
  };
  void Run();
  Result<Link> Connect(const Request& request) const;
  std::optional<Link> Welcome(std::unique_ptr<net::Endpoint>& candidate) const;
  bool IsOfGroup(const GroupHello& theirs) const;

  const GroupHello hello_;
  const std::vector<std::string> addresses_;
  net::TcpListener listener_;
  const int wake_fd_;
  net::Clock::time_point accepts_at_{};
  std::vector<std::unique_ptr<net::Endpoint>> candidates_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::deque<Request> requests_;
  std::vector<Link> made_;
  std::thread thread_;  // From the first request on.
};

}  // namespace ffrecord::client
