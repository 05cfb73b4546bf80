#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <span>

#include "python/src/gil.h"

namespace ffrecord::python {

namespace py = pybind11;

// One for each bind_<class>.cpp; called once, by module.cpp, bases before users.
void BindArrays(py::module_& module);
void BindBatch(py::module_& module);
void BindBatchQueue(py::module_& module);
void BindBatchStream(py::module_& module);
void BindCollective(py::module_& module);
void BindChecksums(py::module_& module);
void BindCluster(py::module_& module);
void BindDataset(py::module_& module);
void BindDelegatedReads(py::module_& module);
void BindExamples(py::module_& module);
void BindFileProbe(py::module_& module);
void BindImages(py::module_& module);
void BindIoProbe(py::module_& module);
void BindPermutation(py::module_& module);
void BindPlainTensors(py::module_& module);
void BindProfile(py::module_& module);
void BindRecordReader(py::module_& module);
void BindRecordWriter(py::module_& module);
void BindRepair(py::module_& module);
void BindRuntime(py::module_& module);
void BindSchema(py::module_& module);
void BindStoredFiles(py::module_& module);
void BindVerify(py::module_& module);
void BindCheckpoint(py::module_& module);
void BindProcess(py::module_& module);

// An array over memory that `owner` keeps alive: nothing is copied and nothing can dangle.
template <class T>
py::array View(const void* first, std::size_t count, const py::handle& owner) {
  return py::array_t<T>(static_cast<py::ssize_t>(count), static_cast<const T*>(first), owner);
}

inline py::bytes Bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The result of `wait`, called without the GIL. It must touch no Python object.
template <class Wait>
auto WithoutGil(const Wait& wait) {
  const GilReleased released;
  return wait();
}

}  // namespace ffrecord::python
