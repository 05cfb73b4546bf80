#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// The bound of any daemon: a process that answers requests with bytes that it has, over loopback.
//
// Requests and answers are as large as those of a batch of records. It leaves out: the disk and the
// page cache (the answer is one piece of memory, the same for all), what a request asks for, the
// headers of an answer, checksums at either end, limits, metrics, and a queue for each tenant.
namespace ffrecord::bench {

class BareServer {
 public:
  // Serves that many connections; ends when all of them have.
  BareServer(std::size_t connections, std::size_t batch, std::size_t record_bytes);
  ~BareServer();
  BareServer(const BareServer&) = delete;
  BareServer& operator=(const BareServer&) = delete;

  const sockaddr_in& address() const { return address_; }

 private:
  sockaddr_in address_{};
  int child_ = -1;
};

class BareClient {
 public:
  BareClient(const BareServer& server, std::size_t batch, std::size_t record_bytes);
  ~BareClient();
  BareClient(const BareClient&) = delete;
  BareClient& operator=(const BareClient&) = delete;

  // Asks for a batch and receives it; returns its size.
  std::uint64_t MakeOne();

 private:
  int socket_;
  std::vector<char> request_;
  std::vector<char> answer_;
};

}  // namespace ffrecord::bench
