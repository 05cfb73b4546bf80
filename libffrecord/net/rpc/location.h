#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include <ffrecord/session_options.h>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

// As an address spells it behind transport=.
std::string_view NameOf(Transport transport);

// An ffrecord://host[:port]/name address, with ?transport=auto|shm|rdma|tcp, tls=FOLDER,
// token_file=PATH, rdma_devices=DEVICE,..., rdma_traffic_class=N, rdma_service_level=N and
// old_names=accept behind it, parted by &, if they are wanted. The name may be empty and is not
// checked.
struct Location {
  static constexpr std::string_view kScheme = "ffrecord://";
  static constexpr std::size_t kDaemonsMax = 64;  // Per address.

  Address address;
  std::string name;
  std::optional<Transport> transport;  // None: whatever the caller's options say.
  std::string token_file;              // Holds the token for the daemon; empty: none.
  std::string tls_folder;              // As TlsFiles::In wants it; empty: no TLS.
  RdmaOptions rdma;
  // If no node of a cluster can tell the newest names, those that one of them knew last will do.
  bool accepts_old_names = false;
  // Which node is to answer there; another daemon is not talked to. None: whichever does. No
  // address says it.
  std::optional<NodeIdentity> node = {};

  // Fails with kInvalidArgument, naming what a right address looks like.
  static Result<Location> Parse(std::string_view text);
  // Takes several nodes of a cluster, ffrecord://host[:port],host[:port]/name, to all of which name
  // and options apply; one or more, each once. Fails as Parse().
  static Result<std::vector<Location>> ParseAll(std::string_view text);
  std::string ToString() const;  // The name, whatever the transport.
};

}  // namespace ffrecord::net
