#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/replica_writer.h"
#include "client/dataset/upload_plan.h"
#include "libffrecord/base/erasure_code.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::client {

// Sends the extents of a plan to a cluster in stripes, with their parity. Two stripes travel at a
// time, and hold their parity in memory. Borrows all that it is given.
class StripeUpload {
 public:
  // `upload` and `parity_file`: id of the upload, and the number in it of the file that parity
  // extents are named by.
  StripeUpload(const ErasureCode& code, ReplicaWriter& replicas, UploadPlan& plan,
               std::uint64_t upload, std::uint32_t parity_file);

  // Returns the parity extents; the entries of the others are in the plan. `progress` does not
  // count parity.
  Result<std::vector<ManifestExtent>> Run(const UploadProgress& progress);

 private:
  Result<void> PutStripe(std::size_t stripe, const SideBySide& others,
                         const UploadProgress& sent_more);

  const ErasureCode code_;
  ReplicaWriter& replicas_;
  UploadPlan& plan_;
  std::vector<ManifestExtent> parity_;
};

}  // namespace ffrecord::client
