#pragma once

#include <cstdint>
#include <string>

#include <ffrecord/result.h>

namespace ffrecord::server {

// The ways in which a request changes a name.
enum class NameChange : std::uint8_t { kCreate, kReplace, kSwap, kRemove };

// Whether a name whose record has `revision` (0: there is none) is as the change wants it. kSwap,
// and kRemove if it is not 0: at `expected_revision`. Fails with kConflict, with kNotFound if there
// is nothing to remove.
Result<void> CheckNameChange(NameChange change, const std::string& name, std::uint64_t revision,
                             std::uint64_t expected_revision);

}  // namespace ffrecord::server
