#include "libffrecord/decode/resize_kernels.h"

namespace ffrecord {

const ResizeKernels& BestResizeKernels() noexcept { return kResizePlain; }

}  // namespace ffrecord
