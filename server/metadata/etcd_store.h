#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

struct EtcdOptions {
  // Addresses of the members, each "http://host:port" or "https://host:port"; at least one.
  std::vector<std::string> endpoints = {};
  // Keys are below /ffrecord/<cluster>/ in etcd. Letters, digits, '.', '-' and '_'.
  std::string cluster = {};
  std::string user = {};  // Empty: etcd has no users.
  std::string password = {};
  std::string ca_file = {};           // The authorities to trust; empty: the system's.
  std::string certificate_file = {};  // Certificate of this client, and its key, PEM; empty: none.
  std::string key_file = {};
  // After so long without an answer from one member its call goes on to the next, and its watches
  // break. Well below the deadlines of calls, and above what an fsync may take.
  std::chrono::milliseconds try_timeout{2000};
  // How often the member of a watch is asked whether it is there.
  std::chrono::milliseconds probe_interval{2000};
};

// In an etcd cluster, through the JSON gateway of its members (3.4 or newer). Does not wait for
// etcd: it may come later. A commit whose answer is lost is never sent again: its fate is kUnknown.
// All other requests are sent to the next member. Fails with kInvalidArgument, with kIo (ENOMEM),
// with kUnavailable in a build without libcurl.
Result<std::unique_ptr<MetaStore>> OpenEtcdStore(EtcdOptions options);

}  // namespace ffrecord::server
