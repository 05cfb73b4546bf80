#pragma once

#include <filesystem>
#include <string>

#include <ffrecord/result.h>

#include "server/config/settings.h"

namespace ffrecord::server {

// Changes `settings` as the TOML file at `path` says: keys of the table, nothing else. A message
// names the file, the line, the key and, if it is unknown, the nearest one that is known.
//
// Fails with kInvalidArgument for what the file says, kNotFound, kDenied or kIo if it cannot be
// read; `settings` are then as they were.
Result<void> ReadSettingsFile(const std::filesystem::path& path, Settings& settings);

// A file that makes these settings, with the meaning of each key behind it.
std::string PrintSettings(const Settings& settings);

}  // namespace ffrecord::server
