// A token for every row of logits: engine/sampler.h on a GPU. Tokens are ordered by one 64-bit integer (logit
// descending, id ascending). top_k and top_p each find the last token that is kept: a histogram of the row by distance
// from its largest logit, then of the bin where the wanted weight is reached, until the tokens of a bin fit into shared
// memory; weights are integers, so the order of additions does not matter. Three kernels follow each other: sample_best
// and sample_weigh cut a row into parts, since a row's float64 exponentials (about 70 operations a token) would take
// one multiprocessor some 90 µs by its rate; sample_rows has a block a row. Floor: the logits read once from memory, 0.14 µs a row of
// 154,880; passes after the first read the second cache.
#include "device/kernel.h"
#include "ops/sample/portable_device.h"
#include "ops/sample/sample_args.h"

namespace {

using ops::SampleArgs;

constexpr int32_t bins = SampleArgs::bins, listed = SampleArgs::listed, threads = 512, warps = threads / 32,
                  bins_of_lane = bins / threads;
constexpr uint64_t none = ~uint64_t{0}, not_finite = 0;  // places that no token has: both would be of NaN
constexpr double greedy_temperature = 1e-5, mass_one = 0x1p40;

struct Shared {
  uint64_t weights[bins];
  uint64_t places[listed], place_weights[listed];
  uint64_t of_warp[warps], found[2];
  double score_of_warp[warps];
  int32_t count;
};

TANDEM_DEVICE float infinity() { return bits_to_float(0x7f800000u); }

// Smaller places come first. Equal logits are equal whatever the sign of a zero.
TANDEM_DEVICE uint64_t place_of(float logit, int32_t id) {
  const uint32_t bits = float_to_bits(logit == 0.0f ? 0.0f : logit);
  const uint32_t descending = bits >> 31 != 0 ? bits : ~(bits | 0x80000000u);
  return static_cast<uint64_t>(descending) << 32 | static_cast<uint32_t>(id);
}
TANDEM_DEVICE float logit_of(uint64_t place) {
  const uint32_t descending = static_cast<uint32_t>(place >> 32);
  return bits_to_float(descending >> 31 != 0 ? descending : ~descending & 0x7fffffffu);
}

TANDEM_DEVICE uint64_t shuffle_xor_64(uint64_t x, uint32_t mask) {
  const uint32_t low = shuffle_xor(static_cast<uint32_t>(x), mask);
  return static_cast<uint64_t>(shuffle_xor(static_cast<uint32_t>(x >> 32), mask)) << 32 | low;
}
TANDEM_DEVICE uint64_t shuffle_64(uint64_t x, uint32_t lane) {
  const uint32_t low = shuffle(static_cast<uint32_t>(x), lane);
  return static_cast<uint64_t>(shuffle(static_cast<uint32_t>(x >> 32), lane)) << 32 | low;
}
TANDEM_DEVICE uint64_t smallest_in_block(uint64_t x, Shared& shared) {
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const uint64_t other = shuffle_xor_64(x, mask);
    x = other < x ? other : x;
  }
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  for (int32_t warp = 0; warp < warps; ++warp) x = shared.of_warp[warp] < x ? shared.of_warp[warp] : x;
  __syncthreads();
  return x;
}

// A row and what has been found of it.
struct Row {
  ops::SampleRow params;
  const float* logits;
  const int32_t* masked;
  int32_t vocab_size;
  uint64_t best, last;  // the first and the last place that are kept
  double largest;       // logit of the best / temperature
};

TANDEM_DEVICE bool is_allowed(const Row& row, int32_t id, float logit) {
  bool allowed = id < row.params.size && logit > -infinity();
  for (int32_t i = 0; i < row.params.masked; ++i) allowed = allowed && row.masked[i] != id;
  return allowed;
}

