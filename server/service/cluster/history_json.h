#pragma once

#include <string>

#include "server/cluster/rebuild.h"

namespace ffrecord::server {

// What operators are told of metadata that was put back to an older state.
std::string ToJson(const cluster::Rebuild::Report& report);

}  // namespace ffrecord::server
