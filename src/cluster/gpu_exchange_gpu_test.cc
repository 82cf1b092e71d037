// Device memory between two ranks: every rank has both pieces, exchange after exchange in two memories by turns, though
// the queues run at different speeds; and what happens when a rank fails or gives another size.
#include <array>
#include <thread>

#include "base/error.h"
#include "cluster/gpu_exchange.h"
#include "device/test_gpu.h"

namespace tandem::cluster::gpu_exchange_gpu_test {
namespace {

constexpr int64_t most_bytes = 64 << 10;

template <typename Body>
void on_both_ranks(bool direct, const Body& body) {
  InProcessHub hub(2, direct ? DirectGpuExchange::hub_values : most_bytes / 4);
  std::array<std::thread, 2> threads;
  for (int rank = 0; rank < 2; ++rank) {
    device::Gpu& gpu = rank == 0 ? device::gpu_under_test() : device::second_gpu_under_test();
    threads[static_cast<size_t>(rank)] = std::thread([&, rank] {
      try {
        InProcessExchange values(hub, rank);
        StagedGpuExchange staged(gpu, values, most_bytes);
        DirectGpuExchange straight(gpu, hub, rank);
        body(gpu, direct ? static_cast<device::GpuExchange&>(straight) : staged);
      } catch (const Error&) {
        hub.fail(rank);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuExchange, EveryRankHasBothPieces) {
  for (const bool direct : {false, true}) {
    constexpr int64_t exchanges = 40;
    std::array<int, 2> wrong{};
    on_both_ranks(direct, [&](device::Gpu& gpu, device::GpuExchange& exchange) {
      const int rank = exchange.rank();
      const device::GpuMemory memory = gpu.allocate(4 * most_bytes, "two memories"),
                              seen = gpu.allocate(2 * most_bytes * exchanges, "what was seen");
      const auto bytes_of = [](int64_t i) { return i % 3 == 0 ? most_bytes : 256 * (1 + i); };
      for (int64_t i = 0; i < exchanges; ++i) {
        std::byte* all = memory.data() + i % 2 * 2 * most_bytes;
        const int64_t bytes = bytes_of(i);
        gpu.fill(all + rank * bytes, static_cast<uint8_t>(3 * i + rank), bytes);
        exchange.all_gather(all, bytes);
        // One of the queues has more to do before it reads.
        for (int more = 0; more < (i % 2 == rank ? 20 : 0); ++more)
          gpu.fill(seen.data() + 2 * most_bytes * i, 0xee, 2 * most_bytes);
        gpu.copy(seen.data() + 2 * most_bytes * i, all, 2 * bytes);
      }
      std::vector<uint8_t> got(static_cast<size_t>(2 * most_bytes * exchanges));
      gpu.download(got.data(), seen.data(), std::ssize(got));
      gpu.synchronize();
      for (int64_t i = 0; i < exchanges; ++i) {
        const int64_t bytes = bytes_of(i);
        for (int64_t at = 0; at < 2 * bytes; ++at)
          wrong[static_cast<size_t>(rank)] +=
              got[static_cast<size_t>(2 * most_bytes * i + at)] != static_cast<uint8_t>(3 * i + at / bytes);
      }
    });
    EXPECT_EQ(wrong, (std::array<int, 2>{0, 0})) << (direct ? "direct" : "staged");
  }
}

TEST(GpuExchange, NobodyWaitsForARankThatHasFailed) {
  for (const bool direct : {false, true}) {
    std::string found;
    on_both_ranks(direct, [&](device::Gpu& gpu, device::GpuExchange& exchange) {
      const device::GpuMemory memory = gpu.allocate(512, "a piece of each");
      if (exchange.rank() == 1) throw Error(ErrorCode::internal, "a test", "a fault");
      try {
        exchange.all_gather(memory.data(), 256);
      } catch (const Error& e) {
        found = e.what();
      }
    });
    EXPECT_NE(found.find("rank 1 has failed"), std::string::npos) << found;
  }
}

TEST(GpuExchange, SizesMustAgree) {
  for (const bool direct : {false, true}) {
    std::array<std::string, 2> found;
    on_both_ranks(direct, [&](device::Gpu& gpu, device::GpuExchange& exchange) {
      const device::GpuMemory memory = gpu.allocate(1024, "a piece of each");
      try {
        exchange.all_gather(memory.data(), exchange.rank() == 0 ? 256 : 512);
      } catch (const Error& e) {
        found[static_cast<size_t>(exchange.rank())] = e.what();
      }
      gpu.synchronize();
    });
    for (const std::string& what : found) EXPECT_NE(what.find("gave"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace tandem::cluster::gpu_exchange_gpu_test
