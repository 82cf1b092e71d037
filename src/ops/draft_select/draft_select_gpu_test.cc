// draft_select.cu against draft_select.h.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "device/kernel_dimensions.h"
#include "device/test_gpu.h"
#include "ops/draft_select/draft_select.h"
#include "ops/draft_select/draft_select_cuda.h"
#include "ops/test_bf16.h"
#include "ops/test_random.h"

namespace tandem::ops::draft_select_gpu_test {
namespace {

using device::bf16;
using device::from_gpu;
using device::on_gpu;
using test::Random;

// logits [rows, vocab]; one row more than there are stays untouched.
void compare_top(const CudaDraftSelect& select, const std::vector<float>& logits, int64_t vocab, int64_t count) {
  device::Threads one(1);
  const auto rows = static_cast<int64_t>(logits.size()) / vocab;
  std::vector<int32_t> ids(static_cast<size_t>(rows * count));
  std::vector<float> values(ids.size());
  top_candidates(one, logits.data(), rows, vocab, count, ids.data(), values.data());

  const int64_t stride = vocab + 3;
  std::vector<float> spread = test::unwritten((rows + 1) * stride);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(logits.data() + r * vocab, vocab, spread.data() + r * stride);
  const auto gpu_logits = on_gpu(spread);
  const auto rows_there = on_gpu(std::vector<int32_t>{static_cast<int32_t>(rows)});
  const auto got_ids = on_gpu(std::vector<int32_t>(static_cast<size_t>((rows + 1) * count), -7));
  const auto got_values = on_gpu(test::unwritten((rows + 1) * count));
  const auto scratch =
      device::gpu_under_test().allocate(CudaDraftSelect::scratch_bytes(rows + 1, vocab, count), "scratch");
  TopCandidatesArgs args{};
  args.rows = rows_there.as<int32_t>();
  args.logits = gpu_logits.as<float>();
  args.logits_stride = stride;
  args.vocab_size = static_cast<int32_t>(vocab);
  args.first_id = 1000;
  args.count = static_cast<int32_t>(count);
  args.ids = got_ids.as<int32_t>();
  args.values = got_values.as<float>();
  select.top_candidates(args, rows + 1, scratch.data());
  const auto found = from_gpu<int32_t>(got_ids.data(), (rows + 1) * count);
  const auto found_values = from_gpu<float>(got_values.data(), (rows + 1) * count);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(found[i], 1000 + ids[i]) << vocab << " candidate " << i;
    EXPECT_EQ(found_values[i], values[i]) << vocab << " candidate " << i;
  }
  for (size_t i = ids.size(); i < found.size(); ++i) EXPECT_TRUE(found[i] == -7 && std::isnan(found_values[i]));
}

TEST(DraftSelectGpu, TopCandidatesAgainstTheCpu) {
  const CudaDraftSelect select(device::gpu_under_test(), device::model_defines({}));
  Random random(1);
  for (const auto& [vocab, count] : {std::pair<int64_t, int64_t>{1, 1}, {16, 16}, {700, 3}, {5000, 16}, {2048, 32}})
    compare_top(select, random.normals(3 * vocab, 3.0f), vocab, count);
}

TEST(DraftSelectGpu, TiesNansAndInfinities) {
  const CudaDraftSelect select(device::gpu_under_test(), device::model_defines({}));
  Random random(2);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits;
  for (int64_t i = 0; i < 2 * 1500; ++i) logits.push_back(static_cast<float>(random.below(5)) - 2.0f);  // ties
  for (int64_t i = 0; i < 1500; ++i) logits.push_back(i % 300 == 7 ? 1.0f : test::not_a_number);
  for (int64_t i = 0; i < 1500; ++i) logits.push_back(i % 2 == 0 ? -0.0f : i == 1001 ? infinity : 0.0f);
  logits.insert(logits.end(), 1500, -infinity);
  compare_top(select, logits, 1500, 16);
}

TEST(DraftSelectGpu, RealVocabulary) {
  if (device::gpu_is_emulated()) GTEST_SKIP() << "takes the emulator too long";
  const CudaDraftSelect select(device::gpu_under_test(), device::model_defines({}));
  compare_top(select, Random(3).normals(14 * 154880, 3.0f), 154880, 16);
}

// Products of bf16 values are added in fp32 in another order than on the CPU: 1e-6 of the largest edge.
TEST(DraftSelectGpu, EdgesAgainstTheCpu) {
  device::Threads one(1);
  const CudaDraftSelect select(device::gpu_under_test(), device::model_defines({}));
  for (const auto& [top_k, rank] : {std::pair<int32_t, int32_t>{16, 256}, {3, 20}}) {
    constexpr int32_t vocab = 100, streams = 2, rows = 3;
    Random random(static_cast<uint64_t>(rank));
    const auto predecessor = test::random_matrix(random, WeightFormat::bf16, vocab, rank),
               successor = test::random_matrix(random, WeightFormat::bf16, vocab, rank);
    const std::vector<float> g = as_bf16_values(random.normals((streams + 1) * rows * rank));
    std::vector<int32_t> ids, pending = {5, 99, 0};
    for (int32_t i = 0; i < (streams + 1) * rows * top_k; ++i) ids.push_back(static_cast<int32_t>(random.below(vocab)));
    std::vector<float> expected(static_cast<size_t>(streams * rows * top_k * top_k)),
        scratch(static_cast<size_t>(selector_scratch(top_k, rank)));
    SelectorEdges cpu;
    cpu.predecessor = &predecessor.view;
    cpu.successor = &successor.view;
    cpu.streams = streams;
    cpu.rows = rows;
    cpu.top_k = top_k;
    cpu.pending = pending.data();
    cpu.ids = ids.data();
    cpu.g = g.data();
    cpu.scratch = scratch.data();
    cpu.edges = expected.data();
    selector_edges(one, cpu);

    const auto a = on_gpu(predecessor.data), b = on_gpu(successor.data);
    const auto gpu_g = on_gpu(to_bf16(g));
    const auto gpu_ids = on_gpu(ids), gpu_pending = on_gpu(pending), count = on_gpu(std::vector<int32_t>{streams});
    const auto edges = on_gpu(test::unwritten((streams + 1) * rows * top_k * top_k));
    select.edges({count.as<int32_t>(), rows, top_k, rank, a.as<bf16>(), b.as<bf16>(), gpu_pending.as<int32_t>(),
                  gpu_ids.as<int32_t>(), gpu_g.as<bf16>(), edges.as<float>()},
                 streams + 1);
    const auto got = from_gpu<float>(edges.data(), (streams + 1) * rows * top_k * top_k);
    const std::vector<float> there(got.begin(), got.begin() + std::ssize(expected));
    EXPECT_TRUE(test::close(there, std::vector<double>(expected.begin(), expected.end()), 1e-6));
    for (size_t i = expected.size(); i < got.size(); ++i) EXPECT_TRUE(std::isnan(got[i]));
  }
}

TEST(DraftSelectGpu, RefusesWhatTheKernelsHaveNoRoomFor) {
  const CudaDraftSelect select(device::gpu_under_test(), device::model_defines({}));
  TopCandidatesArgs args{};
  args.vocab_size = 1000;
  args.count = 33;
  EXPECT_THROW(select.top_candidates(args, 1, nullptr), Error);
  SelectorEdgesArgs edges{};
  edges.top_k = 17;
  EXPECT_THROW(select.edges(edges, 1), Error);
}

}  // namespace
}  // namespace tandem::ops::draft_select_gpu_test
