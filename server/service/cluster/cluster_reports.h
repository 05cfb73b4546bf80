#pragma once

#include <string>

#include <ffrecord/result.h>

#include "server/cluster/move_plan.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/metrics_page.h"

namespace ffrecord::server {

// The pages of a cluster for operators, as JSON. Each waits for the service's thread and fails as
// StatusDesk::Describe.

// This node's knowledge, without names.
Result<std::string> StatusJson(ClusterService& service);
// Its metrics; none once the service stops.
void ShowCluster(ClusterService& service, MetricsPage& page);
// For each slot its nodes, its extents, and how many of them have an owner that is down or too few.
Result<std::string> SlotsJson(ClusterService& service);
// Fails as PlanMoves.
Result<std::string> PlanJson(ClusterService& service, const cluster::PlannedChange& change);
// The names with extents that this node should hold, and that no node that answers has undamaged.
Result<std::string> LostJson(ClusterService& service);

}  // namespace ffrecord::server
