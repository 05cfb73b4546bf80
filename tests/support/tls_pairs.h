#pragma once

// Ends of TLS connections for tests, both in this process.

#include <future>

#include "certificates.h"
#include "endpoint_pairs.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "temp_folder.h"

namespace ffrecord::net::test {

// Certificates of both sides, from one authority.
struct TlsFolder {
  TlsFolder() {
    authority.Write(folder / "ca.pem");
    authority.Issue(folder / "cert.pem", folder / "key.pem");
  }
  TlsFiles files() const { return TlsFiles::In(folder / "."); }

  ffrecord::test::Authority authority;
  ffrecord::test::TempFolder folder;
};

// Whether this build has TLS.
inline bool HasTls() {
  const auto loaded = TlsContext::Load(TlsContext::Side::kClient, TlsFolder().files());
  return loaded || loaded.error().code != ErrorCode::kUnavailable;
}

inline std::unique_ptr<TlsContext> LoadTls(TlsContext::Side side, TlsFiles files) {
  auto context = TlsContext::Load(side, std::move(files));
  if (!context) std::fputs((context.error().message + "\n").c_str(), stderr);
  return std::move(context).value();
}

inline EndpointPair MakeTlsPair() {
  static const TlsFolder folder;
  static const auto client = LoadTls(TlsContext::Side::kClient, folder.files());
  static const auto server = LoadTls(TlsContext::Side::kServer, folder.files());
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  auto near = std::async(std::launch::async,
                         [&] { return ConnectTls(listener.address(), *client, Soon()); });
  EndpointPair pair;
  while (!pair.far) pair.far = listener.Accept(server.get()).value();
  while (near.wait_for(1ms) != std::future_status::ready) (void)pair.far->Poll();
  pair.near = near.get().value();
  return pair;
}

}  // namespace ffrecord::net::test
