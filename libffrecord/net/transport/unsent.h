#pragma once

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// Over a socket of TCP, lets the kernel keep at most about `size_bytes` that cannot travel yet. The
// other transports keep none.
void LimitUnsent(const Endpoint& endpoint, int size_bytes) noexcept;

}  // namespace ffrecord::net
