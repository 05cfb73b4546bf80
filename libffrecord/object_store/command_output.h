#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include <ffrecord/result.h>

namespace ffrecord::object_store {

// Runs a command line with /bin/sh and returns what it writes to its standard output. Its standard
// error is that of this process. Messages do not contain the output, which may be secret.
//
// Fails with kDenied if the command cannot be started, does not end with status 0, or writes more
// than `size_max` bytes, and with kUnavailable if it takes longer than `timeout`: then it is killed
// with the processes of its group.
Result<std::string> OutputOfCommand(const std::string& command, std::chrono::milliseconds timeout,
                                    std::size_t size_max);

}  // namespace ffrecord::object_store
