#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>

#include <ffrecord/result.h>

namespace ffrecord {

// Runs `work` on `thread_count` threads at once, the calling one among them, and returns when all
// have ended: the first error of any of them. Where no more threads can be had, fewer do the work,
// so each has to take its share from what is left. The threads take no signals. `work` can ask
// `failed` (thread-safe) whether another thread has failed and nothing more is wanted.
class SideBySide {
 public:
  using Work = std::function<Result<void>(const SideBySide&)>;
  static Result<void> Run(std::size_t thread_count, const Work& work);

  bool failed() const;

 private:
  void Note(Result<void> outcome);

  mutable std::mutex mutex_;
  std::optional<Error> first_error_;
};

}  // namespace ffrecord
