#include "libffrecord/record/stream/decode_columns.h"

#include <utility>

namespace ffrecord {

bool DecodeColumns(const Batch& batch, std::span<const BatchStream::Options::Decoded> wanted,
                   std::uint64_t seed, std::uint64_t epoch, std::uint64_t position,
                   const ColumnDecoder::GiveUp& give_up, std::vector<ColumnValues>& columns) {
  for (const auto& [column, decoder] : wanted) {
    ColumnDecoder::Input input{batch.data(), batch.starts_bytes(), batch.sizes_bytes(), seed, epoch,
                               position};
    Batch::Field field;
    if (column) {
      auto found = batch.field(*column);
      if (!found) return false;
      field = std::move(found).value();
      input.starts_bytes = field.starts_bytes;
      input.sizes_bytes = field.sizes_bytes;
    }
    auto values = decoder->Decode(input, give_up);
    if (!values) return false;
    columns.push_back(std::move(values).value());
  }
  return true;
}

}  // namespace ffrecord
