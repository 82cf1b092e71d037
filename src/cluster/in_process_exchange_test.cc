// Exchanges between threads: everybody gets everybody's values, and nobody waits for a rank that is gone.
#include "cluster/in_process_exchange.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"

namespace tandem::cluster::in_process_exchange_test {
namespace {

// Runs body(rank, exchange) on a thread for each rank and joins them.
template <typename Body>
void on_ranks(InProcessHub& hub, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < hub.ranks(); ++rank) {
    threads.emplace_back([&hub, &body, rank] {
      InProcessExchange exchange(hub, rank);
      body(rank, exchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InProcessExchange, EveryRankGetsAllValuesInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    InProcessHub hub(ranks, 7);
    std::atomic<int> wrong{0};
    on_ranks(hub, [&](int rank, device::Exchange& exchange) {
      EXPECT_EQ(exchange.rank(), rank);
      EXPECT_EQ(exchange.ranks(), ranks);
      for (int round = 0; round < 2000; ++round) {
        const auto n = static_cast<size_t>(1 + round % 7);
        std::vector<float> all(n * static_cast<size_t>(ranks));
        const std::span<float> mine = std::span(all).subspan(n * static_cast<size_t>(rank), n);  // in place
        for (float& value : mine) value = static_cast<float>(1000 * rank + round);
        exchange.all_gather(mine, all);
        for (size_t i = 0; i < all.size(); ++i)
          wrong += all[i] != static_cast<float>(1000 * static_cast<int>(i / n) + round) ? 1 : 0;
      }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(hub.exchanges(), 2000);
  }
}

TEST(InProcessExchange, ValuesMayBeChangedAfterwards) {
  InProcessHub hub(2, 4);
  std::atomic<int> wrong{0};
  on_ranks(hub, [&](int rank, device::Exchange& exchange) {
    float mine = 0;
    for (int round = 0; round < 5000; ++round) {
      float all[2];
      mine = static_cast<float>(2 * round + rank);
      exchange.all_gather({&mine, 1}, all);
      mine = -1;  // the other rank must have its copy by now
      wrong += all[0] != static_cast<float>(2 * round) || all[1] != static_cast<float>(2 * round + 1) ? 1 : 0;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(hub.bytes(), 5000 * 4) << "from the other rank alone";
}

TEST(InProcessExchange, ARankThatFailsFreesTheOthers) {
  for (const bool late : {false, true}) {  // before the others wait, or while they sleep
    InProcessHub hub(3, 4);
    std::atomic<int> freed{0};
    on_ranks(hub, [&](int rank, device::Exchange& exchange) {
      float mine = 1, all[3];
      if (rank == 1) {
        if (late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return hub.fail(rank);
      }
      for (int again = 0; again < 2; ++again) {  // and ever after
        try {
          exchange.all_gather({&mine, 1}, all);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::internal);
          EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
          ++freed;
        }
      }
    });
    EXPECT_EQ(freed, 4);
    EXPECT_EQ(hub.failed_rank(), 1);
  }
}

TEST(InProcessExchange, TheFirstToFailIsRemembered) {
  InProcessHub hub(2, 4);
  EXPECT_EQ(hub.failed_rank(), -1);
  hub.fail(1);
  hub.fail(0);
  EXPECT_EQ(hub.failed_rank(), 1);
}

TEST(InProcessExchange, SizesThatDifferAreErrors) {
  InProcessHub hub(2, 4);
  std::atomic<int> errors{0};
  on_ranks(hub, [&](int rank, device::Exchange& exchange) {
    std::vector<float> all(static_cast<size_t>(rank == 0 ? 2 : 4));
    try {
      exchange.all_gather(std::span(all).first(all.size() / 2), all);
    } catch (const Error&) {
      ++errors;
      hub.fail(rank);
    }
  });
  EXPECT_EQ(errors, 2);
  InProcessHub one(1, 4);
  InProcessExchange exchange(one, 0);
  std::vector<float> values(3);
  EXPECT_THROW(exchange.all_gather(std::span(values).first(1), values), Error);
  std::vector<float> many(5);
  EXPECT_THROW(exchange.all_gather(many, many), Error);
}

}  // namespace
}  // namespace tandem::cluster::in_process_exchange_test
