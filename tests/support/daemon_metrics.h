#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::test {

// The answer of a daemon's admin port, with its head.
inline std::string PageOf(const net::Address& admin, const std::string& path) {
  const auto deadline = net::Clock::now() + std::chrono::seconds(60);
  auto endpoint = net::ConnectTcp(admin, deadline);
  EXPECT_TRUE(endpoint) << endpoint.error().message;
  if (!endpoint) return "";
  const int fd = endpoint.value()->fd();
  const std::string request =
      "GET " + path + " HTTP/1.0\r\nHost: " + admin.ToString() + "\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string page;
  std::array<char, 4096> part;
  for (;;) {
    pollfd waited{fd, POLLIN, 0};
    if (::poll(&waited, 1, 10'000) <= 0) break;
    const ssize_t got = ::recv(fd, part.data(), part.size(), 0);
    if (got <= 0) break;
    page.append(part.data(), static_cast<std::size_t>(got));
  }
  return page;
}

// The value of one metric without labels, or of one with them as they are printed.
inline std::uint64_t MetricOf(const net::Address& admin, const std::string& name) {
  const std::string page = PageOf(admin, "/metrics");
  const auto at = page.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name << " is not in " << page;
  return at == std::string::npos ? ~std::uint64_t{0}
                                 : std::stoull(page.substr(at + name.size() + 2));
}

}  // namespace ffrecord::test
