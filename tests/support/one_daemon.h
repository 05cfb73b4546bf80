#pragma once

#include <memory>

#include <ffrecord/session_options.h>

#include "client/dataset/cluster.h"
#include "libffrecord/net/rpc/location.h"

namespace ffrecord::test {

// A single daemon, for code that takes the daemons of an address.
inline std::shared_ptr<client::Cluster> OneDaemon(const net::Address& address,
                                                  const SessionOptions& options = {}) {
  net::Location location;
  location.address = address;
  return client::Cluster::OfOneDaemon(location, options);
}

}  // namespace ffrecord::test
