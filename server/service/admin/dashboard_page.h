#pragma once

#include <string_view>

namespace ffrecord::server {

// server/monitoring/dashboard.html, which the build turns into source.
extern const std::string_view kDashboardPage;

}  // namespace ffrecord::server
