// The exact choice of a row's best pools: score descending, ties to the lower pool (index_select.h). A row's scores are
// cut into chunks of 16,384; a block finds a chunk's best budget + 1, a second kernel the best of all chunks' (or of
// the scores themselves where there is one chunk): exact, as a pool among the best of all is among the best of its
// chunk. Both hold their entries in registers and find the cut digit by digit with a histogram of whole numbers; what
// is taken leaves in ascending order. A score that is NaN is the worst. Floor: the scores read once, 0.9 ps a pool and
// row at 4.4 TB/s.
#include "device/kernel.h"
#include "ops/index/index_select_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

constexpr int32_t kpool = TANDEM_INDEX_KPOOL;
constexpr int32_t threads = 1024, warps = threads / 32;
constexpr int32_t entries = ops::index_chunk / threads;  // of a thread: threadIdx.x + i·threads
constexpr int32_t bins = 2048;

// Larger is better; −0 is 0.
TANDEM_DEVICE uint32_t ordered(float score) {
  const uint32_t bits = float_to_bits(score);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0;
  if ((bits & 0x7fffffffu) == 0) return 0x80000000u;
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
TANDEM_DEVICE float score_of(uint32_t key) {
  if (key == 0) return bits_to_float(0x7fc00000u);
  return bits_to_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

struct Shared {
  uint32_t histogram[bins];  // later: flags of each warp and entry
  uint32_t of_warps[warps];
  uint32_t digit, rest, in_bin;
};

// The sum of x over the block's lower threads; `total`: over all.
TANDEM_DEVICE uint32_t exclusive_scan(uint32_t x, uint32_t* of_warps, uint32_t& total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = x;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t lower = shuffle(sum, lane >= step ? lane - step : lane);
    if (lane >= step) sum += lower;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  uint32_t up_to = of_warps[lane];  // over the warps up to this lane's number
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t lower = shuffle(up_to, lane >= step ? lane - step : lane);
    if (lane >= step) up_to += lower;
  }
  total = shuffle(up_to, warps - 1);
  const uint32_t before = shuffle(up_to, warp == 0 ? 0 : warp - 1);
  return (warp == 0 ? 0 : before) + sum - x;
}

// Places of flagged entries in ascending order: of entry i of this thread, for which bit i of `flags` stands, the
// number of flagged entries before it. Entries from n on have no flags.
TANDEM_DEVICE void rank_flags(uint32_t flags, int32_t n, Shared& shared, uint32_t (&rank)[entries]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, lower = (1u << lane) - 1u;
  __syncthreads();
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if (i * threads >= n) break;
    const uint32_t votes = device::ballot((flags >> i & 1u) != 0);
    rank[i] = static_cast<uint32_t>(count_bits(votes & lower));
    if (lane == 0) shared.histogram[i * warps + static_cast<int32_t>(warp)] = static_cast<uint32_t>(count_bits(votes));
  }
  __syncthreads();
  const bool counts = static_cast<int32_t>(threadIdx.x) < (n + threads - 1) / threads * warps;
  const uint32_t mine = counts ? shared.histogram[threadIdx.x] : 0;
  uint32_t total;
  const uint32_t before = exclusive_scan(mine, shared.of_warps, total);
  if (counts) shared.histogram[threadIdx.x] = before;
  __syncthreads();
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if (i * threads >= n) break;
    rank[i] += shared.histogram[i * warps + static_cast<int32_t>(warp)];
  }
}

