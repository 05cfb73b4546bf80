#pragma once

// Ends of connections for tests, both in this process.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "loopback.h"

namespace ffrecord::net::test {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

inline Deadline Soon() { return Clock::now() + 60s; }

inline Bytes RandomBytes(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline EndpointPair MakeTcpPair() {
  auto listener = TcpListener::Listen({"127.0.0.1", 0}).value();
  EndpointPair pair;
  pair.near = ConnectTcp(listener.address(), Soon()).value();
  while (!pair.far) pair.far = listener.Accept().value();
  return pair;
}

inline std::string FreshName() {
  static std::atomic<int> next{0};
  return "ffrecord-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

inline EndpointPair MakeLocalPair() {
  auto listener = LocalListener::Listen(FreshName()).value();
  EndpointPair pair;
  pair.near = ConnectLocal(listener.name(), "local", Soon()).value();
  while (!pair.far) pair.far = listener.Accept().value();
  return pair;
}

// The RDMA device that tests share, or why there is none.
inline const Result<std::shared_ptr<RdmaDevice>>& TestRdmaDevice() {
  static const auto device = RdmaDevice::Open();
  return device;
}

// Queue pairs, registrations and what else of RDMA the kernel holds for all processes. Requires a
// device, of which the kernel always holds something: a count of none would prove nothing.
inline std::size_t CountRdmaResources() {
  std::size_t count = 0;
  for (const char* kind : {"qp", "mr", "cq", "pd"}) {
    std::FILE* const out = ::popen((std::string("rdma resource show ") + kind).c_str(), "r");
    if (out == nullptr) break;
    for (int c = std::fgetc(out); c != EOF; c = std::fgetc(out)) count += c == '\n' ? 1 : 0;
    EXPECT_EQ(::pclose(out), 0) << "rdma resource show " << kind;
  }
  EXPECT_GT(count, 0U) << "the program rdma, of iproute2, tells nothing";
  return count;
}

inline EndpointPair MakeRdmaPairOn(const std::shared_ptr<RdmaDevice>& device) {
  auto control = MakeTcpPair();
  using Side = RdmaLink::Side;
  const auto near = RdmaLink::Make(device, Side::kConnects).value();
  const auto far = RdmaLink::Make(device, Side::kAccepts).value();
  EndpointPair pair;
  pair.far = far->Connect(near->own(), control.far).value();
  pair.near = near->Connect(far->own(), control.near).value();
  return pair;
}

// Requires TestRdmaDevice().
inline EndpointPair MakeRdmaPair() { return MakeRdmaPairOn(TestRdmaDevice().value()); }

}  // namespace ffrecord::net::test
