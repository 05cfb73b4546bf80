#include "capi/handles.h"

#include <cerrno>
#include <new>

namespace ffrecord::capi {
namespace {

// The values are part of the interface.
static_assert(FFR_OK == static_cast<int>(ErrorCode::kOk));
static_assert(FFR_INVALID_ARGUMENT == static_cast<int>(ErrorCode::kInvalidArgument));
static_assert(FFR_NOT_FOUND == static_cast<int>(ErrorCode::kNotFound));
static_assert(FFR_CORRUPTION == static_cast<int>(ErrorCode::kCorruption));
static_assert(FFR_IO == static_cast<int>(ErrorCode::kIo));
static_assert(FFR_UNAVAILABLE == static_cast<int>(ErrorCode::kUnavailable));
static_assert(FFR_DEADLINE_EXCEEDED == static_cast<int>(ErrorCode::kDeadlineExceeded));
static_assert(FFR_CONFLICT == static_cast<int>(ErrorCode::kConflict));
static_assert(FFR_DENIED == static_cast<int>(ErrorCode::kDenied));
static_assert(FFR_OUT_OF_RANGE == static_cast<int>(ErrorCode::kOutOfRange));

// Made before it is needed: the text is short enough to lie in the object itself.
ffr_error g_out_of_memory{{ErrorCode::kIo, "out of memory", ENOMEM}};

}  // namespace

ffr_error* NewError(Error error) noexcept {
  auto* made = new (std::nothrow) ffr_error{std::move(error)};
  return made != nullptr ? made : &g_out_of_memory;
}

ffr_code Report(Error error, ffr_error** destination) noexcept {
  const auto code = static_cast<ffr_code>(error.code);
  if (destination != nullptr) *destination = NewError(std::move(error));
  return code;
}

ffr_code ReportException(const std::exception& exception, ffr_error** destination) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&exception) == nullptr) {
    try {
      return Report({ErrorCode::kIo, exception.what()}, destination);
    } catch (const std::bad_alloc&) {  // No room for the text; say so instead.
    }
  }
  if (destination != nullptr) *destination = &g_out_of_memory;
  return FFR_IO;
}

}  // namespace ffrecord::capi

uint32_t ffr_api_version() { return FFR_API_VERSION; }

const char* ffr_library_version() { return FFRECORD_VERSION; }

ffr_code ffr_error_code(const ffr_error* error) { return static_cast<ffr_code>(error->error.code); }

const char* ffr_error_message(const ffr_error* error) { return error->error.message.c_str(); }

int ffr_error_errno(const ffr_error* error) { return error->error.system_errno; }

void ffr_error_free(ffr_error* error) {
  if (error != &ffrecord::capi::g_out_of_memory) delete error;
}
