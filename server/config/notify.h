#pragma once

#include <string_view>

namespace ffrecord::server {

// Tells the service manager how far we are, "READY=1" or "STOPPING=1", if one has asked for it
// (sd_notify(3), $NOTIFY_SOCKET). Without one nothing happens; a failure costs the message only.
void NotifyServiceManager(std::string_view state) noexcept;

}  // namespace ffrecord::server
