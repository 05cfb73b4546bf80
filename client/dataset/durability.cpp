#include "client/dataset/durability.h"

#include <charconv>
#include <optional>
#include <string>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::client {
namespace {

std::optional<std::uint8_t> Number(std::string_view text) {
  std::uint8_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [behind, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc() || behind != end) return std::nullopt;
  return number;
}

}  // namespace

Result<Durability> ParseDurability(std::string_view text) {
  if (text.empty()) return Durability{};
  if (text.starts_with('r')) {
    const auto replicas = Number(text.substr(1));
    if (replicas && *replicas >= 1 && *replicas <= DatasetManifest::kReplicasMax)
      return Durability{*replicas, {}};
  }
  if (text.starts_with("ec:")) {
    const std::string_view code = text.substr(3);
    const std::size_t plus = code.find('+');
    if (plus != std::string_view::npos) {
      const auto data = Number(code.substr(0, plus)), parity = Number(code.substr(plus + 1));
      if (data && parity && ErasureCode{*data, *parity}.is_valid())
        return Durability{0, {*data, *parity}};
    }
  }
  return Error{ErrorCode::kInvalidArgument,
               "durability \"" + std::string(text) +
                   "\": it is r1, r2 or r3, or an erasure code of 2 to 16 data and 1 to 4 parity "
                   "extents, such as ec:4+2"};
}

}  // namespace ffrecord::client
