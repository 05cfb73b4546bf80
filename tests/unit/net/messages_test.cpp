// Goal: every message has the bytes that protocol.md gives it, and no other bytes are taken
// for it.
// Method: golden bytes, made by another program, encoded and decoded; then every truncation, a byte
// too many, every flipped bit and random bytes of every length. What is accepted after damage must
// encode to the very bytes that were decoded: so nothing in a body goes unread.

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/base/hex.h"

#include <gtest/gtest.h>

#include <random>

#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/frame.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "libffrecord/net/protocol/plan_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "seed.h"

namespace ffrecord::net {
namespace {

std::vector<std::byte> Spelled(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 2);
  EXPECT_TRUE(FromHex(text, bytes));
  return bytes;
}

template <class Message>
void ExpectRefusedOrSame(std::span<const std::byte> body) {
  const auto decoded = Message::Decode(body);
  if (!decoded) return;
  const auto again = decoded.value().Encode();
  ASSERT_TRUE(std::ranges::equal(again, body)) << "accepted bytes that mean something else";
}

// `open_ended`: a shorter body may be a whole message too, of fewer items.
template <class Message>
void Check(const Message& message, std::string_view golden, bool open_ended = false) {
  SCOPED_TRACE(golden);
  const auto bytes = Spelled(golden);
  EXPECT_EQ(message.Encode(), bytes);
  const auto decoded = Message::Decode(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded.value(), message);

  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto truncated = std::span(bytes).first(size);
    if (open_ended)
      ExpectRefusedOrSame<Message>(truncated);
    else
      ASSERT_FALSE(Message::Decode(truncated)) << size;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(Message::Decode(longer));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ExpectRefusedOrSame<Message>(flipped);
  }
  std::mt19937 random(test::Seed());
  for (std::size_t size = 0; size < 300; ++size) {
    std::vector<std::byte> garbage(size);
    for (auto& byte : garbage) byte = static_cast<std::byte>(random());
    ExpectRefusedOrSame<Message>(garbage);
    // Zeros and ones reach deeper than noise.
    ExpectRefusedOrSame<Message>(std::vector<std::byte>(size, std::byte{0}));
    ExpectRefusedOrSame<Message>(std::vector<std::byte>(size, std::byte{0xFF}));
  }
}

ExtentId Counting(int first) {
  ExtentId id;
  for (auto& byte : id) byte = static_cast<std::byte>(first++);
  return id;
}

TEST(MessagesTest, Hello) {
  Check(Hello{1, 3, 2U << 20, 8U << 20, 5, Spelled("aabbcc")},
        "010300000000200000008000030000000500000000000000aabbcc");
  Check(HelloReply{1, 2U << 20, 8U << 20, 4, 0x1122334455667788, 65536, 65536},
        "01000000000020000000800000000100000001000000000004000000000000008877665544332211");
}

TEST(MessagesTest, TheWayToTheLocalSocket) {
  LocalOffer offer{0x0123456789ABCDEF, {}, {}, {}};
  for (std::size_t i = 0; i < 32; ++i) {
    if (i < 16) offer.ticket[i] = static_cast<std::byte>(i);
    offer.daemon_secret[i] = static_cast<std::byte>(0x20 + i);
    offer.client_secret[i] = static_cast<std::byte>(0x40 + i);
  }
  const std::string ticket = "000102030405060708090a0b0c0d0e0f";
  const std::string secret = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";
  Check(HelloReply{1, 2U << 20, 8U << 20, 68, 0x1122334455667788, 65536, 65536, offer},
        "01000000000020000000800000000100000001000000000044000000000000008877665544332211"
        "efcdab8967452301" +
            ticket + secret + "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f");
  Check(LocalOpen{offer.ticket}, ticket);
  Check(LocalOpenReply{offer.daemon_secret}, secret);
}

TEST(MessagesTest, WhichNodeADaemonIs) {
  NodeIdentity identity{{}, "n1"};
  for (std::size_t i = 0; i < 16; ++i) identity.cluster[i] = static_cast<std::byte>(i);
  const std::string before =
      "01000000000020000000800000000100000001000000000004010000000000008877665544332211"
      "000102030405060708090a0b0c0d0e0f";
  Check(HelloReply{1, 2U << 20, 8U << 20, 260, 0x1122334455667788, 65536, 65536, {}, identity},
        before + "02006e31");
  // It comes into messages for people.
  for (const char* const node : {"0000", "01000a", "0100", "02006e"})
    EXPECT_FALSE(HelloReply::Decode(Spelled(before + node))) << node;
}

