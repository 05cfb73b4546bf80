#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// Bodies of the frames of prefetch hints; protocol.md, "Plans". Encode and Decode as in
// messages.h.

// The order in which one rank is going to read records of a dataset: a hint, which changes when
// bytes are read from the disk and never which bytes a batch gets.
//
// Positions [first, end) of the order go in steps of `step_size` records (the last one may have
// fewer), of a step of n records rank r of w reads positions [r * n / w, (r + 1) * n / w). Behind
// the epoch's last position its first one follows.
struct PlanSet {
  static constexpr std::uint32_t kOrder1 = 1;  // format.md, "Order 1".

  std::uint32_t plan_id = 1;  // Not 0; the connection's own. A plan of that id is replaced.
  std::uint32_t order = kOrder1;
  std::uint64_t revision = 0;  // Revision of the name.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t end = 0;             // At least `first`.
  std::uint32_t block = 0;           // With blocks: records of one, and blocks of a window.
  std::uint32_t window = 0;          // Both 0: all records are permuted.
  std::uint32_t step_size = 1;       // Records of one step over all ranks, at least one for each.
  std::uint32_t world_size = 1;      //
  std::uint32_t rank = 0;            // Below world_size.
  std::string name = std::string();  // As CheckName wants it.

  bool operator==(const PlanSet&) const = default;
  std::vector<std::byte> Encode() const;
  // Fails with kInvalidArgument too, for a name that cannot be one.
  static Result<PlanSet> Decode(std::span<const std::byte> body);
};

// Nothing more of that plan will be read. No reply; a plan that is not there is ignored.
struct PlanCancel {
  std::uint32_t plan_id = 0;

  bool operator==(const PlanCancel&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<PlanCancel> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::net
