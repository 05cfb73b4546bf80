#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <ffrecord/result.h>

namespace ffrecord::server {

// What `text` says, "train/=500G, runs/=2T": how many bytes the names that begin with a prefix may
// have together. Sizes have K, M, G or T behind them, powers of 1,024, or nothing; no prefix means
// all names. Fails with kInvalidArgument.
Result<std::map<std::string, std::uint64_t>> ParseQuotas(std::string_view text);

}  // namespace ffrecord::server
