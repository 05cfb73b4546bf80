#include "libffrecord/net/transport/rdma/verbs.h"

#include <dlfcn.h>

#include <string>

namespace ffrecord::net {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

// `error` is set to the loader's words if `name` is not there.
template <class Function>
void Find(void* library, const char* name, Function& function, std::string& error) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr && error.empty()) error = std::string("it has no ") + name;
  function = reinterpret_cast<Function>(found);
}

struct Loaded {
  Verbs verbs{};
  std::string error;
};

Loaded Load() {
  Loaded loaded;
  // Never closed: its devices hold threads and descriptors of their own.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    loaded.error = why != nullptr ? why : "it cannot be loaded";
    return loaded;
  }
  Verbs& v = loaded.verbs;
  std::string& e = loaded.error;
  Find(library, "ibv_get_device_list", v.get_device_list, e);
  Find(library, "ibv_free_device_list", v.free_device_list, e);
  Find(library, "ibv_get_device_name", v.get_device_name, e);
  Find(library, "ibv_open_device", v.open_device, e);
  Find(library, "ibv_close_device", v.close_device, e);
  Find(library, "ibv_query_device", v.query_device, e);
  Find(library, "ibv_get_async_event", v.get_async_event, e);
  Find(library, "ibv_ack_async_event", v.ack_async_event, e);
  Find(library, "ibv_query_port", v.query_port_begin, e);
  Find(library, "_ibv_query_gid_ex", v.query_gid, e);
  Find(library, "ibv_alloc_pd", v.alloc_pd, e);
  Find(library, "ibv_dealloc_pd", v.dealloc_pd, e);
  Find(library, "ibv_reg_mr", v.reg_mr, e);
  std::string may_be_missing;
  Find(library, "ibv_reg_mr_iova2", v.reg_mr_iova2, may_be_missing);
  Find(library, "ibv_dereg_mr", v.dereg_mr, e);
  Find(library, "ibv_create_comp_channel", v.create_comp_channel, e);
  Find(library, "ibv_destroy_comp_channel", v.destroy_comp_channel, e);
  Find(library, "ibv_create_cq", v.create_cq, e);
  Find(library, "ibv_destroy_cq", v.destroy_cq, e);
  Find(library, "ibv_get_cq_event", v.get_cq_event, e);
  Find(library, "ibv_ack_cq_events", v.ack_cq_events, e);
  Find(library, "ibv_create_qp", v.create_qp, e);
  Find(library, "ibv_modify_qp", v.modify_qp, e);
  Find(library, "ibv_destroy_qp", v.destroy_qp, e);
  Find(library, "ibv_wc_status_str", v.wc_status_str, e);
  return loaded;
}

}  // namespace

Result<const Verbs*> LoadVerbs() {
  static const Loaded loaded = Load();
  if (!loaded.error.empty())
    return Error{ErrorCode::kUnavailable,
                 std::string(kLibrary) + " cannot be used: " + loaded.error +
                     "; install the packages libibverbs1 and ibverbs-providers"};
  return &loaded.verbs;
}

}  // namespace ffrecord::net
