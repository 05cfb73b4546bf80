#pragma once

#include <string>

#include <ffrecord/export.h>

namespace ffrecord {

// Why this build or this machine has no TLS; empty if it has. For people. Thread-safe.
FFR_EXPORT std::string WhyNoTls();

// Why s3://, http:// and https:// addresses cannot be used; empty if they can. For people. Loads
// libcurl. Thread-safe.
FFR_EXPORT std::string WhyNoObjectStores();

}  // namespace ffrecord