// Ids of a row.
struct Ids {
  int32_t first, end;
};
TANDEM_DEVICE Ids all_ids(const Row& row) { return {0, row.vocab_size}; }
TANDEM_DEVICE Ids ids_of_part(const Row& row, int32_t part, int32_t parts) {
  const int32_t of_part = (row.vocab_size + parts - 1) / parts, first = part * of_part, end = first + of_part;
  return {first, end < row.vocab_size ? end : row.vocab_size};
}
// Calls f(id, logit) for this thread's share of the ids, ascending, with `Together` loads on their way at a time.
template <int32_t Together, typename F>
TANDEM_DEVICE void visit(const Row& row, const Ids& ids, const F& f) {
  int32_t id = ids.first + static_cast<int32_t>(threadIdx.x);
  for (; id + (Together - 1) * threads < ids.end; id += Together * threads) {
    float logits[Together];
#pragma unroll
    for (int32_t i = 0; i < Together; ++i) logits[i] = row.logits[id + i * threads];
#pragma unroll
    for (int32_t i = 0; i < Together; ++i) f(id + i * threads, logits[i]);
  }
  for (; id < ids.end; id += threads) f(id, row.logits[id]);
}

enum Weight { weight_count, weight_mass };
template <Weight weight>
TANDEM_DEVICE uint64_t weight_of(const Row& row, float logit) {
  if (weight == weight_count) return 1;
  const double x = subtract(divide(static_cast<double>(logit), row.params.temperature), row.largest);
  return x < -28.0 ? 0 : static_cast<uint64_t>(multiply(mass_one, portable_exp(x)));  // 2^40·e^-28 < 1
}

// Which tokens are looked at, and how they fall into bins, in the order of their places.
struct Range {
  uint64_t first, last;
  uint32_t shift;
  bool whole;  // by distance from the largest logit, 64 bins a unit; else by the place's bits
};
TANDEM_DEVICE int32_t bin_of(const Row& row, const Range& range, uint64_t place) {
  if (!range.whole) return static_cast<int32_t>((place - range.first) >> range.shift);
  const float distance = (logit_of(row.best) - logit_of(place)) * 64.0f;
  return distance < static_cast<float>(bins - 1) ? static_cast<int32_t>(distance) : bins - 1;
}

// The weight of every bin, of these ids, into shared memory.
template <Weight weight>
TANDEM_DEVICE void weigh_bins(const Row& row, const Ids& ids, const Range& range, Shared& shared) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < bins; i += threads) shared.weights[i] = 0;
  __syncthreads();
  visit<weight == weight_mass ? 2 : 8>(row, ids, [&](int32_t id, float logit) {
    const uint64_t place = place_of(logit, id);
    if (place < range.first || place > range.last || !is_allowed(row, id, logit)) return;
    const uint64_t mine = weight_of<weight>(row, logit);
    if (mine > 0) atomic_add(shared.weights + bin_of(row, range, place), mine);
  });
  __syncthreads();
}

// Sums of a lane's bins: those of lanes and warps before it, and all of them.
TANDEM_DEVICE uint64_t sum_before(uint64_t mine, uint64_t& all, Shared& shared) {
  const uint32_t lane = threadIdx.x % 32;
  uint64_t sum = mine;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint64_t other = shuffle_64(sum, lane >= step ? lane - step : lane);
    if (lane >= step) sum += other;
  }
  if (lane == 31) shared.of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  uint64_t before = sum - mine;
  all = 0;
  for (int32_t warp = 0; warp < warps; ++warp) {
    if (warp < static_cast<int32_t>(threadIdx.x / 32)) before += shared.of_warp[warp];
    all += shared.of_warp[warp];
  }
  __syncthreads();
  return before;
}

