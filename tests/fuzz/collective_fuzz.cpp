// Goal: nothing that a rank of a collective group says can hurt another one, and what is decoded is
// what was sent.
// Method: the first byte chooses the message, the rest is its body, or the address where a rank is
// met. What is accepted must encode to itself.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "client/collective/group_messages.h"
#include "client/collective/machines.h"
#include "tests/fuzz/round_trip.h"

namespace client = ffrecord::client;

namespace {

void TryAddress(Body body) {
  const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  const auto address = client::MemberAddress::Parse(text);
  if (address) Require(address.value().ToString() == text);
}

constexpr void (*kTries[])(Body) = {
    Try<client::GroupHello>,
    Try<client::CollectiveData>,
    Try<client::CollectiveTaken>,
    Try<client::GroupWaiting>,
    TryAddress,
    Try<client::GroupRing>,
    Try<client::CollectivePlaced>,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  kTries[data[0] % std::size(kTries)](std::as_bytes(std::span(data + 1, size - 1)));
  return 0;
}
