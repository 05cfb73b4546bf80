#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libffrecord/net/http/http_transfers.h"
#include "server/metadata/etcd_calls.h"
#include "server/metadata/etcd_messages.h"
#include "server/metadata/etcd_stream.h"

namespace ffrecord::server {

// The watches of an etcd cluster: each is a response that goes on, from one member. A member that
// falls silent breaks its watches: it is probed. Thread-bound; never blocks. All that it is made of
// outlives it.
class EtcdWatches {
 public:
  using TimePoint = MetaStore::TimePoint;
  using WatchId = MetaStore::WatchId;
  // Told in Tick() and Take(). After kCompacted and kBroken the watch is gone.
  using OnNews = std::function<void(WatchId, MetaStore::News)>;

  EtcdWatches(const EtcdOptions& options, const EtcdRequests& requests, EtcdCalls& calls,
              net::HttpTransfers& transfers, OnNews on_news);

  void Start(WatchId id, std::string prefix, std::uint64_t from_revision);
  void Stop(WatchId id);
  // Begins, probes, breaks, and tells what has come.
  void Tick(TimePoint now);
  TimePoint next() const;
  // Takes a transfer that has ended. False: it is of nobody here.
  bool Take(const net::HttpTransfer& transfer);
  void Close();

 private:
  struct Watch {
    std::string prefix;
    std::uint64_t from_revision = 0;
    std::size_t member = 0;
    TimePoint began;
    bool is_streaming = false;
    bool had_token_refused = false;
    EtcdRequest request;
    net::HttpTransfer transfer;
    std::string bytes;
    std::unique_ptr<EtcdStream> stream;
  };

  void Connect(WatchId id, Watch& watch, TimePoint now);
  void ReadStream(WatchId id, Watch& watch);
  void Break(WatchId id, Error why);
  void BreakAllOf(std::size_t member, const Error& why);
  void Probe(TimePoint now);
  std::vector<WatchId> Ids() const;

  const EtcdOptions& options_;
  const EtcdRequests& requests_;
  EtcdCalls& calls_;
  net::HttpTransfers& transfers_;
  const OnNews on_news_;
  std::map<WatchId, std::unique_ptr<Watch>> watches_;
  TimePoint next_probe_{};
};

}  // namespace ffrecord::server
