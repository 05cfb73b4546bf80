#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/rpc/channel.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::test {

// A client on the local socket of the daemon at `address`, which has sent it there.
inline std::unique_ptr<net::Channel> ConnectLocally(const net::Address& address,
                                                    std::span<const std::byte> token = {}) {
  const auto deadline = net::Clock::now() + std::chrono::seconds(20);
  const auto greeted = net::Channel::Connect(address, deadline, token).value();
  EXPECT_TRUE(greeted->hello().local);
  auto endpoint =
      net::ConnectLocal(net::LocalSocketName(greeted->hello().epoch), "daemon", deadline).value();
  return net::Channel::OpenLocal(std::move(endpoint), *greeted->hello().local, deadline).value();
}

}  // namespace ffrecord::test
