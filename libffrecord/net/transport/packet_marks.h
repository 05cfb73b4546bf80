#pragma once

#include <ffrecord/runtime.h>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// Marks packets that leave over a connection from now on, if it is one of TCP or TLS. A mark that
// the kernel refuses changes no transfer.
void MarkPackets(const Endpoint& endpoint, const TrafficMark& mark) noexcept;

}  // namespace ffrecord::net
