// Goal: a call finds again what an earlier call of its thread left, and never what another call
// still uses. Method: scratch memory that counts its own makings and endings, borrowed one after
// the other, one inside another, in several threads, at a thread's end and in a forked child.

#include "libffrecord/base/thread_scratch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "child.h"

namespace ffrecord {
namespace {

std::atomic<int> alive{0};

template <int kTag>
struct Memory {
  Memory() { ++alive; }
  ~Memory() { --alive; }
  bool Recycle() {
    dropped.clear();
    return kept.size() <= 100;
  }
  std::vector<int> kept;
  std::vector<int> dropped;
};

TEST(ThreadScratchTest, TheNextCallFindsWhatTheLastOneLeft) {
  using Scratch = ThreadScratch<Memory<0>>;
  Memory<0>* first = nullptr;
  {
    Scratch scratch;
    first = &*scratch;
    scratch->kept = {1, 2, 3};
    scratch->dropped = {4};
  }
  EXPECT_EQ(alive, 1);
  const Scratch again;
  EXPECT_EQ(&*again, first);
  EXPECT_EQ(again->kept, (std::vector{1, 2, 3}));
  EXPECT_TRUE(again->dropped.empty());
}

TEST(ThreadScratchTest, WhatIsTooLargeIsNotKept) {
  using Scratch = ThreadScratch<Memory<1>>;
  const int before = alive;
  for (const std::size_t size : {std::size_t{100}, std::size_t{101}}) {
    Scratch()->kept.resize(size);
    EXPECT_EQ(alive, before + (size <= 100 ? 1 : 0));
  }
  EXPECT_TRUE(Scratch()->kept.empty());
}

TEST(ThreadScratchTest, ACallInsideAnotherHasItsOwn) {
  using Scratch = ThreadScratch<Memory<2>>;
  const int before = alive;
  {
    const Scratch outer;
    outer->kept = {1};
    for (int i = 0; i < 2; ++i) {
      const Scratch inner;
      EXPECT_NE(&*inner, &*outer);
      EXPECT_EQ(inner->kept.size(), i == 0 ? 0U : 1U);  // The second finds what the first left.
      inner->kept = {2};
    }
    EXPECT_EQ(outer->kept, (std::vector{1}));
  }
  EXPECT_EQ(alive, before + 1);  // One is kept, not one for each depth.
}

TEST(ThreadScratchTest, EachKindAndEachThreadHasItsOwn) {
  const ThreadScratch<Memory<3>> here;
  here->kept = {1};
  EXPECT_TRUE(ThreadScratch<Memory<4>>()->kept.empty());
  const int before = alive;
  std::thread([&] {
    const ThreadScratch<Memory<3>> there;
    EXPECT_NE(&*there, &*here);
    EXPECT_TRUE(there->kept.empty());
  }).join();
  EXPECT_EQ(alive, before);  // It ended with its thread.
}

TEST(ThreadScratchTest, MayBeBorrowedAtTheThreadsEnd) {
  using Scratch = ThreadScratch<Memory<5>>;
  struct Last {
    ~Last() {
      const Scratch scratch;
      found_empty = scratch->kept.empty();
      scratch->kept = {2};
    }
    bool& found_empty;
  };
  bool found_empty = false;
  const int before = alive;
  std::thread([&] {
    thread_local const Last last{found_empty};  // Made first, so it ends last.
    (void)&last;
    Scratch()->kept = {1};
  }).join();
  EXPECT_TRUE(found_empty);
  EXPECT_EQ(alive, before);
}

TEST(ThreadScratchTest, AForkedChildGoesOnWithTheMemoryOfItsThread) {
  using Scratch = ThreadScratch<Memory<6>>;
  Scratch()->kept = {1};
  EXPECT_EQ(test::RunInChild([] {
              EXPECT_EQ(Scratch()->kept, (std::vector{1}));
              Scratch()->kept = {2};
              return 0;
            }),
            0);
  EXPECT_EQ(Scratch()->kept, (std::vector{1}));
}

}  // namespace
}  // namespace ffrecord