// Which of the block's n entries are among the `budget` < n best; bit i: entry i of this thread.
TANDEM_DEVICE uint32_t best_entries(const uint32_t (&keys)[entries], int32_t n, uint32_t budget, Shared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t prefix = 0, mask = 0, rest = budget, equal = 0;  // of those equal to the cut, `equal` are taken
  bool whole_bin = false;
#pragma unroll 1
  for (int32_t round = 0; round < 3 && !whole_bin; ++round) {
    const uint32_t shift = round == 0 ? 21 : round == 1 ? 10 : 0, count = round == 2 ? 1024 : 2048;
    __syncthreads();
    for (int32_t i = thread; i < bins; i += threads) shared.histogram[i] = 0;
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < entries; ++i) {
      if (i * threads >= n) break;
      if (thread + i * threads < n && (keys[i] & mask) == prefix)
        atomic_add(&shared.histogram[keys[i] >> shift & (count - 1)], 1u);
    }
    __syncthreads();
    // Bins from the top, two a thread.
    const uint32_t high = bins - 1 - 2 * threadIdx.x, low = high - 1;
    const uint32_t in_high = shared.histogram[high], in_low = shared.histogram[low];
    uint32_t total;
    const uint32_t above = exclusive_scan(in_high + in_low, shared.of_warps, total);
    const bool in_first = above < rest && rest <= above + in_high;
    const bool in_second = above + in_high < rest && rest <= above + in_high + in_low;
    if (in_first || in_second) {
      shared.digit = in_first ? high : low;
      shared.rest = rest - above - (in_first ? 0 : in_high);
      shared.in_bin = in_first ? in_high : in_low;
    }
    __syncthreads();
    prefix |= shared.digit << shift;
    mask |= (count - 1) << shift;
    rest = shared.rest;
    whole_bin = rest == shared.in_bin;
  }
  const uint32_t cut = prefix;
  equal = rest;
  uint32_t flags = 0, ties = 0;
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if (thread + i * threads >= n) continue;
    const uint32_t key = keys[i] & mask;
    flags |= static_cast<uint32_t>(key > cut || (whole_bin && key == cut)) << i;
    ties |= static_cast<uint32_t>(!whole_bin && key == cut) << i;
  }
  if (whole_bin) return flags;
  uint32_t rank[entries];
  rank_flags(ties, n, shared, rank);
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if ((ties >> i & 1u) != 0 && rank[i] < equal) flags |= 1u << i;
  }
  return flags;
}

TANDEM_DEVICE int32_t pools_of_row(const ops::IndexSelectArgs& args, int32_t row) {
  return (args.step.positions[row] + 1) / kpool;
}

TANDEM_KERNEL(index_chunks, ops::IndexBatch, 1024) {
  __shared__ Shared shared;
  const ops::IndexSelectArgs& select = args.select;
  const auto number = static_cast<int32_t>(blockIdx.y), row = args.first_row + number;
  if (row >= select.step.counts[ops::step_rows]) return;
  const int32_t pools = pools_of_row(select, row), first = static_cast<int32_t>(blockIdx.x) * ops::index_chunk;
  if (pools <= ops::index_chunk || pools <= select.budget || first >= pools) return;
  const int32_t n = pools - first < ops::index_chunk ? pools - first : ops::index_chunk;
  const float* scores = args.scores + static_cast<int64_t>(number) * select.max_pools + first;
  uint32_t keys[entries];
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t entry = static_cast<int32_t>(threadIdx.x) + i * threads;
    keys[i] = entry < n ? ordered(scores[entry]) : 0;
  }
  const auto most = static_cast<uint32_t>(select.budget) + 1;
  const uint32_t all = (1u << entries) - 1u;
  const uint32_t flags = static_cast<uint32_t>(n) <= most ? all : best_entries(keys, n, most, shared);
  uint32_t rank[entries];
  rank_flags(flags, n, shared, rank);
  const int64_t at = (static_cast<int64_t>(number) * args.max_chunks + blockIdx.x) * most;
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t entry = static_cast<int32_t>(threadIdx.x) + i * threads;
    if ((flags >> i & 1u) == 0 || entry >= n) continue;
    args.candidate_keys[at + rank[i]] = keys[i];
    args.candidate_pools[at + rank[i]] = first + entry;
  }
}

