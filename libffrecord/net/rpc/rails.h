#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

// Which RDMA device a connection of this process to a daemon takes: each in turn, so that
// connections are spread over all. One that did not work is left alone for half a minute, and for
// twice as long each further time.
//
// Thread-safe. Not for a forked child.
class Rails {
 public:
  Rails();

  // The rails to try for one connection, in this order: not those that are left alone, or with
  // `all` after the others. Opens what `options` name when it is first called, and again until one
  // can be used. Fails as RdmaRails::Open; with kUnavailable if all are left alone.
  Result<std::vector<std::size_t>> Order(const RdmaOptions& options, bool all);
  // One of what Order() said.
  RdmaLinks& links(std::size_t rail) { return (*rails_)[rail]; }

  void Worked(std::size_t rail);
  void Failed(std::size_t rail);
  // Whether one may be tried again that was left alone; said once.
  bool HasReturned();

 private:
  struct Pause {
    std::optional<Deadline> end;
    std::chrono::milliseconds length{};  // Length of the last one.
  };

  std::mutex mutex_;
  std::unique_ptr<RdmaRails> rails_;  // Guarded by mutex_ until it is there.
  std::vector<Pause> pauses_;
  std::size_t next_;
};

}  // namespace ffrecord::net
