#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/src/bind.h"
#include "python/src/tensor_exchange.h"

namespace ffrecord::python {
namespace {

// Steals a new reference; throws what Python raised if there is none.
py::object Owned(PyObject* made) {
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// Takes dicts of tensors of a state apart, as Flattener of checkpoint/_state.py does: states have
// tensors by the 100,000, and here each costs a microsecond. Only tensors whose bytes are on the
// CPU, contiguous and as they are; all else is the caller's, in its turn.
//
// Knows torch by what it was given: types, DLPack's functions, and, for what these cannot tell,
// attributes and methods of a tensor, by their names.
class PlainTensors {
 public:
  PlainTensors(py::type leaf, py::type reference, py::object kind, py::tuple types,
               py::object strided, py::dict dtypes, const py::object& exchange)
      : leaf_(std::move(leaf)),
        reference_(std::move(reference)),
        kind_(std::move(kind)),
        types_(std::move(types)),
        strided_(std::move(strided)),
        dtypes_(std::move(dtypes)),
        exchange_(exchange) {}

  // Puts a reference for each tensor of `items` into `tree` and a leaf at the end of `leaves`;
  // what `other` makes of key and value for everything else; all in the order of `items`.
  void Take(const py::dict& items, const py::str& prefix, bool is_own, const py::list& leaves,
            const py::dict& tree, const py::function& other) {
    // Copies, should `other` change the dict. Lists of both, for a list of pairs makes the pairs.
    const py::object keys = Owned(PyDict_Keys(items.ptr()));
    const py::object values = Owned(PyDict_Values(items.ptr()));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.ptr()); ++i) {
      const py::handle key = PyList_GET_ITEM(keys.ptr(), i);
      const py::handle item = PyList_GET_ITEM(values.ptr(), i);
      py::object made =
          IsPlainName(key) ? TakeTensor(prefix, key, item, is_own, leaves) : py::object();
      if (!made) made = other(key, item);
      if (PyDict_SetItem(tree.ptr(), key.ptr(), made.ptr()) != 0) throw py::error_already_set();
    }
  }

 private:
  // A name that is a part of a path as it is.
  static bool IsPlainName(py::handle key) {
    if (!PyUnicode_CheckExact(key.ptr())) return false;
    const Py_ssize_t size = PyUnicode_GET_LENGTH(key.ptr());
    return size > 0 && PyUnicode_READ_CHAR(key.ptr(), 0) != '#' &&
           PyUnicode_FindChar(key.ptr(), '~', 0, size, 1) == -1 &&
           PyUnicode_FindChar(key.ptr(), '/', 0, size, 1) == -1;
  }

  static py::object Get(py::handle tensor, const py::str& name) {
    return Owned(PyObject_GetAttr(tensor.ptr(), name.ptr()));
  }
  static bool Says(py::handle tensor, const py::str& method, PyObject* answer) {
    return Owned(PyObject_CallMethodNoArgs(tensor.ptr(), method.ptr())).ptr() == answer;
  }

  // A tensor in plain memory, but for its sign, which torch may have put off.
  struct Seen {
    PyObject* element;  // Name and size of the element type, of dtypes_.
    std::span<const std::int64_t> shape;
    std::uintptr_t address;
  };

  // Complex elements may be conjugated yet, which DLPack does not say.
  std::optional<Seen> LookThroughDlpack(py::handle item) {
    DlpackTensor told;
    if (!exchange_.Look(item, told) || told.device_type != DlpackTensor::kCpu ||
        told.element.code == DlpackTensor::kComplex || !told.is_contiguous())
      return std::nullopt;
    const std::uint32_t code = told.element.code + (std::uint32_t{told.element.bits} << 8) +
                               (std::uint32_t{told.element.lanes} << 16);
    PyObject* element = nullptr;
    if (told.element.bits == 8 && told.element.code <= DlpackTensor::kUint) {
      element = ElementOf(item);  // torch calls its integers of fewer bits so as well.
    } else {
      const auto [known, is_new] = elements_.try_emplace(code, nullptr);
      if (is_new) known->second = ElementOf(item);
      element = known->second;
    }
    if (element == nullptr) return std::nullopt;
    return Seen{element,
                {told.shape, static_cast<std::size_t>(told.dimension_count)},
                reinterpret_cast<std::uintptr_t>(told.data) + told.byte_offset};
  }