TEST(MessagesTest, GoAwayBusyAndError) {
  Check(GoAway{"stop"}, "040073746f70");
  Check(Busy{250}, "fa000000");
  Check(ErrorReply{ErrorCode::kIo, 28, "disk full"}, "040000001c00000009006469736b2066756c6c");
}

TEST(MessagesTest, ExtentBind) {
  Check(ExtentBind{2, {Counting(0), ExtentId{}}},
        "0200000002000000000102030405060708090a0b0c0d0e0f00000000000000000000000000000000");
  Check(ExtentBindReply{1, 1, {EntryStatus::kOk, EntryStatus::kNotHere}}, "01000000010000000001");
  Check(ExtentBindReply{5, 0, {}}, "0500000000000000");
}

TEST(MessagesTest, SlabRegisterGrantAndCancel) {
  Check(SlabRegister{3, 64U << 20}, "03000000000000000000000400000000");
  Check(SlabRegister{3, 64U << 20, RemoteRegion{0x7F0011223000, 0xABCD}},
        "0300000001000000000000040000000000302211007f0000cdab000000000000");
  Check(SlabRegister{2, 4U << 20, {}, SlabRegister::Use::kIsRead},
        "02000000020000000000400000000000");
  Check(SlabRegister{2, 4U << 20, RemoteRegion{0x7F0011223000, 0xABCD}, SlabRegister::Use::kIsRead},
        "0200000003000000000040000000000000302211007f0000cdab000000000000");
  Check(Grant{0x1122334455667788, 5U << 20}, "88776655443322110000500000000000");
  Check(Cancel{0x1122334455667788}, "8877665544332211");
}

TEST(MessagesTest, ASlabOfABadNumberOrSizeIsRefused) {
  for (const char* bad : {"00000000000000000010000000000000",  // Number 0: bytes come in frames.
                          "11000000000000000010000000000000",  // 17.
                          "01000000040000000010000000000000",  // Of no kind that there is.
                          "01000000010000000010000000000000",  // Over RDMA, but where?
                          "01000000030000000010000000000000",
                          "01000000000000000000000000000000",  // No bytes.
                          "01000000000000000110000000000000",  // No whole pages.
                          "01000000000000000010000001000000",  // More than 4 GiB.
                          "010000000000000000f0ffffffffffff"})
    EXPECT_FALSE(SlabRegister::Decode(Spelled(bad))) << bad;
}

TEST(MessagesTest, TheLocalSocketIsNamedAfterTheEpoch) {
  EXPECT_EQ(LocalSocketName(0x0123456789abcdef), "ffrecord-0123456789abcdef");
  EXPECT_EQ(LocalSocketName(0), "ffrecord-0000000000000000");
}

TEST(MessagesTest, BatchReadIsTheGoldenVectorOfTheDesign) {
  BatchRead batch;
  batch.slab_id = 3;
  batch.initial_grant_bytes = 65536;
  batch.deadline_ms = 2000;
  batch.entries = {{0, 4096, 1000, 0}, {1, 0, 24, 1024}};
  Check(batch,
        "030000000200000000000100d007000000000000010000000000000000100000e80300000000000001000000"
        "000000001800000000040000");
}

TEST(MessagesTest, BatchReadInItsFrameIsTheGoldenVectorOfTheDesign) {
  BatchRead batch;
  batch.slab_id = 3;
  batch.initial_grant_bytes = 65536;
  batch.deadline_ms = 2000;
  batch.entries = {{0, 4096, 1000, 0}, {1, 0, 24, 1024}};
  const auto body = batch.Encode();
  FrameHeader header;
  header.type = FrameType::kBatchRead;
  header.request_id = 2;
  header.map_version = 7;
  std::array<std::byte, FrameHeader::kEncodedSizeBytes> encoded;

  EncodeFrameHeader(header, body, encoded);

  const auto golden =
      Spelled("465201200000000002000000000000003800000000000000070000006915ecbc6c655dfa6c142671");
  EXPECT_TRUE(std::ranges::equal(encoded, golden));
}