// The bin where the weight of it and all before it reaches `wanted`, and the weight before it.
TANDEM_DEVICE int32_t find_bin(uint64_t wanted, uint64_t mine, uint64_t before, Shared& shared, uint64_t& before_bin) {
  if (before < wanted && before + mine >= wanted) {  // one thread
    int32_t bin = static_cast<int32_t>(threadIdx.x) * bins_of_lane;
    while (before + shared.weights[bin] < wanted) before += shared.weights[bin++];
    shared.found[0] = static_cast<uint64_t>(bin);
    shared.found[1] = before;
  }
  __syncthreads();
  before_bin = shared.found[1];
  const int32_t bin = static_cast<int32_t>(shared.found[0]);
  __syncthreads();
  return bin;
}

// Lists the bin's tokens, as many as fit, and their weights; narrows the range to them. Returns how many there are.
template <Weight weight>
TANDEM_DEVICE int32_t list_bin(const Row& row, Range& range, int32_t bin, Shared& shared) {
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  uint64_t first = none, last = none;  // of the last its complement: the smallest is the largest
  visit<4>(row, all_ids(row), [&](int32_t id, float logit) {
    const uint64_t place = place_of(logit, id);
    if (place < range.first || place > range.last || bin_of(row, range, place) != bin || !is_allowed(row, id, logit))
      return;
    const int32_t at = atomic_add(&shared.count, 1);
    if (at < listed) {
      shared.places[at] = place;
      shared.place_weights[at] = weight_of<weight>(row, logit);
    }
    first = place < first ? place : first;
    last = ~place < last ? ~place : last;
  });
  range.first = smallest_in_block(first, shared);
  range.last = ~smallest_in_block(last, shared);
  range.whole = false;
  range.shift = 0;
  while ((range.last - range.first) >> range.shift >= bins) ++range.shift;
  const int32_t count = shared.count;
  __syncthreads();
  return count;
}

// Of the listed tokens the first with which the weight reaches `wanted`.
TANDEM_DEVICE uint64_t find_listed(uint64_t wanted, uint64_t before, int32_t count, Shared& shared) {
  uint64_t found = none;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += threads) {
    const uint64_t place = shared.places[i];
    uint64_t sum = before;
    for (int32_t j = 0; j < count; ++j)
      if (shared.places[j] <= place) sum += shared.place_weights[j];
    if (sum >= wanted && place < found) found = place;
  }
  return smallest_in_block(found, shared);
}

// Keeps the shortest prefix of the row whose weight reaches what is wanted: top_k tokens, or the nucleus. `given`: the
// first histogram where there is one, else nullptr.
template <Weight weight>
TANDEM_DEVICE void keep_prefix(Row& row, const uint64_t* given, Shared& shared) {
  Range range = {row.best, row.last, 0, true};
  uint64_t wanted = static_cast<uint64_t>(row.params.top_k), done = 0;  // done: the weight before the range
  for (bool first = true;; first = false) {
    if (first && given != nullptr) {
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < bins; i += threads) shared.weights[i] = given[i];
      __syncthreads();
    } else {
      weigh_bins<weight>(row, all_ids(row), range, shared);
    }
    uint64_t mine = 0, all;
    for (int32_t i = 0; i < bins_of_lane; ++i)
      mine += shared.weights[static_cast<int32_t>(threadIdx.x) * bins_of_lane + i];
    const uint64_t before = sum_before(mine, all, shared);
    if (first && weight == weight_count && wanted >= all) return;
    if (first && weight == weight_mass) {
      const double share = round_up(multiply(row.params.top_p, static_cast<double>(all)));
      wanted = share > 1.0 ? static_cast<uint64_t>(share) : 1;
      if (wanted > all) wanted = all;
    }
    uint64_t before_bin;
    const int32_t bin = find_bin(wanted - done, mine, before, shared, before_bin);
    done += before_bin;
    const int32_t count = list_bin<weight>(row, range, bin, shared);
    if (count > listed) continue;
    row.last = find_listed(wanted, done, count, shared);
    return;
  }
}

