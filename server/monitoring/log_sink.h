// Where the daemon's log lines go.
#pragma once

#include <spdlog/sinks/sink.h>

#include <memory>

namespace ffrecord::server {

// Writes log lines to a descriptor, and never waits long for its reader.
//
// A pipe or socket whose reader has stopped (a paused terminal, a supervisor that does not read)
// fills up, and a plain write(2) to it blocks the thread that logs; in the daemon that is a thread
// that serves requests. This sink waits at most 100 ms for room, and only for the first line that
// finds none. It drops that line and the following ones until there is room again; then it writes
// `event=log_lines_dropped count=N` before the next line. Lines keep their order and are whole.
//
// The descriptor stays the caller's and is not closed. Thread-safe.
std::shared_ptr<spdlog::sinks::sink> MakeLogSink(int descriptor);

}  // namespace ffrecord::server
