#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/dataset/cluster.h"
#include "client/dataset/published_files.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// The files of `manifest`, whose extents lie on the nodes of the cluster. Each part is read from an
// owner of its extent that answers, else from wherever it is; as net::ReplicatedFiles, and from a
// single daemon as net::RemoteFiles. `location` is for the names of the files.
std::unique_ptr<RangeReader> OpenClusterFiles(std::shared_ptr<Cluster> cluster,
                                              DatasetManifest manifest,
                                              const std::string& location);

// The dataset of the name at `location`, which stands for `manifest` at `revision`. A hint goes to
// all nodes that are up: each reads ahead the extents whose preferred owner it is, and from that
// one they are read meanwhile.
PublishedFiles OpenClusterDataset(std::shared_ptr<Cluster> cluster, DatasetManifest manifest,
                                  std::uint64_t revision, const net::Location& location);

}  // namespace ffrecord::client
