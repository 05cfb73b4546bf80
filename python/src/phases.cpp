#include <ffrecord/runtime.h>
#include <semaphore.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "python/src/bind.h"
#include "python/src/phases.h"

// The threads of a training call these at each collective: C functions of Python's own kind. They
// allocate nothing and wait for nobody, and the dispatch of pybind11 would take several times as
// long as they do.

namespace ffrecord::python {
namespace {

// --- Signals -------------------------------------------------------------------------------------

constexpr std::array<const char*, kPhaseKindCount> kKinds{"collective", "point_to_point", "other"};
std::array<PyObject*, kPhaseKindCount> g_kinds{};  // The same as Python has them in programs.

// None, with an exception, if there is no such kind.
std::optional<PhaseKind> KindOf(PyObject* name) {
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
    if (name == g_kinds[kind]) return static_cast<PhaseKind>(kind);
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "the kind of a phase is a str, not %R", name);
    return std::nullopt;
  }
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
    if (PyUnicode_CompareWithASCIIString(name, kKinds[kind]) == 0)
      return static_cast<PhaseKind>(kind);
  PyErr_Format(PyExc_ValueError, "no phase kind %R: take 'collective', 'point_to_point' or 'other'",
               name);
  return std::nullopt;
}

// The arguments of a call by position or by name, in the order of `names`; null where there is
// none. False, with an exception, for others, or if the first is missing.
template <std::size_t kCount>
bool Read(const std::array<const char*, kCount>& names, PyObject* const* arguments,
          Py_ssize_t count, PyObject* keywords, std::array<PyObject*, kCount>& found) {
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t i = 0; i < count + named; ++i) {
    std::size_t place = static_cast<std::size_t>(i);
    if (i >= count)
      for (place = 0; place < kCount; ++place)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, i - count), names[place]) ==
            0)
          break;
    if (place >= kCount || found[place] != nullptr) {
      PyErr_SetString(PyExc_TypeError, "an argument that it does not have, or one that is twice");
      return false;
    }
    found[place] = arguments[i];
  }
  if (found[0] != nullptr) return true;
  PyErr_Format(PyExc_TypeError, "the argument '%s' is missing", names[0]);
  return false;
}

PyObject* PhaseBegin(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count,
                     PyObject* keywords) noexcept {
  std::array<PyObject*, 2> found{};
  if (!Read({"kind", "size_bytes"}, arguments, count, keywords, found)) return nullptr;
  const auto kind = KindOf(found[0]);
  if (!kind) return nullptr;
  const std::uint64_t size_bytes = found[1] == nullptr ? 0 : PyLong_AsUnsignedLongLong(found[1]);
  if (size_bytes == static_cast<std::uint64_t>(-1) && PyErr_Occurred() != nullptr) return nullptr;
  BeginPhase(*kind, size_bytes);
  Py_RETURN_NONE;
}

PyObject* PhaseEnd(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count,
                   PyObject* keywords) noexcept {
  std::array<PyObject*, 1> found{};
  if (!Read({"kind"}, arguments, count, keywords, found)) return nullptr;
  const auto kind = KindOf(found[0]);
  if (!kind) return nullptr;
  EndPhase(*kind);
  Py_RETURN_NONE;
}

PyObject* StepEnd(PyObject* /*module*/, PyObject* /*none*/) noexcept {
  EndStep();
  Py_RETURN_NONE;
}

// --- Operations on their way to the thread that ends their phases --------------------------------

