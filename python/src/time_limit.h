#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include <ffrecord/client/dataset.h>

#include "python/src/bind.h"
#include "python/src/errors.h"

// Time limits that come from Python, in seconds. A binding takes one as a parameter of one of these
// types, never as a number: it is then checked before the binding runs, and in one place.

namespace ffrecord::python {

// The limit of a call to a daemon or store: above 0, at most a day.
struct TimeLimit {
  std::chrono::milliseconds value;
};

// The limit of a wait that may end at once: from 0 on. Times that no clock can hold mean a day,
// which is as good as for ever.
struct WaitLimit {
  std::chrono::milliseconds value;
};

inline constexpr double kTimeLimitMaxS = 86'400.0;

inline std::chrono::milliseconds MillisecondsOf(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000.0)));
}

inline SessionOptions SessionOptionsOf(TimeLimit limit) { return {.timeout = limit.value}; }

}  // namespace ffrecord::python

namespace pybind11::detail {

// Raise ValueError for a number out of range, and TypeError, as for any parameter, for no number.
template <>
struct type_caster<ffrecord::python::TimeLimit> {
  PYBIND11_TYPE_CASTER(ffrecord::python::TimeLimit, const_name("float"));

  bool load(handle source, bool convert) {
    make_caster<double> number;
    if (!number.load(source, convert)) return false;
    const double seconds = cast_op<double>(number);
    if (!(seconds > 0.0 && seconds <= ffrecord::python::kTimeLimitMaxS))
      ffrecord::python::Raise({ffrecord::ErrorCode::kInvalidArgument,
                               "timeout_s is " + std::string(repr(source)) +
                                   "; it must be above 0 and at most 86400 seconds"});
    value = {ffrecord::python::MillisecondsOf(seconds)};
    return true;
  }
};

template <>
struct type_caster<ffrecord::python::WaitLimit> {
  PYBIND11_TYPE_CASTER(ffrecord::python::WaitLimit, const_name("float"));

  bool load(handle source, bool convert) {
    make_caster<double> number;
    if (!number.load(source, convert)) return false;
    const double seconds = cast_op<double>(number);
    if (!(seconds >= 0.0))
      ffrecord::python::Raise({ffrecord::ErrorCode::kInvalidArgument,
                               "timeout_s is " + std::string(repr(source)) +
                                   "; it must be a number of seconds from 0 on"});
    value = {ffrecord::python::MillisecondsOf(std::min(seconds, ffrecord::python::kTimeLimitMaxS))};
    return true;
  }
};

}  // namespace pybind11::detail
