#pragma once

#include <curl/curl.h>

#include <span>

#include <ffrecord/result.h>

namespace ffrecord::net {

// The functions of libcurl that are used, found when the program runs: it is built on some twenty
// libraries that only object stores and etcd need, and it knows where its system keeps the
// certificates of authorities.
struct CurlFunctions {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_version_info) version_info;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_setopt) multi_setopt;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_wakeup) multi_wakeup;
  decltype(&::curl_multi_strerror) multi_strerror;
};

// Loads the first of `names` that is there, and keeps it for the life of the process. Fails with
// kUnavailable, naming the remedy, also if it is older than what the project relies on.
Result<CurlFunctions> LoadCurlFrom(std::span<const char* const> names);

// Loads and starts libcurl once. Fails as LoadCurlFrom() does, or with kIo (ENOMEM). Thread-safe.
Result<void> LoadCurl();

// Requires that LoadCurl() has succeeded. Thread-safe.
const CurlFunctions& Curl();

}  // namespace ffrecord::net
