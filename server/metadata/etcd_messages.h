#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// Requests to etcd's JSON gateway, and its answers: pure functions.
//
// etcd ignores fields that it does not know: requests are built here alone, and tests hold their
// bytes. It omits fields that have their default value, and sends 64-bit numbers as strings.

struct EtcdRequest {
  std::string path;
  std::string body;
};

// All keys are below /ffrecord/<cluster>/ in etcd, and have no such prefix here.
class EtcdRequests {
 public:
  explicit EtcdRequests(std::string_view cluster);

  EtcdRequest Get(std::string_view key) const;
  EtcdRequest List(const MetaStore::ListRequest& request) const;
  EtcdRequest TryCommit(const MetaStore::Commit& commit) const;
  EtcdRequest Watch(std::string_view prefix, std::uint64_t from_revision) const;
  static EtcdRequest GrantLease(std::chrono::milliseconds ttl);
  static EtcdRequest KeepLease(MetaStore::LeaseId lease);
  static EtcdRequest RevokeLease(MetaStore::LeaseId lease);
  static EtcdRequest Authenticate(std::string_view user, std::string_view password);
  // Whether one member answers; it need not ask the others.
  EtcdRequest Probe() const;

  const std::string& prefix() const { return prefix_; }

 private:
  std::string Encode(std::string_view key) const;
  std::string EncodeEnd(std::string_view prefix) const;  // Behind all keys that begin so.

  std::string prefix_;
};

// Replies, of which `prefix` is taken off the keys. Fail with kCorruption if they are none.
class EtcdReplies {
 public:
  using Ttl = std::chrono::milliseconds;

  static Result<std::optional<MetaStore::KeyValue>> Get(std::string_view body,
                                                        std::string_view prefix);
  // `revision`: that was asked for; 0: the newest.
  static Result<MetaStore::Page> List(std::string_view body, std::string_view prefix,
                                      std::uint64_t revision);
  static Result<MetaStore::Outcome> TryCommit(std::string_view body);
  static Result<MetaStore::Lease> GrantLease(std::string_view body);
  static Result<std::optional<Ttl>> KeepLease(std::string_view body);  // None: it has ended.
  static Result<std::string> Authenticate(std::string_view body);      // The token.
};

// Why etcd refused a request.
struct EtcdRefusal {
  int http_status = 0;
  std::optional<int> code;  // Code of gRPC; none: the reply was not etcd's.
  std::string message;
};
EtcdRefusal ParseEtcdRefusal(int http_status, std::string_view body);

// One line of a watch's stream.
struct EtcdWatchLine {
  bool is_created = false;
  bool is_canceled = false;
  bool is_fragment = false;            // More of the last event's revision may follow.
  std::uint64_t compact_revision = 0;  // Not 0: changes that the watch wants are compacted.
  std::string cancel_reason;
  std::optional<EtcdRefusal> refusal;  // The stream ends.
  std::vector<MetaStore::Event> events;
};
Result<EtcdWatchLine> ParseEtcdWatchLine(std::string_view line, std::string_view prefix);

}  // namespace ffrecord::server
