#pragma once

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libffrecord/io/io_engine.h"

namespace ffrecord::test {

// The faults of a FaultyEngine. Without any of it the engine passes everything on.
struct Faults {
  // The `nth` request (from 1) of `kind`, or of any kind, is not run and ends with `result`
  // (-errno, or bytes that were not moved: a lie); sticky: and all that follow it.
  struct Failure {
    std::optional<IoRequest::Kind> kind;
    std::uint64_t nth = 1;
    std::int64_t result = -EIO;
    bool sticky = false;
  };
  std::vector<Failure> failures;

  // The `failed_submit`-th call of Submit() (from 1) that finds requests in flight fails as a
  // whole. 0: none.
  std::uint64_t failed_submit = 0;

  // Transfers longer than this move a random part of it, a multiple of this. 0: none.
  std::uint64_t short_transfer_unit_bytes = 0;

  // A request on an O_DIRECT descriptor from any other offset is refused, as by a device with such
  // blocks. 0: by this machine's own rule.
  std::uint64_t direct_alignment_bytes = 0;

  // The `nth` read (from 1) has its bit `bit % bits` flipped. 0: none.
  std::uint64_t flipped_read = 0;
  std::uint64_t flipped_bit = 0;

  // Completions come late and in random order; each Submit() takes a random number of requests.
  bool disorder = false;
  std::uint32_t seed = 1;

  // Requests in flight at most, completions that are held back included.
  std::uint32_t depth = kThreadEngineDepth;
};

// The requests that a FaultyEngine has seen; outlives it, for its owner may be destroyed with it.
struct FaultCounts {
  std::array<std::uint64_t, 3> of_kind{};  // By IoRequest::Kind.
  std::uint64_t requests = 0;
  IoRequest::Kind last = IoRequest::Kind::kRead;
  std::uint64_t injected = 0;  // Failures, short transfers and flips.

  std::uint64_t of(IoRequest::Kind kind) const { return of_kind[static_cast<std::size_t>(kind)]; }
};

// An IoEngine around a real one that fails on order. To try every failure of an operation, run it
// with nth = 1, 2, ... until a run ends with injected == 0 (ForEachFailure below).
class FaultyEngine final : public IoEngine {
 public:
  FaultyEngine(std::unique_ptr<IoEngine> real, Faults faults,
               std::shared_ptr<FaultCounts> counts = std::make_shared<FaultCounts>())
      : real_(std::move(real)),
        faults_(std::move(faults)),
        counts_(std::move(counts)),
        random_(faults_.seed) {}

  // Requests that were never passed on, or have come back, may be forgotten: only the real engine
  // has others' memory in its hands, and asserts that nothing is left there.
  ~FaultyEngine() override = default;

