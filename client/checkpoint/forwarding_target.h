#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/checkpoint/target.h"

namespace ffrecord::client {

// A target that does everything at another one, which outlives it: for those that change a little
// of it.
class ForwardingTarget : public CheckpointTarget {
 public:
  explicit ForwardingTarget(CheckpointTarget& inner) noexcept : inner_(inner) {}

  const std::string& name() const noexcept override { return inner_.name(); }
  Result<std::vector<std::uint64_t>> Steps() const override { return inner_.Steps(); }
  Result<std::vector<std::uint64_t>> StepsForSure() const override { return inner_.StepsForSure(); }
  std::vector<std::string> Unseen() const override { return inner_.Unseen(); }
  Result<std::unique_ptr<CommittedStep>> Open(std::uint64_t step) const override {
    return inner_.Open(step);
  }
  Result<void> Remove(std::uint64_t step, const std::optional<AttemptId>& only) override {
    return inner_.Remove(step, only);
  }
  Result<std::unique_ptr<CheckpointAttempt>> Begin(std::uint64_t step,
                                                   const AttemptId& attempt) override {
    return inner_.Begin(step, attempt);
  }
  Result<std::unique_ptr<CheckpointAttempt>> BeginInPlace(std::uint64_t step,
                                                          const AttemptId& attempt,
                                                          const GivesWay& gives_way) override {
    return inner_.BeginInPlace(step, attempt, gives_way);
  }
  Result<std::unique_ptr<CheckpointAttempt>> Join(std::uint64_t step,
                                                  const AttemptId& attempt) override {
    return inner_.Join(step, attempt);
  }
  bool MayShare(const FindStep& base) const override { return inner_.MayShare(base); }
  Result<std::string> Decide(std::string_view name, std::string_view answer) override {
    return inner_.Decide(name, answer);
  }
  void Forget(std::string_view name) noexcept override { inner_.Forget(name); }
  Result<std::vector<std::string>> Decisions(std::string_view prefix) const override {
    return inner_.Decisions(prefix);
  }
  Result<std::string> Decided(std::string_view name) const override { return inner_.Decided(name); }

 private:
  CheckpointTarget& inner_;
};

}  // namespace ffrecord::client
