#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"

namespace ffrecord {

// RecordReader::ReadColumn of `records`, whose Impl is `reader`.
Result<void> ReadColumnOf(const RecordReader& records, const RecordReader::Impl& reader,
                          std::size_t column, std::uint64_t first, std::uint64_t count,
                          std::span<std::byte> destination, Patience& patience);

}  // namespace ffrecord
