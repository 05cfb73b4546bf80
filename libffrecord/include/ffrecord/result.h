#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace ffrecord {

// The kind of an error. A code exists only if some caller acts differently on it.
enum class ErrorCode : std::uint8_t {
  kOk = 0,                // Only in lists of statuses; never in an Error.
  kInvalidArgument = 1,   // The caller's mistake. Never retry.
  kNotFound = 2,          // No such file, dataset or extent.
  kCorruption = 3,        // Stored bytes fail a check. Try another replica.
  kIo = 4,                // The device or kernel refused; system_errno says why.
  kUnavailable = 5,       // The peer is gone or busy. Retry with back-off.
  kDeadlineExceeded = 6,  // Time is up; the operation may still take effect.
  kConflict = 7,          // Another writer published first. Look again, then decide.
  kDenied = 8,            // This identity may not do this. Never retry.
  kOutOfRange = 9,        // A record index is not below the record count. Never retry.
};

// Why a call failed. Codes are for programs; callers do not search the message. Owns its text.
struct [[nodiscard]] Error {
  ErrorCode code;
  std::string message;   // For people: the operation, its object, the cause, the remedy.
  int system_errno = 0;  // With kIo the kernel's; else 0, or a detail between the project's parts.
};

// A value, or the Error that explains its absence: test it with `if (result)` first. Accessing the
// absent one ends the process, in release builds too: get() throws inside noexcept. Owns what it
// holds; value() and error() return references that are valid as long as it lives, and move out of
// an rvalue. Thread-compatible: as safe as T.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const noexcept { return state_.index() == 0; }
  const T& value() const& noexcept { return std::get<0>(state_); }
  T& value() & noexcept { return std::get<0>(state_); }
  T&& value() && noexcept { return std::get<0>(std::move(state_)); }
  const Error& error() const& noexcept { return std::get<1>(state_); }
  Error&& error() && noexcept { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// Success without a value, or an Error.
template <>
class [[nodiscard]] Result<void> : public Result<std::monostate> {
 public:
  using Result<std::monostate>::Result;
  Result() : Result<std::monostate>(std::monostate{}) {}
};

// The one macro: `auto header = FFR_TRY(Decode(bytes));` takes the value or returns the error.
// Not for coroutines. Does not nest in one expression. Do not use it beside other arguments of one
// call: arguments that were evaluated before it returns would leak.
#define FFR_TRY(expression)                                \
  __extension__({                                          \
    auto ffr_result = (expression);                        \
    if (!ffr_result) return std::move(ffr_result).error(); \
    std::move(ffr_result).value();                         \
  })

}  // namespace ffrecord