// For a while after the last one the taking thread looks on its own: an operation seldom comes
// alone, and to wake the thread would cost the training more than all the rest.
constexpr timespec kBetweenLooks{.tv_sec = 0, .tv_nsec = 250'000};
constexpr int kLooks = 200;  // 50 ms.
// How often a thread tries to be the one that adds. Python's lock lets only one, where there is
// one.
constexpr int kTries = 20;

// Objects from any thread to one. Add() never waits. Pop() and Await() are for one thread.
class Handover {
 public:
  static constexpr std::uint64_t kSlotCount = 4096;
  struct Entry {
    PyObject* operation = nullptr;
    PyObject* kind = nullptr;
    bool is_gloo = false;
  };

  Handover() { sem_init(&added_, 0, 0); }
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;
  ~Handover() {
    while (const auto entry = Pop()) Drop(*entry);
    sem_destroy(&added_);
  }

  // False if it is full. Takes references.
  bool Add(const Entry& entry) noexcept {
    int tries = 0;
    while (is_adding_.test_and_set(std::memory_order_acquire))
      if (++tries == kTries) return false;
    const std::uint64_t place = end_.load(std::memory_order_relaxed);
    const bool has_room = place - begin_.load(std::memory_order_acquire) < kSlotCount;
    if (has_room) {
      Py_INCREF(entry.operation);
      Py_INCREF(entry.kind);
      slots_[place % kSlotCount] = entry;
      end_.store(place + 1);
    }
    is_adding_.clear(std::memory_order_release);
    if (has_room && is_asleep_.load()) sem_post(&added_);
    return has_room;
  }

  // The references are the caller's.
  std::optional<Entry> Pop() noexcept {
    const std::uint64_t place = begin_.load(std::memory_order_relaxed);
    if (place == end_.load(std::memory_order_acquire)) return std::nullopt;
    const Entry entry = slots_[place % kSlotCount];
    begin_.store(place + 1, std::memory_order_release);
    return entry;
  }

  bool is_empty() const noexcept { return begin_.load() == end_.load(); }

  // Until there is one. Without the GIL.
  void Await() noexcept {
    for (int looks = 0; is_empty() && looks < kLooks; ++looks) ::nanosleep(&kBetweenLooks, nullptr);
    is_asleep_ = true;
    while (is_empty())
      if (sem_wait(&added_) != 0 && errno != EINTR) break;
    is_asleep_ = false;
  }

  static void Drop(const Entry& entry) noexcept {
    Py_DECREF(entry.operation);
    Py_DECREF(entry.kind);
  }

 private:
  std::array<Entry, kSlotCount> slots_{};
  std::atomic<std::uint64_t> begin_{0}, end_{0};
  std::atomic_flag is_adding_;
  std::atomic<bool> is_asleep_{false};
  sem_t added_{};
};

struct HandoverObject {
  PyObject base;
  Handover* handover;
};

Handover& Of(PyObject* self) { return *reinterpret_cast<HandoverObject*>(self)->handover; }

PyObject* New(PyTypeObject* type, PyObject* /*arguments*/, PyObject* /*keywords*/) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto* const object = reinterpret_cast<HandoverObject*>(self);
  object->handover = new (std::nothrow) Handover;
  if (object->handover != nullptr) return self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

void Delete(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<HandoverObject*>(self)->handover;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* Add(PyObject* self, PyObject* const* arguments, Py_ssize_t count) noexcept {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "add() takes an operation, a kind, and whether it is Gloo's");
    return nullptr;
  }
  const int is_gloo = PyObject_IsTrue(arguments[2]);
  if (is_gloo < 0) return nullptr;
  return PyBool_FromLong(Of(self).Add({arguments[0], arguments[1], is_gloo == 1}) ? 1 : 0);
}

PyObject* Take(PyObject* self, PyObject* /*none*/) {
  for (;;) {
    if (const auto entry = Of(self).Pop())
      return Py_BuildValue("(NNO)", entry->operation, entry->kind,
                           entry->is_gloo ? Py_True : Py_False);
    WithoutGil([&] { return Of(self).Await(), true; });
  }
}

PyObject* IsEmpty(PyObject* self, PyObject* /*none*/) noexcept {
  return PyBool_FromLong(Of(self).is_empty() ? 1 : 0);
}

template <class Function>
PyCFunction Plain(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_handover_methods[] = {{"add", Plain(&Add), METH_FASTCALL, nullptr},
                                    {"take", &Take, METH_NOARGS, nullptr},
                                    {"is_empty", &IsEmpty, METH_NOARGS, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
PyType_Slot g_handover_slots[] = {{Py_tp_new, reinterpret_cast<void*>(&New)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(&Delete)},
                                  {Py_tp_methods, g_handover_methods},
                                  {0, nullptr}};
PyType_Spec g_handover_spec{"ffrecord._ffrecord.PhaseHandover", sizeof(HandoverObject), 0,
                            Py_TPFLAGS_DEFAULT, g_handover_slots};

PyMethodDef g_functions[] = {
    {"phase_begin", Plain(&PhaseBegin), METH_FASTCALL | METH_KEYWORDS,
     "phase_begin(kind, size_bytes=0)\n--\n\n"},
    {"phase_end", Plain(&PhaseEnd), METH_FASTCALL | METH_KEYWORDS, "phase_end(kind)\n--\n\n"},
    {"step_end", &StepEnd, METH_NOARGS, "step_end()\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void AddPhases(py::module_& module) {
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    g_kinds[kind] = PyUnicode_InternFromString(kKinds[kind]);
    if (g_kinds[kind] == nullptr) throw py::error_already_set();
  }
  if (PyModule_AddFunctions(module.ptr(), g_functions) != 0) throw py::error_already_set();
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&g_handover_spec));
  if (!type) throw py::error_already_set();
  module.attr("PhaseHandover") = type;
}

}  // namespace ffrecord::python
