// Goal: no body of a message can hurt who decodes it, and what is decoded is what was sent.
// Method: the first byte chooses the message, the rest is its body. A body that is accepted must
// encode to itself.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/schema.h>

#include "libffrecord/format/checkpoint_manifest.h"
#include "libffrecord/format/checkpoint_values.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "libffrecord/net/protocol/plan_messages.h"
#include "libffrecord/net/protocol/rdma_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "tests/fuzz/round_trip.h"

namespace net = ffrecord::net;

namespace {

void TryDatasetManifest(Body body) {
  const auto manifest = ffrecord::DecodeDatasetManifest(body);
  if (!manifest) return;
  const auto encoded = ffrecord::EncodeDatasetManifest(manifest.value());
  Require(encoded && std::ranges::equal(encoded.value(), body));
}

void TryPartManifest(Body body) {
  const auto part = ffrecord::DecodePartManifest(body);
  if (part) Require(std::ranges::equal(ffrecord::EncodePartManifest(part.value()), body));
}

void TryRootManifest(Body body) {
  const auto root = ffrecord::DecodeRootManifest(body);
  if (root) Require(std::ranges::equal(ffrecord::EncodeRootManifest(root.value()), body));
}

void TryValues(Body body) { (void)ffrecord::CheckValues(body); }

constexpr void (*kTries[])(Body) = {
    Try<net::Hello>,
    Try<net::HelloReply>,
    Try<net::GoAway>,
    Try<net::SlabRegister>,
    Try<net::Cancel>,
    Try<net::Busy>,
    Try<net::ErrorReply>,
    Try<net::ExtentBind>,
    Try<net::BatchRead>,
    Try<net::ExtentBindReply>,
    Try<net::BatchData>,
    Try<net::BatchDone>,
    Try<net::PutBegin>,
    Try<net::PutBeginReply>,
    Try<net::PutData>,
    Try<net::PutSeal>,
    Try<net::Publish>,
    Try<net::Resolve>,
    Try<net::RevisionReply>,
    Try<net::Delete>,
    Try<net::List>,
    Try<net::ListReply>,
    Try<ffrecord::Schema>,
    TryDatasetManifest,
    TryPartManifest,
    TryRootManifest,
    TryValues,
    Try<net::RdmaConnect>,
    Try<net::CheckRoom>,
    Try<net::PlanSet>,
    Try<net::PlanCancel>,
    Try<net::Grant>,
    Try<net::PutPull>,
    Try<net::LocalOpen>,
    Try<net::LocalOpenReply>,
    Try<net::ClusterMap>,
    Try<net::ClusterMapReply>,
    Try<net::SetMember>,
    Try<net::SetLevel>,
    Try<net::AskHoldings>,
    Try<net::HoldingsReply>,
    Try<net::AskHeard>,
    Try<net::AskBuried>,
    Try<net::AskFilled>,
    Try<net::FlagsReply>,
    Try<net::MetadataList>,
    Try<net::MetadataListReply>,
    Try<net::MetadataPut>,
    Try<net::MetadataHistory>,
    Try<net::AskKnown>,
    Try<net::KnownReply>,
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  kTries[data[0] % std::size(kTries)](std::as_bytes(std::span(data + 1, size - 1)));
  return 0;
}
