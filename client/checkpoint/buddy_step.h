#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The files of a step at one place, published there: the root manifest, and the files of some
// parts.
struct StepAtPlace {
  std::unique_ptr<CommittedStep> files;
  std::vector<std::byte> root;  // The bytes of its root manifest.
};

using IsRootOnLine = std::function<Result<bool>(const RootManifest&)>;

// The files of one step from several places that have a copy of each part at one or two of them:
// what one place cannot give is read at the other. Only places with the same root manifest, byte
// for byte, are taken together, so parts of two saves never mix.
//
// Fails with kNotFound if no root manifest has all of its parts at `places`, with kConflict if two
// have: a place that was away has brought back an old save of the step. If the run has given up one
// of the two (`is_on_line`, if given), the other one is the step: a save that was to replace it has
// been killed. `name` is for messages.
// `lost` says why other places have no copy, for LostCopies(), which adds to it what `places` lack.
Result<std::unique_ptr<CommittedStep>> OpenBuddyStep(std::vector<StepAtPlace> places,
                                                     const std::string& name,
                                                     std::vector<std::string> lost,
                                                     const IsRootOnLine& is_on_line = {});

}  // namespace ffrecord::client