  std::optional<Seen> LookAtAttributes(py::handle item) {
    PyObject* const element = ElementOf(item);
    if (element == nullptr || Get(item, names_.is_cpu).ptr() != Py_True ||
        Get(item, names_.layout).ptr() != strided_.ptr() ||
        Get(item, names_.is_nested).ptr() != Py_False ||
        !Says(item, names_.is_contiguous, Py_True) || !Says(item, names_.is_conj, Py_False))
      return std::nullopt;
    shape_ = Get(item, names_.shape).cast<std::vector<std::int64_t>>();
    const py::object address = Owned(PyObject_CallMethodNoArgs(item.ptr(), names_.data_ptr.ptr()));
    return Seen{element, shape_, address.cast<std::uintptr_t>()};
  }

  // Null if it is none of dtypes_.
  PyObject* ElementOf(py::handle item) const {
    PyObject* const element = PyDict_GetItemWithError(dtypes_.ptr(), Get(item, names_.dtype).ptr());
    if (element == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return element;
  }

  // Null if it is no plain tensor.
  py::object TakeTensor(const py::str& prefix, py::handle key, py::handle item, bool is_own,
                        const py::list& leaves) {
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(item.ptr()));
    bool is_known = false;
    for (const py::handle known : types_) is_known |= known.ptr() == type;
    if (!is_known) return {};
    auto seen = LookThroughDlpack(item);
    if (!seen) seen = LookAtAttributes(item);
    if (!seen || !Says(item, names_.is_neg, Py_False)) return {};
    PyObject* const element = seen->element;
    const py::object form = FormOf(seen->shape);
    // Its storage was given back; the caller says so of it.
    if (seen->address == 0 && PyObject_IsTrue(PyTuple_GET_ITEM(form.ptr(), 2)) == 1) return {};
    const py::object path = PyUnicode_GET_LENGTH(prefix.ptr()) == 0
                                ? py::reinterpret_borrow<py::object>(key)
                                : Owned(PyUnicode_Concat(prefix.ptr(), key.ptr()));
    PyObject* const shape = PyTuple_GET_ITEM(form.ptr(), 0);
    PyObject* const zeros = PyTuple_GET_ITEM(form.ptr(), 1);
    const py::object address = Owned(PyLong_FromUnsignedLongLong(seen->address));
    const py::object size =
        Owned(PyNumber_Multiply(PyTuple_GET_ITEM(form.ptr(), 2), PyTuple_GET_ITEM(element, 1)));
    const std::array<PyObject*, 11> fields{path.ptr(), PyTuple_GET_ITEM(element, 0),
                                           shape,      zeros,
                                           shape,      address.ptr(),
                                           size.ptr(), Py_False,
                                           item.ptr(), is_own ? Py_True : Py_False,
                                           zero_.ptr()};
    // A named tuple is a tuple of another type: made as tuple.__new__ makes one.
    auto* const leaf_type = reinterpret_cast<PyTypeObject*>(leaf_.ptr());
    const py::object leaf =
        Owned(leaf_type->tp_alloc(leaf_type, static_cast<Py_ssize_t>(fields.size())));
    for (std::size_t i = 0; i < fields.size(); ++i) {
      Py_INCREF(fields[i]);
      PyTuple_SET_ITEM(leaf.ptr(), static_cast<Py_ssize_t>(i), fields[i]);
    }
    if (PyList_Append(leaves.ptr(), leaf.ptr()) != 0) throw py::error_already_set();
    return ReferenceTo(path);
  }

  // As its constructor makes one, without a call of Python's.
  py::object ReferenceTo(const py::object& path) const {
    auto* const type = reinterpret_cast<PyTypeObject*>(reference_.ptr());
    py::object made = Owned(type->tp_alloc(type, 0));
    if (PyObject_SetAttr(made.ptr(), names_.kind.ptr(), kind_.ptr()) != 0 ||
        PyObject_SetAttr(made.ptr(), names_.key.ptr(), path.ptr()) != 0)
      throw py::error_already_set();
    return made;
  }

  // Shape as a tuple, as many zeros, and the product; tensors of a state have few shapes.
  py::object FormOf(std::span<const std::int64_t> shape) {
    key_.assign(shape.begin(), shape.end());
    const auto known = forms_.find(key_);
    if (known != forms_.end()) return known->second;
    if (forms_.size() >= kFormsMax) forms_.clear();
    py::tuple plain(shape.size());
    py::tuple zeros(shape.size());
    py::object count = py::int_(1);
    for (std::size_t i = 0; i < shape.size(); ++i) {
      plain[i] = py::int_(shape[i]);
      zeros[i] = zero_;
      count = Owned(PyNumber_Multiply(count.ptr(), PyTuple_GET_ITEM(plain.ptr(), i)));
    }
    return forms_.emplace(key_, py::make_tuple(plain, zeros, count)).first->second;
  }