TEST(MessagesTest, BatchDataAndDone) {
  Check(BatchData{{{0, 0, 1000}, {1, 16, 8}}}, "0000000000000000e8030000010000001000000008000000",
        /*open_ended=*/true);
  Check(BatchDone{2, 1, 1024, 10, 20, 0, 30, {EntryStatus::kOk, EntryStatus::kIoError, {}}},
        "020000000100000000040000000000000a00000014000000000000001e000000000600");
  const BatchDone named{1, 0, 7, 10, 20, 0, 30, {}, "/d"};
  EXPECT_EQ(Hex(named.Encode()),
            "010000000000000007000000000000000a00000014000000000000001e00000002002f64");
  EXPECT_EQ(BatchDone::Decode(named.Encode(), true).value(), named);
  EXPECT_FALSE(BatchDone::Decode(named.Encode()));
  Check(BatchDone{3, 0, 1024, 10, 20, 0, 30, {}},
        "030000000000000000040000000000000a00000014000000000000001e000000");
}

TEST(MessagesTest, Put) {
  Check(PutBegin{Counting(1), 64U << 20}, "0102030405060708090a0b0c0d0e0f100000000400000000");
  Check(PutBegin{Counting(1), 64U << 20, BatchRead::Class::kRepair},
        "0102030405060708090a0b0c0d0e0f10000000040000000004", /*open_ended=*/true);
  Check(PutBeginReply{true}, "01");
  Check(PutBeginReply{false}, "00");
  Check(PutData{Counting(1), 4U << 20}, "0102030405060708090a0b0c0d0e0f100000400000000000");
  Check(PutPull{Counting(1), 4U << 20, 2, 2U << 20, 1U << 20},
        "0102030405060708090a0b0c0d0e0f100000400000000000020000000000200000001000");
  Check(PutSeal{Counting(1), 0x78af5f94892f3950},
        "0102030405060708090a0b0c0d0e0f1050392f89945faf78");
}

TEST(MessagesTest, Names) {
  Check(Publish{Publish::Mode::kSwap, 0x1122334455667788, 9, "ckpt/a-1"},
        "0200000000000000887766554433221109000000000000000800636b70742f612d31");
  Check(Publish{Publish::Mode::kSwap, 0x1122334455667788, 9, "ckpt/a-1", 10'000},
        "0200000000000000887766554433221109000000000000000800636b70742f612d3110270000",
        /*open_ended=*/true);
  Check(Delete{9, "train", 10'000}, "09000000000000000500747261696e10270000", /*open_ended=*/true);
  EXPECT_FALSE(Delete::Decode(Spelled("09000000000000000500747261696e00000000")));  // 0 is nothing.
  Check(RevisionReply{9}, "0900000000000000");
  Check(Resolve{"train"}, "0500747261696e");
  Check(Resolve{"train", true}, "0500747261696e01", true);
  Check(Delete{9, "train"}, "09000000000000000500747261696e");
  Check(CheckRoom{4096, "train"}, "00100000000000000500747261696e");
  Check(List{100, "ckpt/", "ckpt/a-1"}, "640000000500636b70742f0800636b70742f612d31");
  Check(List{100, "ckpt/", "ckpt/a-1", true}, "640000000500636b70742f0800636b70742f612d3101", true);
  Check(ListReply{true, {{"train", 9, 4096, 2}}},
        "01000000010000000500747261696e090000000000000000100000000000000200000000000000");
  ListReply told{false, {{"a", 9, 1, 2, "ec:4+2"}, {"b", 9, 1, 2, ""}}};
  Check(
      told,
      "00000000020000000100610900000000000000010000000000000002000000000000000100620900000000000000"
      "01000000000000000200000000000000060065633a342b320000",
      /*open_ended=*/true);
  // What a later version may have is taken; what a terminal would obey is not.
  for (const auto& [text, is_good] :
       {std::pair("ec:16+4,lrc", false), std::pair("r9", true), std::pair("R2", false),
        std::pair("\x1b", false), std::pair("0123456789abcdef", true),
        std::pair("0123456789abcdef0", false)}) {
    told.entries[0].durability = text;
    EXPECT_EQ(static_cast<bool>(ListReply::Decode(told.Encode())), is_good) << text;
  }
}

TEST(MessagesTest, Plans) {
  Check(
      PlanSet{.plan_id = 7,
              .revision = 9,
              .seed = 0x1122334455667788,
              .epoch = 3,
              .first = 256,
              .end = 1024,
              .block = 64,
              .window = 8,
              .step_size = 256,
              .world_size = 4,
              .rank = 1,
              .name = "train"},
      "07000000010000000900000000000000887766554433221103000000000000000001000000000000000400000000"
      "000040000000080000000001000004000000010000000500747261696e");
  Check(PlanCancel{7}, "07000000");
}

TEST(MessagesTest, APlanThatCannotBeFollowedIsRefused) {
  const PlanSet good{.end = 8, .step_size = 4, .world_size = 2, .rank = 1, .name = "a"};
  ASSERT_TRUE(PlanSet::Decode(good.Encode()));
  const auto refused = [&](auto change) {
    PlanSet bad = good;
    change(bad);
    return !PlanSet::Decode(bad.Encode());
  };
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.plan_id = 0; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.first = 9; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.rank = 2; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.world_size = plan.rank = 0; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.step_size = 1; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.block = 1; }));
  EXPECT_TRUE(refused([](PlanSet& plan) { plan.name = "../a"; }));
}

