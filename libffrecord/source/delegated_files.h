#pragma once

#include <memory>

#include <ffrecord/delegated_reads.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The files of `reads`. One reader for each DelegatedReads, which it closes when it is destroyed. A
// forked child may use it once it has threads that serve.
std::unique_ptr<RangeReader> OpenDelegatedFiles(std::shared_ptr<DelegatedReads> reads);

}  // namespace ffrecord