  static constexpr std::size_t kFormsMax = 4096;

  // Interned, so that finding them compares pointers.
  struct Names {
    static py::str Interned(const char* name) {
      return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name));
    }
    py::str dtype = Interned("dtype");
    py::str is_cpu = Interned("is_cpu");
    py::str layout = Interned("layout");
    py::str is_nested = Interned("is_nested");
    py::str shape = Interned("shape");
    py::str is_contiguous = Interned("is_contiguous");
    py::str is_conj = Interned("is_conj");
    py::str is_neg = Interned("is_neg");
    py::str data_ptr = Interned("data_ptr");
    py::str kind = Interned("kind");
    py::str key = Interned("key");
  };

  py::type leaf_;
  py::type reference_;
  py::object kind_;
  py::tuple types_;
  py::object strided_;
  py::dict dtypes_;  // torch's element type -> (name, size in bytes).
  TensorExchange exchange_;
  std::map<std::uint32_t, PyObject*> elements_;  // By DLPack's name of them; null: not of dtypes_.
  std::map<std::vector<std::int64_t>, py::object> forms_;
  std::vector<std::int64_t> key_;    // Key of the form that is looked for.
  std::vector<std::int64_t> shape_;  // Shape of the tensor whose attributes were looked at.
  py::int_ zero_{0};
  Names names_;
};

template <class T>
void AppendNumber(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff));
}

// Names and references of a dict of nothing but tensors under names, as _values.py encodes them;
// None for any other dict. Tags are those of format.md, "Values".
py::object EncodeReferences(const py::dict& items, const py::type& reference) {
  constexpr std::uint8_t kText = 5;
  constexpr std::uint8_t kTensor = 10;
  constexpr Py_ssize_t kSizeMax = 4096;
  const py::str kind_name = "kind";
  const py::str key_name = "key";
  std::string out;
  PyObject* name = nullptr;
  PyObject* item = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(items.ptr(), &at, &name, &item) != 0;) {
    if (!PyUnicode_CheckExact(name) ||
        reinterpret_cast<PyObject*>(Py_TYPE(item)) != reference.ptr())
      return py::none();
    const py::object key = Owned(PyObject_GetAttr(item, key_name.ptr()));
    const py::object kind = Owned(PyObject_GetAttr(item, kind_name.ptr()));
    Py_ssize_t name_size = 0;
    Py_ssize_t key_size = 0;
    const char* const name_text = PyUnicode_AsUTF8AndSize(name, &name_size);
    if (name_text == nullptr) throw py::error_already_set();
    const char* const key_text = PyUnicode_AsUTF8AndSize(key.ptr(), &key_size);
    if (key_text == nullptr) throw py::error_already_set();
    if (name_size > kSizeMax || key_size > kSizeMax) return py::none();
    AppendNumber(out, kText);
    AppendNumber(out, static_cast<std::uint32_t>(name_size));
    out.append(name_text, static_cast<std::size_t>(name_size));
    AppendNumber(out, kTensor);
    AppendNumber(out, kind.cast<std::uint8_t>());
    AppendNumber(out, static_cast<std::uint16_t>(key_size));
    out.append(key_text, static_cast<std::size_t>(key_size));
  }
  return py::bytes(out);
}

}  // namespace

void BindPlainTensors(py::module_& module) {
  py::class_<PlainTensors>(module, "PlainTensors", py::is_final())
      .def(py::init<py::type, py::type, py::object, py::tuple, py::object, py::dict,
                    const py::object&>(),
           py::arg("leaf"), py::arg("reference"), py::arg("kind"), py::arg("types"),
           py::arg("strided"), py::arg("dtypes"), py::arg("exchange"))
      .def("take", &PlainTensors::Take, py::arg("items"), py::arg("prefix"), py::arg("is_own"),
           py::arg("leaves"), py::arg("tree"), py::arg("other"));
  module.def("encode_references", &EncodeReferences, py::arg("items"), py::arg("reference"));
}

}  // namespace ffrecord::python
