#pragma once

#include <ffrecord/result.h>

namespace ffrecord::server::cluster {

// The commits of one change that got no answer: whether the change may be made, although nobody has
// said so. Every refusal of the change is explained here, whatever its reason.
class UnansweredCommits {
 public:
  // One was asked for, and its answer is lost or will not be waited for.
  void Note() noexcept { any_ = true; }
  // The outcome of all of them is known by now.
  void Settle() noexcept { any_ = false; }
  bool any() const noexcept { return any_; }

  // The refusal for the one who asked. Without such commits nothing has changed and nothing will:
  // what has no other reason than time is kUnavailable. With them it says that the change may still
  // take effect, and where another node might do what this one could not, it is kDeadlineExceeded.
  Error Explain(Error refusal) const;

 private:
  bool any_ = false;
};

}  // namespace ffrecord::server::cluster
