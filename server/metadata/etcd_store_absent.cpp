#include "server/metadata/etcd_store.h"

namespace ffrecord::server {

Result<std::unique_ptr<MetaStore>> OpenEtcdStore(EtcdOptions) {
  return Error{ErrorCode::kUnavailable,
               "this build has no client of etcd; build it with libcurl and nlohmann-json"};
}

}  // namespace ffrecord::server
