#pragma once

#include <memory>
#include <string>

#include "client/dataset/cluster.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// The files of `manifest`, whose extents lie on the nodes of the cluster. Each part is read from an
// owner of its extent that answers, else from wherever it is; as net::ReplicatedFiles. `location`
// is for the names of the files.
std::unique_ptr<RangeReader> OpenClusterFiles(std::shared_ptr<Cluster> cluster,
                                              DatasetManifest manifest,
                                              const std::string& location);

}  // namespace ffrecord::client
