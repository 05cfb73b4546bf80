#pragma once

#include <cstdint>

#include "python/src/bind.h"

namespace ffrecord::python {

// DLPack's description of a tensor in memory; sizes and strides count elements. The layout is that
// of DLPack 1: others fill it.
struct DlpackTensor {
  static constexpr std::int32_t kCpu = 1;
  static constexpr std::uint8_t kUint = 1;  // kDLInt is 0.
  static constexpr std::uint8_t kComplex = 5;

  struct Element {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  };

  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t dimension_count;
  Element element;
  std::int64_t* shape;
  std::int64_t* strides;  // Null if contiguous.
  std::uint64_t byte_offset;

  bool is_contiguous() const {
    if (strides == nullptr) return true;
    bool in_order = true;
    std::int64_t expected = 1;
    for (std::int32_t d = dimension_count - 1; d >= 0; --d) {
      if (shape[d] == 0) return true;
      in_order &= shape[d] == 1 || strides[d] == expected;
      expected *= shape[d];
    }
    return in_order;
  }
};

// Looks at tensors through the functions that their type offers under DLPack's name: one call of a
// C function where attributes take eight of Python's. Without such functions it sees nothing.
class TensorExchange {
 public:
  // `offered`: the type's __dlpack_c_exchange_api__, or None.
  explicit TensorExchange(const py::object& offered) {
    if (!PyCapsule_IsValid(offered.ptr(), "dlpack_exchange_api")) return;
    const auto* const functions =
        static_cast<const Functions*>(PyCapsule_GetPointer(offered.ptr(), "dlpack_exchange_api"));
    if (functions->major == 1) look_ = functions->look;
  }

  // Whether `tensor` is something that DLPack can tell of. It lends what it tells.
  bool Look(py::handle tensor, DlpackTensor& told) const {
    if (look_ == nullptr) return false;
    if (look_(tensor.ptr(), &told) == 0) return true;
    PyErr_Clear();
    return false;
  }

 private:
  // The functions of DLPack 1.3, in its order; they live as long as the process.
  struct Functions {
    std::uint32_t major;
    std::uint32_t minor;
    const Functions* previous;
    void (*allocate)();
    void (*take)();
    void (*give)();
    int (*look)(void* tensor, DlpackTensor* told);
    void (*stream)();
  };

  int (*look_)(void* tensor, DlpackTensor* told) = nullptr;
};

}  // namespace ffrecord::python
