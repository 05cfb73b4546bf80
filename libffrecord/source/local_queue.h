#pragma once

#include <memory>
#include <span>

#include "libffrecord/io/io_engine.h"
#include "libffrecord/source/local_files_impl.h"

namespace ffrecord {

// A queue with an I/O engine of its own: all groups are on one ring, where the system allows one.
Result<std::unique_ptr<RangeQueue>> MakeLocalQueue(const LocalFiles& files,
                                                   RangeReader::QueueUse use);
// The same on an engine that nobody else uses, of the files' queue depth or more.
std::unique_ptr<RangeQueue> MakeLocalQueue(const LocalFiles& files,
                                           std::unique_ptr<IoEngine> engine);

// Implements LocalFiles::ReadEach: one group on a queue for this call, on the thread's engine.
Result<void> ReadLocalFiles(const LocalFiles& files, std::span<RangeRead> ranges,
                            const RangeReader::Arrived& arrived, Patience& patience);

}  // namespace ffrecord
