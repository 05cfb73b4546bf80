#pragma once

#include <pybind11/pybind11.h>

namespace ffrecord::python {

// Adds the functions that the threads of a training call at each collective; see phases.cpp.
void AddPhases(pybind11::module_& module);

}  // namespace ffrecord::python
