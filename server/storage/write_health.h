#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include <ffrecord/result.h>

namespace ffrecord::server {

// Whether the disk takes what is written. Reads do not ask it. Thread-safe.
//
// A disk that is full may have room again, and is tried each time. One that has failed in another
// way may have lost what it said it had: nothing more is written until the daemon starts anew.
class WriteHealth {
 public:
  enum class State : std::uint8_t { kGood, kFull, kFailed };

  // The state of the disk after the error of a write; none if the error is not the disk's.
  static std::optional<State> StateOf(const Error& error);

  // Notes a failed write; errors that are not the disk's are not looked at.
  void Note(const Error& error);
  void NoteSuccess();
  template <class T>
  Result<T> Noted(Result<T> result) {
    if (!result) Note(result.error());
    return result;
  }

  // Fails with kIo, and the first failure, once the disk has failed.
  Result<void> CheckWritable() const;

  struct Report {
    State state = State::kGood;
    std::string why;  // Empty: kGood.
  };
  Report report() const;

 private:
  mutable std::mutex mutex_;
  Report report_;
  int system_errno_ = 0;
};

}  // namespace ffrecord::server
