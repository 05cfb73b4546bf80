#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "python/src/bind.h"

namespace ffrecord::python {

// A Python callable, or None, as the `progress` of a long call that runs without the GIL. An
// exception of it or of a signal handler breaks the call off, and is raised afterwards. Outlives
// the call.
class Observer {
 public:
  explicit Observer(const py::object& progress) : progress_(progress) {}

  std::function<bool(std::uint64_t, std::uint64_t)> function() {
    return [this](std::uint64_t done_bytes, std::uint64_t total_bytes) {
      const GilAcquired acquired;
      try {
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        if (!progress_.is_none()) CallPython(progress_, done_bytes, total_bytes);
        return true;
      } catch (py::error_already_set& error) {
        raised_.emplace(error);
        return false;
      }
    };
  }

  // Requires the GIL.
  void RaiseWhatWasRaised() {
    if (raised_) throw std::move(*raised_);
  }

 private:
  const py::object& progress_;
  std::optional<py::error_already_set> raised_;
};

}  // namespace ffrecord::python
