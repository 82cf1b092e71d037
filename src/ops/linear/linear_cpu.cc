// Cuts the outputs and rows of a group of projections into tasks for the worker threads.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/divide_up.h"
#include "ops/linear/linear.h"
#include "ops/linear/multiply.h"

namespace tandem::ops {
namespace {

constexpr size_t max_calls = 16;

// What a region shares out.
struct Region {
  int64_t rows, threads, outputs;  // outputs of all calls
};

// Outputs of one task: small enough that the threads finish together, large enough to be worth taking.
int64_t outputs_of_task(const Matrix& weight, const Region& region) {
  constexpr int64_t multiplications = 24 * 1024, worth_sharing = 16 * 1024, few_rows = 16, most = 64;
  const int64_t of_output = std::max<int64_t>(1, weight.in_features * std::min<int64_t>(region.rows, max_tile_rows));
  const int64_t unit = std::max<int64_t>(output_unit(weight), 4);
  int64_t least = 16;
  // Every task of a few rows puts their values in order once: larger ones, as long as each thread has several.
  if (region.rows > 1 && region.rows <= few_rows)
    least = std::clamp(region.outputs / (4 * region.threads) / least * least, least, most);
  const int64_t outputs = std::max({least, unit, multiplications / of_output / unit * unit});
  // Of a matrix with few outputs and long rows, as that of the hyper-connections, an equal share.
  const int64_t share = divide_up(divide_up(weight.out_features, region.threads), unit) * unit;
  return share < outputs && share * of_output >= worth_sharing ? share : outputs;
}

}  // namespace

void linear(device::Threads& threads, std::span<const LinearCall> calls, int64_t rows) {
  if (calls.size() > max_calls) throw Error(ErrorCode::internal, "linear", "too many calls in one region");
  if (rows == 0) return;
  std::array<int64_t, max_calls + 1> first_task{};
  const int64_t tiles = divide_up(rows, max_tile_rows);
  Region region{rows, threads.count(), 0};
  for (const LinearCall& call : calls) region.outputs += call.weight->out_features;
  for (size_t i = 0; i < calls.size(); ++i) {
    const int64_t chunks = divide_up(calls[i].weight->out_features, outputs_of_task(*calls[i].weight, region));
    first_task[i + 1] = first_task[i] + chunks * tiles;
  }
  threads.run(first_task[calls.size()], [&](int64_t task) {
    size_t i = 0;
    while (task >= first_task[i + 1]) ++i;
    const LinearCall& call = calls[i];
    const int64_t outputs = outputs_of_task(*call.weight, region);
    const int64_t chunk = (task - first_task[i]) / tiles, tile = (task - first_task[i]) % tiles;
    const int64_t row = tile * max_tile_rows;
    MatmulTile t;
    t.w = call.weight;
    t.first_output = chunk * outputs;
    t.last_output = std::min(t.first_output + outputs, call.weight->out_features);
    t.last_column = call.weight->in_features;
    t.x = call.x + row * call.x_stride;
    t.x_stride = call.x_stride;
    t.rows = std::min(max_tile_rows, rows - row);
    t.y = call.y + row * call.y_stride;
    t.y_stride = call.y_stride;
    multiply(t);
    if (call.compute == Compute::f32) return;
    for (int64_t r = 0; r < t.rows; ++r) {
      round_values(call.compute, RoundingPoint::linear, t.y + r * t.y_stride + t.first_output,
                   t.last_output - t.first_output);
    }
  });
}

void linear(device::Threads& threads, const Matrix& weight, const float* x, float* y, int64_t rows, Compute compute) {
  const LinearCall call{&weight, x, weight.in_features, y, weight.out_features, compute};
  linear(threads, std::span(&call, 1), rows);
}

}  // namespace tandem::ops