TEST(MessagesTest, Metadata) {
  MetadataPage page;
  page.Add({"a", 3, {std::byte{1}, std::byte{2}}});
  page.Add({"bc", 4, {}});
  const std::string entries =
      "02000000"
      "010061"
      "0300000000000000"
      "02000000"
      "0102"
      "02006263"
      "0400000000000000"
      "00000000";
  Check(MetadataList{9, "a"}, "0900000000000000010061");
  Check(MetadataListReply{9, true, page}, "090000000000000001000000" + entries);
  Check(MetadataPut{7, true, page}, "070000000000000001000000" + entries);
  Check(MetadataHistory{MetadataHistory::Action::kConfirm, false, 7},
        "02000000000000000700000000000000");
  Check(AskKnown{true, "a"}, "01000000010061");
  Check(KnownReply{1, 2, 3, 4, false, page},
        "0100000000000000020000000000000003000000000000000400000000000000"
        "00000000" +
            entries);
  std::swap(page.entries[0], page.entries[1]);
  EXPECT_FALSE(MetadataListReply::Decode(MetadataListReply{9, false, page}.Encode()));
  EXPECT_FALSE(MetadataPut::Decode(MetadataPut{0, true, {}}.Encode()));
}

TEST(MessagesTest, APageOfMetadataEndsBeforeItIsTooLarge) {
  MetadataPage page;
  EXPECT_TRUE(page.Add({"a", 1, std::vector<std::byte>(MetadataPage::kSizeMax)}));
  EXPECT_FALSE(page.Add({"b", 1, {}}));
  EXPECT_EQ(page.entries.size(), 1U);
}

TEST(MessagesTest, Clusters) {
  Check(ClusterMap{7}, "07000000");
  ClusterMapReply reply{.version = 7, .replicas = 2, .node = "n1"};
  for (std::uint8_t i = 0; i < reply.cluster.size(); ++i) reply.cluster[i] = std::byte{i};
  reply.nodes = {{"n1", "a:9400", "r1", 1, MemberState::kIn, true},
                 {"n2", "", "r2", 3, MemberState::kDraining, false}};
  Check(reply,
        "0700000002000000000102030405060708090a0b0c0d0e0f02006e310200000002006e310600613a39343030"
        "02007231010000000001000002006e320000020072320300000001000000");
  ClusterMapReply waited{.version = 7, .replicas = 2, .node = "n1"};
  waited.waiting = {{"n3", "c:1", 0x1122334455667788, "d3"}};
  Check(waited,
        "07000000020000000000000000000000000000000000000002006e310000000001000000"
        "02006e330300633a31887766554433221102006433",
        /*open_ended=*/true);
  waited.waiting.push_back(waited.waiting.front());  // Once each.
  EXPECT_FALSE(ClusterMapReply::Decode(waited.Encode()));
  Check(SetMember{MemberState::kDraining, "n2"}, "0100000002006e32");
  Check(SetLevel{7}, "07000000");
  Check(AskHoldings{7, {{Counting(1), 4096, 0x1122334455667788}}},
        "07000000010000000102030405060708090a0b0c0d0e0f1000100000000000008877665544332211");
  using Holding = HoldingsReply::Holding;
  Check(HoldingsReply{{Holding::kPromised, Holding::kAbsent, Holding::kHeld}}, "03000000020001");
  Check(AskHeard{{1, 0x1122334455667788}}, "0200000001000000000000008877665544332211");
  Check(AskBuried{{"deletes/a", "deletes/bc"}},
        "02000000090064656c657465732f610a0064656c657465732f6263");
  Check(AskFilled{7}, "07000000");
  Check(FlagsReply{{true, false}}, "020000000100");
}

