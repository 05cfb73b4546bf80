// Goal: what is asked of a device is what it can do, and what was configured.
// Method: the device of this machine behind verbs of which some are changed, or looked at; skipped
// where there is none.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "endpoint_pairs.h"
#include "libffrecord/net/transport/rdma/device.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::net {
namespace {

using namespace test;

// What the changed verbs do and have seen; they are plain functions.
struct Seen {
  bool answers_reads = true, makes_reads = true;
  std::vector<unsigned> registered;  // With which access.
  std::vector<ibv_ah_attr> routes;
  std::vector<std::uint8_t> traffic_classes;  // Those that the device has, asked afterwards.
};
Seen seen;

const Verbs& Real() { return *LoadVerbs().value(); }

int QueryDevice(ibv_context* context, ibv_device_attr* attributes) {
  const int failed = Real().query_device(context, attributes);
  if (!seen.answers_reads) attributes->max_qp_rd_atom = 0;
  if (!seen.makes_reads) attributes->max_qp_init_rd_atom = 0;
  return failed;
}

// As an adapter does that cannot read.
int ModifyQp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 && !seen.answers_reads &&
      attributes->max_dest_rd_atomic > 0)
    return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 && !seen.makes_reads && attributes->max_rd_atomic > 0)
    return EINVAL;
  const int failed = Real().modify_qp(pair, attributes, mask);
  if ((mask & IBV_QP_AV) == 0 || failed != 0) return failed;
  seen.routes.push_back(attributes->ah_attr);
  ibv_qp_attr has{};
  ibv_qp_init_attr made_with{};
  static const auto query_qp = reinterpret_cast<decltype(&::ibv_query_qp)>(
      ::dlsym(::dlopen("libibverbs.so.1", RTLD_NOW), "ibv_query_qp"));
  EXPECT_EQ(query_qp(pair, &has, IBV_QP_AV, &made_with), 0);
  seen.traffic_classes.push_back(has.ah_attr.grh.traffic_class);
  return 0;
}

ibv_mr* Register(ibv_pd* domain, void* begin, std::size_t size, std::uint64_t address,
                 unsigned access) {
  seen.registered.push_back(access);
  return Real().reg_mr_iova2(domain, begin, size, address, access);
}

class RdmaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestRdmaDevice()) GTEST_SKIP() << TestRdmaDevice().error().message;
    seen = {};
    verbs_ = Real();
    verbs_.query_device = QueryDevice;
    verbs_.modify_qp = ModifyQp;
    if (verbs_.reg_mr_iova2 != nullptr) verbs_.reg_mr_iova2 = Register;
  }
  EndpointPair MakePair(const RdmaQos& qos = {}) const {
    auto pair = MakeRdmaPairOn(OpenRdmaDevice::Open(verbs_, "", qos).value());
    pair.near->SetLimits({});
    pair.far->SetLimits({});
    return pair;
  }
  static void ExpectTalks(EndpointPair& pair) {
    const Bytes data(100'000, std::byte{7});
    const std::span<const std::byte> payload(data);
    ASSERT_TRUE(pair.near->Send({.request_id = 3}, {}, {&payload, 1}));
    (void)pair.near->Poll();
    ASSERT_EQ(NextEvent(*pair.far, Soon(), "a frame").value(), Endpoint::Event::kFrame);
    EXPECT_EQ(pair.far->header().payload_size_bytes, data.size());
  }
  static void ExpectUnsupported(const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kIo);
    EXPECT_EQ(error.system_errno, EOPNOTSUPP) << error.message;
  }

  Verbs verbs_{};
};

TEST_F(RdmaDeviceTest, OneThatAnswersNoReadsConnectsAndExposesNoMemoryToThem) {
  seen.answers_reads = false;
  auto pair = MakePair();
  ExpectTalks(pair);
  Bytes memory(4096);
  ExpectUnsupported(pair.near->remote_memory()->Expose(memory, RemoteMemory::Reach::kRead).error());
  EXPECT_TRUE(pair.near->remote_memory()->Expose(memory, RemoteMemory::Reach::kWrite));
}

TEST_F(RdmaDeviceTest, OneThatMakesNoReadsConnectsAndLandsNothing) {
  seen.makes_reads = false;
  auto pair = MakePair();
  ExpectTalks(pair);
  ExpectUnsupported(pair.far->remote_memory()->MakeStaging(4096).error());
}

TEST_F(RdmaDeviceTest, BothEndsMarkWhatTheySend) {
  auto pair = MakePair({.traffic_class = 104, .service_level = 3});
  ExpectTalks(pair);
  ASSERT_EQ(seen.routes.size(), 2U);
  for (const ibv_ah_attr& route : seen.routes) EXPECT_EQ(route.sl, 3);
  EXPECT_EQ(seen.traffic_classes, (std::vector<std::uint8_t>{104, 104}));
}

TEST_F(RdmaDeviceTest, MemoryIsWrittenInAnyOrderWhereThatCanBeAskedFor) {
  if (verbs_.reg_mr_iova2 == nullptr) GTEST_SKIP() << "the library is too old to be asked";
  auto pair = MakePair();
  ExpectTalks(pair);
  Bytes memory(4096);
  ASSERT_TRUE(pair.near->remote_memory()->Expose(memory, RemoteMemory::Reach::kWrite));
  ASSERT_TRUE(pair.far->remote_memory()->MakeStaging(4096));
  EXPECT_EQ(seen.registered.size(), 6U);
  for (const unsigned access : seen.registered) EXPECT_NE(access & IBV_ACCESS_RELAXED_ORDERING, 0U);
}

TEST_F(RdmaDeviceTest, AnOldLibraryRegistersAsItCan) {
  verbs_.reg_mr_iova2 = nullptr;
  auto pair = MakePair();
  ExpectTalks(pair);
  Bytes memory(4096);
  EXPECT_TRUE(pair.near->remote_memory()->Expose(memory, RemoteMemory::Reach::kWrite));
}

}  // namespace
}  // namespace ffrecord::net
