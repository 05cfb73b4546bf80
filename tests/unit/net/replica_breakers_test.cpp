// Goal: a node that fails again and again is left alone for a while, comes back with its first
// success, and costs no batch that another node can serve.
// Method: the state machine alone, with a virtual clock; errors are noted by hand.

#include <gtest/gtest.h>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

TEST_F(ReplicaReadsTest, ThreeErrorsInTenSecondsOpenTheBreakerAndASuccessClosesIt) {
  Start(2);
  const auto fail = [&] { health_->Failed(0, now_); };
  fail();
  EXPECT_FALSE(health_->MayAsk(0, now_));
  now_ += 1s;
  EXPECT_TRUE(health_->TakeProbe(0, now_));
  EXPECT_FALSE(health_->TakeProbe(0, now_));
  fail();
  now_ += 1s;
  EXPECT_TRUE(health_->TakeProbe(0, now_));
  fail();  // The third.
  now_ += 29s;
  EXPECT_FALSE(health_->TakeProbe(0, now_));
  now_ += 1s;
  EXPECT_TRUE(health_->TakeProbe(0, now_));
  fail();
  now_ += 59s;
  EXPECT_FALSE(health_->TakeProbe(0, now_));
  now_ += 1s;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(health_->TakeProbe(0, now_));
    fail();
    now_ += 300s;
  }
  EXPECT_TRUE(health_->TakeProbe(0, now_));
  health_->Succeeded(0);
  EXPECT_TRUE(health_->MayAsk(0, now_));
  fail();
  now_ += 1s;
  EXPECT_TRUE(health_->TakeProbe(0, now_));  // It counts from the beginning.
}

TEST_F(ReplicaReadsTest, ErrorsBeforeASuccessDoNotCount) {
  const auto fail_twice = [&] {
    for (int i = 0; i < 2; ++i) {
      health_->Failed(0, now_);
      now_ += 1s;
      EXPECT_TRUE(health_->TakeProbe(0, now_));
    }
  };
  fail_twice();
  health_->Succeeded(0);
  fail_twice();  // Four in ten seconds, and never three in a row.
}

TEST_F(ReplicaReadsTest, ErrorsOfRequestsFromBeforeTheBreakerOpenedDoNotProlongItsPause) {
  for (int i = 0; i < 3; ++i) {
    health_->Failed(0, now_);
    now_ += 1s;
  }
  const auto opened = now_ - 1s;
  for (int i = 0; i < 5; ++i) {
    health_->Failed(0, now_);
    now_ += 1s;
  }
  now_ = opened + ReplicaHealth::kPauseMin;
  EXPECT_TRUE(health_->TakeProbe(0, now_));
}

TEST_F(ReplicaReadsTest, ErrorsFarApartDoNotOpenTheBreaker) {
  for (int i = 0; i < 5; ++i) {
    health_->Failed(0, now_);
    now_ += 6s;
    EXPECT_TRUE(health_->TakeProbe(0, now_));
  }
}

TEST_F(ReplicaReadsTest, WhatManyReadersNoticeAtOnceIsOneError) {
  for (int i = 0; i < 5; ++i) {
    health_->Failed(0, now_);
    now_ += 30ms;
  }
  now_ += 1s;
  EXPECT_TRUE(health_->TakeProbe(0, now_));
}

TEST_F(ReplicaReadsTest, AProbeThatAnswersBringsTheNodeBack) {
  Start(2);
  health_->SetDistance(0, 0);
  health_->SetDistance(1, 1);
  EXPECT_EQ(ReadOne(1), 0U);
  health_->Failed(0, now_);
  EXPECT_EQ(ReadOne(2), 1U);
  now_ += 1s;
  EXPECT_EQ(ReadOne(3), 1U);  // With the probe, which is answered.
  EXPECT_EQ(ReadOne(4), 0U);
}

TEST_F(ReplicaReadsTest, OpenBreakersDoNotFailABatch) {
  for (NodeIndex node = 0; node < 3; ++node) health_->Failed(node, now_);
  Begin(1, 1);
  Arrive(Only<Reads::Send>().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaReadsTest, EntriesThatFailSayNothingAgainstTheirNode) {
  Begin(1, 1);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0, ErrorCode::kCorruption);
  EXPECT_TRUE(health_->MayAsk(first.node, now_));
}

}  // namespace
}  // namespace ffrecord::net
