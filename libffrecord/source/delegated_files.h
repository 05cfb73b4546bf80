#pragma once

#include <memory>

#include <ffrecord/delegated_reads.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The files of `reads`. A forked child may use it once it has threads that serve.
std::unique_ptr<RangeReader> OpenDelegatedFiles(std::shared_ptr<DelegatedReads> reads);

}  // namespace ffrecord