TEST(MessagesTest, NodesOfAClusterAreInOrderAndKnown) {
  const ClusterMapReply good{.node = "n1", .nodes = {{"n1", "a:1", "d"}, {"n2", "b:1", "d"}}};
  ASSERT_TRUE(ClusterMapReply::Decode(good.Encode()));
  const auto refused = [&](auto change) {
    ClusterMapReply bad = good;
    change(bad);
    return !ClusterMapReply::Decode(bad.Encode());
  };
  EXPECT_TRUE(refused([](ClusterMapReply& reply) { reply.replicas = 0; }));
  EXPECT_TRUE(refused([](ClusterMapReply& reply) { reply.node = ""; }));
  EXPECT_TRUE(refused([](ClusterMapReply& reply) { reply.nodes[1].id = "n1"; }));
  EXPECT_TRUE(refused([](ClusterMapReply& reply) { reply.nodes[1].id = "a"; }));
  EXPECT_TRUE(refused([](ClusterMapReply& reply) { reply.nodes[1].id = std::string(65, 'n'); }));
  EXPECT_TRUE(
      refused([](ClusterMapReply& reply) { reply.nodes[1].state = static_cast<MemberState>(4); }));
  EXPECT_FALSE(SetMember::Decode(SetMember{MemberState::kWaiting, "n2"}.Encode()));
  // Nothing is asked about, or more than anybody may ask about at once.
  EXPECT_FALSE(AskHoldings::Decode(Spelled("0700000000000000")));
  EXPECT_FALSE(AskHeard::Decode(Spelled("00000000")));
  EXPECT_FALSE(AskBuried::Decode(Spelled("00000000")));
  std::vector<std::byte> many(4 + 8 * (AskHeard::kCountMax + 1));
  StoreLittleEndian(std::span(many), 0, AskHeard::kCountMax + 1);
  EXPECT_FALSE(AskHeard::Decode(many));
  EXPECT_FALSE(HoldingsReply::Decode(Spelled("0100000003")));
}

TEST(MessagesTest, OptionsOfABatchAreThoseThatAreWrittenDownAndOthersAreRefused) {
  static_assert(BatchRead::kDoubted == 1 && BatchRead::kBring == 2 &&
                BatchRead::kNamesDisk == 4);  // As protocol.md says.
  BatchRead batch;
  batch.entries = {{1, 2, 3, 0}};
  for (std::uint8_t options = 0; options < 8; ++options) {
    batch.options = options;
    const auto bytes = batch.Encode();
    EXPECT_EQ(bytes[21], std::byte{options});
    EXPECT_EQ(BatchRead::Decode(bytes).value(), batch);
  }
  auto bytes = batch.Encode();
  bytes[21] = std::byte{8};
  EXPECT_FALSE(BatchRead::Decode(bytes));
}

TEST(MessagesTest, CountsAreRefusedBeforeAllocation) {
  // A body of a few bytes that claims billions of entries.
  EXPECT_FALSE(BatchRead::Decode(Spelled("03000000ffffffff00000100d00700000000000001000000")));
  EXPECT_FALSE(ExtentBind::Decode(Spelled("00000000ffffffff")));
  EXPECT_FALSE(ExtentBind::Decode(Spelled("ffffffff01000000000102030405060708090a0b0c0d0e0f")));
  EXPECT_FALSE(ListReply::Decode(Spelled("00000000ffffffff")));
  EXPECT_FALSE(AskHoldings::Decode(Spelled("07000000ffffffff")));
  EXPECT_FALSE(AskHeard::Decode(Spelled("ffffffff")));
  EXPECT_FALSE(AskBuried::Decode(Spelled("ffffffff")));
  EXPECT_FALSE(FlagsReply::Decode(Spelled("ffffffff01")));
  EXPECT_FALSE(BatchDone::Decode(
      Spelled("ffffffff0100000000040000000000000a00000014000000000000001e00000006")));
}

