#include "libffrecord/net/http/curl_library.h"

#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <string>

namespace ffrecord::net {
namespace {

// Both have the same interface; the second is Debian's with another library for TLS.
constexpr std::array<const char*, 2> kLibraries = {"libcurl.so.4", "libcurl-gnutls.so.4"};
// An older one does not know CURLOPT_PROTOCOLS_STR, and would follow a redirection anywhere.
constexpr unsigned kVersionMin = 0x075500;  // 7.85.0

Error Unusable(const std::string& why) {
  return {ErrorCode::kUnavailable,
          "libcurl cannot be used: " + why +
              "; object stores and etcd need version 7.85 or newer: install it, such as the "
              "package libcurl4 of Debian, libcurl4t64 of Ubuntu or libcurl of Fedora"};
}

// `error` is set if `name` is not there.
template <class Function>
void Find(void* library, const char* name, Function& function, std::string& error) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr && error.empty()) error = std::string("it has no ") + name;
  function = reinterpret_cast<Function>(found);
}

std::string FindAll(void* library, CurlFunctions& c) {
  std::string e;
  Find(library, "curl_global_init", c.global_init, e);
  Find(library, "curl_version_info", c.version_info, e);
  Find(library, "curl_easy_init", c.easy_init, e);
  Find(library, "curl_easy_cleanup", c.easy_cleanup, e);
  Find(library, "curl_easy_setopt", c.easy_setopt, e);
  Find(library, "curl_easy_reset", c.easy_reset, e);
  Find(library, "curl_easy_perform", c.easy_perform, e);
  Find(library, "curl_easy_getinfo", c.easy_getinfo, e);
  Find(library, "curl_easy_strerror", c.easy_strerror, e);
  Find(library, "curl_slist_append", c.slist_append, e);
  Find(library, "curl_slist_free_all", c.slist_free_all, e);
  Find(library, "curl_multi_init", c.multi_init, e);
  Find(library, "curl_multi_cleanup", c.multi_cleanup, e);
  Find(library, "curl_multi_setopt", c.multi_setopt, e);
  Find(library, "curl_multi_add_handle", c.multi_add_handle, e);
  Find(library, "curl_multi_remove_handle", c.multi_remove_handle, e);
  Find(library, "curl_multi_perform", c.multi_perform, e);
  Find(library, "curl_multi_info_read", c.multi_info_read, e);
  Find(library, "curl_multi_poll", c.multi_poll, e);
  Find(library, "curl_multi_wakeup", c.multi_wakeup, e);
  Find(library, "curl_multi_strerror", c.multi_strerror, e);
  return e;
}

Result<CurlFunctions> Start() {
  auto functions = FFR_TRY(LoadCurlFrom(kLibraries));
  if (functions.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return Error{ErrorCode::kIo, "http: libcurl could not be started", ENOMEM};
  return functions;
}

// Never destroyed: threads may be in libcurl while the process exits.
const Result<CurlFunctions>& Loaded() {
  static const auto* const loaded = new Result<CurlFunctions>(Start());
  return *loaded;
}

}  // namespace

Result<CurlFunctions> LoadCurlFrom(std::span<const char* const> names) {
  void* library = nullptr;
  std::string why;
  for (const char* const name : names) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    const char* const said = ::dlerror();
    if (why.empty()) why = said != nullptr ? said : "it cannot be loaded";
  }
  if (library == nullptr) return Unusable(why);
  CurlFunctions functions{};
  if (auto missing = FindAll(library, functions); !missing.empty()) return Unusable(missing);
  const auto* const version = functions.version_info(CURLVERSION_NOW);
  if (version->version_num < kVersionMin)
    return Unusable(std::string("its version is ") + version->version);
  return functions;
}

Result<void> LoadCurl() {
  if (!Loaded()) return Loaded().error();
  return {};
}

const CurlFunctions& Curl() { return Loaded().value(); }

}  // namespace ffrecord::net