// A row that sees no more pools than the budget: every token.
TANDEM_DEVICE void choose_all(const ops::IndexSelectArgs& args, int32_t row) {
  const int32_t tokens = args.step.positions[row] + 1;
  int32_t* selected = args.selected + static_cast<int64_t>(row) * args.max_selected;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < tokens; i += threads) selected[i] = i;
  if (threadIdx.x != 0) return;
  args.counts[row] = tokens;
  if (args.gaps != nullptr) args.gaps[row] = bits_to_float(0x7f800000u);
}

// The distance of the scores at the cut: the worst that is taken less the best that is not.
TANDEM_DEVICE void store_gap(const ops::IndexSelectArgs& args, int32_t row, const uint32_t (&keys)[entries], int32_t n,
                             uint32_t flags, Shared& shared) {
  uint32_t worst = 0xffffffffu, next = 0;
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if (static_cast<int32_t>(threadIdx.x) + i * threads >= n) continue;
    if ((flags >> i & 1u) != 0) {
      worst = keys[i] < worst ? keys[i] : worst;
    } else {
      next = keys[i] > next ? keys[i] : next;
    }
  }
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const uint32_t other_worst = shuffle_xor(worst, mask), other_next = shuffle_xor(next, mask);
    worst = other_worst < worst ? other_worst : worst;
    next = other_next > next ? other_next : next;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared.histogram[threadIdx.x / 32] = worst;
    shared.histogram[warps + threadIdx.x / 32] = next;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int32_t i = 0; i < warps; ++i) {
    worst = shared.histogram[i] < worst ? shared.histogram[i] : worst;
    next = shared.histogram[warps + i] > next ? shared.histogram[warps + i] : next;
  }
  args.gaps[row] = score_of(worst) - score_of(next);
}

TANDEM_KERNEL(index_choose, ops::IndexBatch, 1024) {
  __shared__ Shared shared;
  const ops::IndexSelectArgs& select = args.select;
  const auto number = static_cast<int32_t>(blockIdx.x), row = args.first_row + number;
  if (row >= select.step.counts[ops::step_rows]) return;
  const int32_t pools = pools_of_row(select, row);
  if (pools <= select.budget) return choose_all(select, row);
  const bool chunked = pools > ops::index_chunk;
  const int32_t most = select.budget + 1, last = pools % ops::index_chunk;
  const int64_t at = static_cast<int64_t>(number) * args.max_chunks * most;
  const int32_t n = chunked ? pools / ops::index_chunk * most + (last < most ? last : most) : pools;
  const float* scores = args.scores + static_cast<int64_t>(number) * select.max_pools;
  uint32_t keys[entries];
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t entry = static_cast<int32_t>(threadIdx.x) + i * threads;
    keys[i] = entry >= n ? 0 : chunked ? args.candidate_keys[at + entry] : ordered(scores[entry]);
  }
  const uint32_t flags = best_entries(keys, n, static_cast<uint32_t>(select.budget), shared);
  uint32_t rank[entries];
  rank_flags(flags, n, shared, rank);
  int32_t* selected = select.selected + static_cast<int64_t>(row) * select.max_selected;
#pragma unroll
  for (int32_t i = 0; i < entries; ++i) {
    if ((flags >> i & 1u) == 0) continue;
    const int32_t entry = static_cast<int32_t>(threadIdx.x) + i * threads;
    const int32_t pool = chunked ? args.candidate_pools[at + entry] : entry;
    for (int32_t j = 0; j < kpool; ++j) selected[static_cast<int32_t>(rank[i]) * kpool + j] = pool * kpool + j;
  }
  const int32_t tail = (select.step.positions[row] + 1) % kpool;
  if (static_cast<int32_t>(threadIdx.x) < tail)
    selected[select.budget * kpool + static_cast<int32_t>(threadIdx.x)] =
        pools * kpool + static_cast<int32_t>(threadIdx.x);
  if (threadIdx.x == 0) select.counts[row] = select.budget * kpool + tail;
  if (select.gaps != nullptr) store_gap(select, row, keys, n, flags, shared);
}

}  // namespace