  std::string_view name() const noexcept override { return "faulty"; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }

  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    if (in_flight_ > 0 && ++late_submits_ == faults_.failed_submit)
      return Error{ErrorCode::kIo, "faulty: submit", EIO};
    std::size_t offered = std::min<std::size_t>(requests.size(), faults_.depth - in_flight_);
    if (faults_.disorder && offered > 1) offered = 1 + random_() % offered;
    std::uint32_t taken = 0;
    for (IoRequest* request : requests.first(offered)) {
      if (!Take(*request)) break;
      ++taken;
    }
    in_flight_ += taken;
    return taken;
  }

  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t count_min,
                             std::chrono::milliseconds timeout) override {
    const auto wanted = std::min(count_min, in_flight_);
    if (real_->in_flight() > 0 && (ready_.size() < wanted || count_min == 0 || faults_.disorder)) {
      std::vector<IoRequest*> returned(real_->in_flight());
      // In disorder everything is waited for, so that the order is all ours.
      const auto missing =
          static_cast<std::uint32_t>(wanted - std::min<std::size_t>(wanted, ready_.size()));
      auto count = real_->Wait(returned, faults_.disorder ? real_->in_flight() : missing, timeout);
      if (!count) return count.error();
      for (IoRequest* shadow : std::span(returned).first(count.value())) Finish(*shadow);
    }
    if (faults_.disorder) std::shuffle(ready_.begin(), ready_.end(), random_);
    std::size_t given = std::min(done.size(), ready_.size());
    if (faults_.disorder && given > wanted) given = wanted + random_() % (given - wanted + 1);
    std::copy_n(ready_.begin(), given, done.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(given));
    in_flight_ -= static_cast<std::uint32_t>(given);
    return static_cast<std::uint32_t>(given);
  }

 private:
  // The request that is passed on instead of another, whose fields stay as they are.
  struct Shadow {
    IoRequest request;
    IoRequest* original = nullptr;
    bool flipped = false;
  };

  bool Take(IoRequest& request) {
    const auto kind = static_cast<std::size_t>(request.kind);
    const std::uint64_t of_kind = counts_->of_kind[kind] + 1;
    const std::uint64_t of_any = counts_->requests + 1;
    if (IsMisaligned(request)) return Refuse(request, -EINVAL);
    for (const Faults::Failure& failure : faults_.failures) {
      if (failure.kind && *failure.kind != request.kind) continue;
      const std::uint64_t number = failure.kind ? of_kind : of_any;
      if (number == failure.nth || (failure.sticky && number > failure.nth))
        return Refuse(request, failure.result);
    }
    auto shadow = std::make_unique<Shadow>(Shadow{request, &request, false});
    shadow->request.user = shadow.get();
    const std::uint64_t unit = faults_.short_transfer_unit_bytes;
    const bool cut = unit != 0 && request.buffer.size() > unit;
    if (cut)
      shadow->request.buffer =
          request.buffer.first(unit * (1 + random_() % ((request.buffer.size() - 1) / unit)));
    shadow->flipped = request.kind == IoRequest::Kind::kRead && of_kind == faults_.flipped_read;
    IoRequest* const passed = &shadow->request;
    const auto taken = real_->Submit({&passed, 1});
    if (!taken || taken.value() == 0) return false;
    Count(request.kind);
    if (cut) ++counts_->injected;
    shadows_.emplace(passed, std::move(shadow));
    return true;
  }

  bool IsMisaligned(const IoRequest& request) const {
    const std::uint64_t block = faults_.direct_alignment_bytes;
    return block != 0 && request.offset_bytes % block != 0 &&
           (::fcntl(request.fd, F_GETFL) & O_DIRECT) != 0;
  }

  bool Refuse(IoRequest& request, std::int64_t result) {
    Count(request.kind);
    ++counts_->injected;
    request.result = result;
    ready_.push_back(&request);
    return true;
  }

  void Count(IoRequest::Kind kind) {
    ++counts_->of_kind[static_cast<std::size_t>(kind)];
    counts_->last = kind;
    ++counts_->requests;
  }

  void Finish(IoRequest& passed) {
    const auto node = shadows_.extract(&passed);
    const Shadow& shadow = *node.mapped();
    shadow.original->result = passed.result;
    if (shadow.flipped && passed.result > 0) {
      ++counts_->injected;
      const std::uint64_t bit =
          faults_.flipped_bit % (static_cast<std::uint64_t>(passed.result) * 8);
      passed.buffer[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    ready_.push_back(shadow.original);
  }

  std::unique_ptr<IoEngine> real_;
  const Faults faults_;
  const std::shared_ptr<FaultCounts> counts_;
  std::mt19937 random_;
  std::unordered_map<IoRequest*, std::unique_ptr<Shadow>> shadows_;  // In the real engine's hands.
  std::vector<IoRequest*> ready_;
  std::uint32_t in_flight_ = 0;
  std::uint64_t late_submits_ = 0;
};

// Runs `operation(engine, nth)` with the first request of `kind` failing, then the second, and so
// on until a run that no failure touched, which it counts too. The operation owns the engine.
// Returns how many failures there were.
template <class Operation>
std::uint64_t ForEachFailure(std::optional<IoRequest::Kind> kind, std::int64_t result, bool sticky,
                             Operation operation) {
  for (std::uint64_t nth = 1;; ++nth) {
    auto counts = std::make_shared<FaultCounts>();
    auto real = MakeIoEngine(kThreadEngineDepth);
    if (!real) std::abort();
    Faults faults;
    faults.failures.push_back({kind, nth, result, sticky});
    const auto& seen = *counts;
    operation(std::make_unique<FaultyEngine>(std::move(real).value(), std::move(faults), counts),
              [&seen] { return seen.injected > 0; });
    if (seen.injected == 0) return nth - 1;
  }
}

}  // namespace ffrecord::test
