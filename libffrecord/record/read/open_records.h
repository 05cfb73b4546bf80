#pragma once

#include <functional>
#include <memory>

#include <ffrecord/epoch_plan.h>
#include <ffrecord/record_reader.h>
#include <ffrecord/result.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// As RecordReader::HintEpoch, for the files of one source.
using PrefetchHinter = std::function<Result<std::unique_ptr<PrefetchHint>>(const EpochPlan&)>;

// A RecordReader over the files of `source`. An empty `hinter`: hints have no effect.
Result<RecordReader> OpenRecords(std::shared_ptr<const RangeReader> source,
                                 const RecordReader::Options& options, PrefetchHinter hinter = {});

// A RecordReader over what `open_source` opens. A file looks damaged if an appender truncates it
// meanwhile, to remove what a killed appender left. It is then opened again, a few times at most.
Result<RecordReader> OpenRecordsAgain(
    const std::function<Result<std::unique_ptr<RangeReader>>()>& open_source,
    const RecordReader::Options& options);

}  // namespace ffrecord