TANDEM_DEVICE Row row_of(const SampleArgs& args, int32_t number) {
  Row row;
  row.params = args.params[number];
  row.logits = args.logits + row.params.logits * args.logits_stride;
  row.masked = args.masked + row.params.first_masked;
  row.vocab_size = args.vocab_size;
  row.best = row.last = none;
  row.largest = 0.0;
  return row;
}
TANDEM_DEVICE bool is_greedy(const Row& row) { return !(row.params.temperature >= greedy_temperature); }
// The best of what the parts found; false: there is none, or a logit is not finite.
TANDEM_DEVICE bool join_best(const SampleArgs& args, int32_t number, Row& row, Shared& shared) {
  uint64_t best = none;
  for (int32_t part = static_cast<int32_t>(threadIdx.x); part < args.parts; part += threads) {
    const uint64_t of_part = args.best[number * args.parts + part];
    best = of_part < best ? of_part : best;
  }
  row.best = smallest_in_block(best, shared);
  if (row.best == none || row.best == not_finite) return false;
  if (!is_greedy(row)) row.largest = divide(static_cast<double>(logit_of(row.best)), row.params.temperature);
  return true;
}

// Of the kept tokens the one with the largest logit / temperature + noise. Noise is at most −ln(1 − u), which fp32
// knows well enough to leave out nearly all tokens: its own errors are below 3e-7 of |x| + 40.
TANDEM_DEVICE uint64_t find_winner(const Row& row, Shared& shared) {
  const uint64_t noise = noise_of_row(row.params.seed, row.params.position);
  const double smallest = row.params.min_p > 0.0 ? add(row.largest, portable_log(row.params.min_p)) : 0.0;
  uint64_t winner = row.best;
  double score = add(row.largest, gumbel(noise_bits(noise, static_cast<int32_t>(row.best & 0xffffffffu))));
  const float scale = static_cast<float>(divide(1.0, row.params.temperature));
  visit<4>(row, all_ids(row), [&](int32_t id, float logit) {
    const uint64_t place = place_of(logit, id);
    if (place > row.last || place == row.best || !is_allowed(row, id, logit)) return;
    const uint64_t bits = noise_bits(noise, id);
    // 1 − u, rounded by a part in 2^24.
    const float rest = static_cast<float>((uint64_t{1} << 54) - 2 * bits - 1) * 0x1p-54f;
    const float about = logit * scale, margin = 0.001f + 1e-6f * (about < 0.0f ? -about : about);
    if (static_cast<double>(about + margin - log_(rest)) < score) return;
    const double x = divide(static_cast<double>(logit), row.params.temperature);
    if (row.params.min_p > 0.0 && x < smallest) return;
    const double mine = add(x, gumbel(bits));
    if (mine < score || (mine == score && winner < place)) return;
    winner = place;
    score = mine;
  });
  for (uint32_t mask = 16; mask > 0; mask /= 2) {
    const uint64_t other = shuffle_xor_64(winner, mask);
    const double other_score = bits_to_double(shuffle_xor_64(double_to_bits(score), mask));
    if (other_score > score || (other_score == score && other < winner)) winner = other, score = other_score;
  }
  if (threadIdx.x % 32 == 0) {
    shared.of_warp[threadIdx.x / 32] = winner;
    shared.score_of_warp[threadIdx.x / 32] = score;
  }
  __syncthreads();
  for (int32_t warp = 0; warp < warps; ++warp) {
    const double other = shared.score_of_warp[warp];
    if (other > score || (other == score && shared.of_warp[warp] < winner))
      winner = shared.of_warp[warp], score = other;
  }
  return winner;
}