TEST(MessagesTest, ACredentialHasItsLimit) {
  constexpr std::size_t kLimit = 3072;
  const auto body_with = [](std::size_t size) {
    auto body = Hello{}.Encode();
    StoreLittleEndian(std::span(body), 12, static_cast<std::uint32_t>(size));
    body.resize(body.size() + size);
    return body;
  };
  EXPECT_EQ(Hello::Decode(body_with(kLimit)).value().credential.size(), kLimit);
  EXPECT_FALSE(Hello::Decode(body_with(kLimit + 1)));
}

TEST(MessagesTest, StatusesMustAgreeWithTheirCounts) {
  using enum EntryStatus;
  const auto is_good = [](std::uint32_t ok, std::uint32_t failed, std::vector<EntryStatus> each) {
    const bool is_done = bool(BatchDone::Decode(
        BatchDone{.ok_count = ok, .failed_count = failed, .statuses = each}.Encode()));
    EXPECT_EQ(bool(ExtentBindReply::Decode(ExtentBindReply{ok, failed, each}.Encode())), is_done);
    return is_done;
  };
  EXPECT_TRUE(is_good(2, 0, {}));
  EXPECT_TRUE(is_good(1, 1, {kOk, kNotHere}));
  EXPECT_FALSE(is_good(1, 1, {kOk, kOk}));
  EXPECT_FALSE(is_good(1, 1, {kNotHere, kNotHere}));
  EXPECT_FALSE(is_good(1, 1, {kNotHere}));
  EXPECT_FALSE(is_good(0, 1, {kNotHere, kOk}));
  EXPECT_FALSE(is_good(2, 0, {kOk, kOk}));
}

TEST(MessagesTest, AVersionThatIsNotSharedNamesBothRanges) {
  EXPECT_TRUE(CommonVersion({.version_min = 0, .version_max = 9}));
  const auto version = CommonVersion({.version_min = 2, .version_max = 3});
  ASSERT_FALSE(version);
  EXPECT_NE(version.error().message.find("2 to 3"), std::string::npos) << version.error().message;
  EXPECT_NE(version.error().message.find("1 to 1"), std::string::npos) << version.error().message;
}

TEST(MessagesTest, ALongErrorIsCutAndStillFitsItsFrame) {
  const ErrorReply reply{ErrorCode::kIo, 5, std::string(5000, 'x')};
  const auto decoded = ErrorReply::Decode(reply.Encode());
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded.value().message.size(), 1024U);
}

TEST(MessagesTest, WhatAPeerSaysOfAnErrorIsOneLineWithoutControlCharacters) {
  const auto told = [](const char* message) {
    return ToError({ErrorCode::kIo, 5, message}, "peer").message;
  };
  EXPECT_EQ(told("disk full: 5 \xC3\xA9"), "peer: disk full: 5 \xC3\xA9");
  EXPECT_EQ(told("a\nevent=published\r\x1B[2J\x7F"), "peer: a?event=published??[2J?");
  EXPECT_EQ(told("\xC2\x9B"
                 "2J\xC2\xA0\xC2"),
            "peer: ??2J\xC2\xA0\xC2");
  EXPECT_EQ(told(""), "peer: ");
}

TEST(MessagesTest, NamesAreKeysAndNeverPaths) {
  for (const char* good : {"a", "train", "ckpt/run-1/step_000001.x", "A.b-c_d/0", "...", "a..b"})
    EXPECT_TRUE(CheckName(good)) << good;
  EXPECT_TRUE(CheckName(std::string(255, 'x')));
  for (const char* bad : {"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a b", "a\\b",
                          "\xC3\xA4", "a\n", "a:b", "*"}) {
    const auto checked = CheckName(bad);
    ASSERT_FALSE(checked) << bad;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(CheckName(std::string(256, 'x')));
  EXPECT_FALSE(CheckName(std::string("a\0b", 3)));
}

}  // namespace
}  // namespace ffrecord::net
