// What comes from etcd's JSON gateway: replies, refusals and the lines of a watch. Accepted keys
// are the cluster's own, and events never go back.

#include <cstddef>
#include <cstdint>
#include <string>

#include "server/metadata/etcd_messages.h"
#include "server/metadata/etcd_stream.h"
#include "server/metadata/etcd_verdict.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ffrecord::server;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string prefix = "/ffrecord/c/";
  (void)EtcdReplies::TryCommit(text);
  (void)EtcdReplies::GrantLease(text);
  (void)EtcdReplies::KeepLease(text);
  (void)EtcdReplies::Authenticate(text);
  (void)JudgeEtcdRefusal(ParseEtcdRefusal(500, text), "member");
  if (const auto page = EtcdReplies::List(text, prefix, 0))
    for (const auto& entry : page.value().entries)
      if (entry.mod_revision == 0) __builtin_trap();
  EtcdStream stream(prefix, 1, "member");
  std::string bytes = text + "\n";
  std::uint64_t last = 0;
  for (const auto& news : stream.Take(bytes))
    for (const auto& event : news.events) {
      if (event.revision < last) __builtin_trap();
      last = event.revision;
    }
  return 0;
}
