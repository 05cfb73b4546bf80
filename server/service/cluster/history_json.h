#pragma once

#include <string>

#include "server/cluster/rebuild.h"

namespace ffrecord::server {

// A rebuild's report for operators, after metadata was put back to an older state.
std::string ToJson(const cluster::Rebuild::Report& report);

}  // namespace ffrecord::server
