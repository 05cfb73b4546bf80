#pragma once

#include <cstdint>
#include <memory>

#include <ffrecord/column_decoder.h>
#include <ffrecord/images.h>

namespace ffrecord {

// ImageDecoder::ForColumn.
std::shared_ptr<const ColumnDecoder> MakeImageColumn(const ImageDecoder& decoder,
                                                     std::uint32_t threads);

}  // namespace ffrecord