// The winner's share of the tokens up to the last that is kept.
TANDEM_DEVICE double share_of(const Row& row, uint64_t winner, bool greedy, Shared& shared) {
  const float scale = greedy ? 1.0f : static_cast<float>(divide(1.0, row.params.temperature)),
              best = logit_of(row.best);
  double sum = 0.0;
  visit<4>(row, all_ids(row), [&](int32_t id, float logit) {
    if (place_of(logit, id) > row.last || !is_allowed(row, id, logit)) return;
    sum = add(sum, static_cast<double>(exp_((logit - best) * scale)));
  });
  for (uint32_t mask = 16; mask > 0; mask /= 2)
    sum = add(sum, bits_to_double(shuffle_xor_64(double_to_bits(sum), mask)));
  __syncthreads();  // what find_winner left there has been read
  if (threadIdx.x % 32 == 0) shared.score_of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0;
  for (int32_t warp = 0; warp < warps; ++warp) sum = add(sum, shared.score_of_warp[warp]);
  return divide(static_cast<double>(exp_((logit_of(winner) - best) * scale)), sum);
}

// The best place of a part of a row; the row's histogram becomes zeros.
TANDEM_KERNEL(sample_best, SampleArgs, 512) {
  __shared__ Shared shared;
  const int32_t part = static_cast<int32_t>(blockIdx.x), number = static_cast<int32_t>(blockIdx.y);
  if (number >= *args.rows) return;
  const Row row = row_of(args, number);
  uint64_t* const weights = args.weights + static_cast<int64_t>(number) * bins;
  for (int32_t i = part * threads + static_cast<int32_t>(threadIdx.x); i < bins; i += args.parts * threads)
    weights[i] = 0;
  uint64_t best = none;
  visit<8>(row, ids_of_part(row, part, args.parts), [&](int32_t id, float logit) {
    if (!(logit < infinity())) best = not_finite;  // the smallest: it stays
    const uint64_t place = place_of(logit, id);
    if (place < best && is_allowed(row, id, logit)) best = place;
  });
  best = smallest_in_block(best, shared);
  if (threadIdx.x == 0) args.best[number * args.parts + part] = best;
}

// A part of the row's first histogram: of tokens for top_k, else of masses.
TANDEM_KERNEL(sample_weigh, SampleArgs, 512) {
  __shared__ Shared shared;
  const int32_t part = static_cast<int32_t>(blockIdx.x), number = static_cast<int32_t>(blockIdx.y);
  if (number >= *args.rows) return;
  Row row = row_of(args, number);
  if (is_greedy(row) || !(row.params.top_k > 0 || row.params.top_p < 1.0)) return;
  if (!join_best(args, number, row, shared)) return;
  const Ids ids = ids_of_part(row, part, args.parts);
  const Range range = {row.best, row.last, 0, true};
  if (row.params.top_k > 0) {
    weigh_bins<weight_count>(row, ids, range, shared);
  } else {
    weigh_bins<weight_mass>(row, ids, range, shared);
  }
  uint64_t* const weights = args.weights + static_cast<int64_t>(number) * bins;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < bins; i += threads)
    if (shared.weights[i] > 0) atomic_add(weights + i, shared.weights[i]);
}

TANDEM_KERNEL(sample_rows, SampleArgs, 512) {
  __shared__ Shared shared;
  const int32_t number = static_cast<int32_t>(blockIdx.x);
  if (number >= *args.rows) return;
  Row row = row_of(args, number);
  if (!join_best(args, number, row, shared)) {
    const int32_t status = row.best == none ? ops::sample_all_masked : ops::sample_not_finite;
    if (threadIdx.x == 0) args.out[number] = {-1, status, 1.0};
    return;
  }
  uint64_t winner = row.best;
  if (!is_greedy(row)) {
    const uint64_t* const weights = args.weights + static_cast<int64_t>(number) * bins;
    const bool counts = row.params.top_k > 0;
    if (counts) keep_prefix<weight_count>(row, weights, shared);
    if (row.params.top_p < 1.0) keep_prefix<weight_mass>(row, counts ? nullptr : weights, shared);
    winner = find_winner(row, shared);
  }
  const double share = row.params.wants_probability != 0 ? share_of(row, winner, is_greedy(row), shared) : 1.0;
  if (threadIdx.x == 0) args.out[number] = {static_cast<int32_t>(winner & 0xffffffffu), ops::sample_chosen, share};
}

}  // namespace
