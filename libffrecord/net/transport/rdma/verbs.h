#pragma once

#include <infiniband/verbs.h>

#include <ffrecord/result.h>

namespace ffrecord::net {

// The functions of libibverbs that are used, found when the program runs. Those that the header
// defines itself (ibv_post_send, ibv_poll_cq, ...) go through the device and need no library.
struct Verbs {
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
  decltype(&::ibv_query_port) query_port_begin;  // Fills ibv_port_attr up to its link_layer.
  decltype(&::_ibv_query_gid_ex) query_gid;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;  // Null in a library that is too old for it.
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_wc_status_str) wc_status_str;
};

// Loads libibverbs once, for the life of the process. Fails with kUnavailable, naming the remedy.
// Thread-safe.
Result<const Verbs*> LoadVerbs();

}  // namespace ffrecord::net
