#pragma once

#include <ffrecord/runtime.h>

namespace ffrecord::pace {

// The marks that SetTrafficMarks() has set for this process. Thread-safe, never wait.
TrafficMark MarkOf(TrafficClass traffic) noexcept;
TrafficMark MarkOfCollectives() noexcept;

}  // namespace ffrecord::pace
