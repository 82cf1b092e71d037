// The feed-forward's launches: which kernels, how many blocks, and where in scratch everything lies.
#include "ops/experts/experts_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "ops/divide_up.h"

namespace tandem::ops {
namespace {

using device::bf16;

constexpr int64_t slice_columns = 512;
constexpr int64_t warps_of_block = 8;
constexpr int64_t output_piece_bytes = int64_t{256} << 20;  // of down's outputs at a time
constexpr int64_t few_rows_at_most = 64;

// Pairs that may be here, and how many of the hidden outputs are computed at a time.
int64_t most_places(const ExpertShape& shape, int64_t max_rows) {
  return max_rows * std::min(shape.per_token, shape.routed_count);
}
int64_t leaves_of_shared(const ExpertShape& shape) {
  return shape.shared_width == 0 ? 0 : shape.shared_leaf < shape.shared_width ? 2 : 1;
}
int64_t output_columns_at_once(const ExpertShape& shape, int64_t max_rows) {
  const int64_t rows = most_places(shape, max_rows) + leaves_of_shared(shape) * max_rows;
  const int64_t fits = output_piece_bytes / (4 * std::max<int64_t>(rows, 1)) / 128 * 128;
  return std::min(shape.hidden, std::max<int64_t>(fits, 128));
}

int64_t most_tiles(const ExpertShape& shape, int64_t max_rows, int64_t tile_rows) {
  const int64_t places = most_places(shape, max_rows);
  return places / tile_rows + std::min(shape.routed_count, places);
}

constexpr int64_t least_tile_rows = 32;

struct CudaExpertScratch {
  int32_t *row_of, *place_of, *tile_count;
  ExpertTile* tiles;
  bf16 *activation, *shared_activation;
  float *output, *shared_output;
  int64_t bytes = 0;
};

CudaExpertScratch lay_out(const ExpertShape& shape, int64_t max_rows, void* at) {
  CudaExpertScratch s{};
  const auto take = [&s, at](int64_t bytes) {
    const uintptr_t piece = reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(s.bytes);  // from 0 when counting
    s.bytes += divide_up(bytes, 256) * 256;
    return reinterpret_cast<void*>(piece);  // NOLINT(performance-no-int-to-ptr): null plus bytes is no pointer sum
  };
  const int64_t places = most_places(shape, max_rows), piece = output_columns_at_once(shape, max_rows);
  s.row_of = static_cast<int32_t*>(take(4 * places));
  s.place_of = static_cast<int32_t*>(take(4 * max_rows * shape.per_token));
  s.tile_count = static_cast<int32_t*>(take(4));
  const int64_t tiles = most_tiles(shape, max_rows, std::min(least_tile_rows, std::max<int64_t>(max_rows, 1)));
  s.tiles = static_cast<ExpertTile*>(take(static_cast<int64_t>(sizeof(ExpertTile)) * tiles));
  s.activation = static_cast<bf16*>(take(2 * places * shape.width));
  s.shared_activation = static_cast<bf16*>(take(2 * max_rows * shape.shared_width));
  s.output = static_cast<float*>(take(4 * places * piece));
  s.shared_output = static_cast<float*>(take(4 * leaves_of_shared(shape) * max_rows * piece));
  return s;
}

void check(const ExpertShape& shape, const ExpertRows& rows) {
  const bool multiples = shape.hidden % 8 == 0 && shape.width % 8 == 0 && shape.shared_width % 8 == 0 &&
                         shape.shared_leaf % 8 == 0 && rows.x_stride % 8 == 0 && rows.y_stride % 4 == 0;
  if (!multiples) {
    throw Error(ErrorCode::internal, "experts",
                fmt::format("hidden {}, widths {} and {}, leaf {}, strides {} and {}", shape.hidden, shape.width,
                            shape.shared_width, shape.shared_leaf, rows.x_stride, rows.y_stride),
                "multiples of 8");
  }
  if (shape.per_token > shape.experts || shape.first_routed + shape.routed_count > shape.experts ||
      shape.shared_leaf > shape.shared_width || (shape.shared_width > 0 && shape.shared_leaf == 0)) {
    throw Error(
        ErrorCode::internal, "experts",
        fmt::format("{} of {} experts, {} from {} here, a shared width of {} with {} in leaf 0", shape.per_token,
                    shape.experts, shape.routed_count, shape.first_routed, shape.shared_width, shape.shared_leaf),
        "parts no larger than the whole");
  }
}

// What both halves of a feed-forward, and all its launches, have in common.
ExpertProductArgs product_args(const ExpertShape& shape, const ExpertRows& rows, const CudaExpertScratch& s,
                               int64_t max_rows) {
  ExpertProductArgs args{};
  args.rows = rows.rows;
  args.tiles = s.tiles;
  args.tile_count = shape.routed_count > 0 ? s.tile_count : nullptr;
  args.row_of = s.row_of;
  args.routed = rows.routed;
  args.shared = rows.shared;
  args.hidden = static_cast<int32_t>(shape.hidden);
  args.width = static_cast<int32_t>(shape.width);
  args.shared_width = static_cast<int32_t>(shape.shared_width);
  args.shared_leaf = static_cast<int32_t>(shape.shared_leaf);
  args.swiglu_limit = shape.swiglu_limit;
  args.x = rows.x;
  args.x_stride = rows.x_stride;
  args.activation = s.activation;
  args.shared_activation = s.shared_activation;
  args.output = s.output;
  args.shared_output = s.shared_output;
  args.max_rows = max_rows;
  return args;
}

// Launches of one product: its grid is tiles by blocks of outputs.
struct Plan {
  ExpertProducts::Pair kernels;
  int64_t tiles = 0;         // of routed experts
  int64_t shared_tiles = 0;  // of one leaf
  int64_t tile_rows = 0;
  int64_t row_tiles = 0;  // few rows: of 8 rows that a block takes at a time; 0: many rows
  bool warpgroups = false;
};

// Of a step: at most the routed experts' and the shared one's.
struct Plans {
  std::array<Plan, 2> both{};
  size_t used = 0;
  int64_t sorted_rows = 0;  // of a tile in the sort's list

  std::span<const Plan> all() const { return {both.data(), used}; }
  void add(const Plan& plan) { both.at(used++) = plan; }
};

Plans plans_of_few_rows(const ExpertProducts& products, const ExpertShape& shape, int64_t max_rows) {
  Plans plans;
  plans.sorted_rows = max_rows;
  const auto add = [&](bool eight, int64_t routed, int64_t shared) {
    plans.add({eight ? products.rows_8 : products.rows_32, routed, shared, max_rows, eight ? 1 : 4});
  };
  const int64_t routed = std::min(shape.routed_count, most_places(shape, max_rows));
  const int64_t shared = shape.shared_width > 0 ? 1 : 0;
  const bool eight = max_rows <= 8;
  // Most experts get few of many rows, the shared one gets all.
  if (!eight && routed > 0 && max_rows * shape.per_token <= 4 * shape.experts) {
    add(true, routed, 0);
    if (shared > 0) add(false, 0, shared);
  } else {
    add(eight, routed, shared);
  }
  return plans;
}

// Experts with more than `crowd` rows on average get tiles of 128 rows.
Plans plans_of_many_rows(const ExpertProducts& products, const ExpertShape& shape, int64_t max_rows, bool warpgroups,
                         int64_t crowd) {
  Plans plans;
  plans.sorted_rows = shape.experts > 0 && max_rows * shape.per_token > crowd * shape.experts ? 128 : 32;
  const auto add = [&](int64_t tile_rows, int64_t routed, int64_t shared) {
    Plan plan{products.tiles_32, routed, shared, tile_rows};
    plan.warpgroups = warpgroups && tile_rows == 128;
    if (tile_rows == 128) plan.kernels = warpgroups ? products.warpgroup : products.tiles_128;
    plans.add(plan);
  };
  if (shape.routed_count > 0) add(plans.sorted_rows, most_tiles(shape, max_rows, plans.sorted_rows), 0);
  const int64_t shared_rows = max_rows > 64 || crowd == 0 ? 128 : 32;
  if (shape.shared_width > 0) add(shared_rows, 0, divide_up(max_rows, shared_rows));
  return plans;
}

Plans plans_of(const device::GpuProperties& gpu, const ExpertProducts& products, const ExpertShape& shape,
               int64_t max_rows, ExpertKernels kernels) {
  const bool by_rows = kernels == ExpertKernels::by_rows;
  if (kernels == ExpertKernels::few_rows || (by_rows && max_rows <= few_rows_at_most))
    return plans_of_few_rows(products, shape, max_rows);
  if (kernels == ExpertKernels::warpgroups) return plans_of_many_rows(products, shape, max_rows, true, 0);
  // A tile of 128 rows takes a warp group's tensor cores about as long as its weights take to arrive.
  if (by_rows && gpu.target == 90 && gpu.shared_bytes >= ExpertWarpgroupMemory::bytes)
    return plans_of_many_rows(products, shape, max_rows, true, 16);
  return plans_of_many_rows(products, shape, max_rows, false, 48);
}

class Runner {
 public:
  Runner(device::Gpu& gpu, const ExpertShape& shape, const ExpertProductArgs& args)
      : gpu_(gpu), shape_(shape), args_(args) {}

  void gate_up(const Plan& plan) const {
    ExpertProductArgs args = with(plan);
    const int64_t width = std::max(plan.tiles > 0 ? shape_.width : 0, plan.shared_tiles > 0 ? shape_.shared_width : 0);
    launch(plan, plan.kernels.gate_up, args, plan.tiles + plan.shared_tiles, width, shape_.hidden, 2);
  }
  void down(const Plan& plan, int64_t first_output, int64_t outputs) const {
    ExpertProductArgs args = with(plan);
    args.first_output = static_cast<int32_t>(first_output);
    args.outputs = static_cast<int32_t>(outputs);
    const int64_t of_shared = std::max(shape_.shared_leaf, shape_.shared_width - shape_.shared_leaf);
    const int64_t columns = std::max(plan.tiles > 0 ? shape_.width : 0, plan.shared_tiles > 0 ? of_shared : 0);
    const int64_t tiles = plan.tiles + plan.shared_tiles * std::max<int64_t>(leaves_of_shared(shape_), 1);
    launch(plan, plan.kernels.down, args, tiles, outputs, columns, 1);
  }

 private:
  ExpertProductArgs with(const Plan& plan) const {
    ExpertProductArgs args = args_;
    if (plan.tiles == 0) args.tile_count = nullptr;
    args.shared_tiles = static_cast<int32_t>(plan.shared_tiles);
    args.tile_rows = static_cast<int32_t>(plan.tile_rows);
    return args;
  }

  void launch(const Plan& plan, device::Kernel kernel, ExpertProductArgs args, int64_t tiles, int64_t outputs,
              int64_t columns, int64_t matrices) const {
    if (tiles == 0 || outputs == 0) return;
    device::Launch launch{kernel};
    launch.threads = 32 * warps_of_block;
    int64_t outputs_of_block = 0;
    if (plan.row_tiles > 0) {
      const int64_t slices = divide_up(columns, slice_columns);
      const int64_t tiles_of_block = std::max<int64_t>(1, warps_of_block / slices);
      args.tiles_of_block = static_cast<int32_t>(tiles_of_block);
      outputs_of_block = 16 * tiles_of_block;
      launch.shared_bytes = tiles_of_block * slices * matrices * plan.row_tiles * 32 * 16;
    } else {
      outputs_of_block = ExpertTileMemory<128>::weight_rows / matrices;
      launch.shared_bytes = plan.warpgroups         ? ExpertWarpgroupMemory::bytes
                            : plan.tile_rows == 128 ? ExpertTileMemory<128>::bytes
                                                    : ExpertTileMemory<32>::bytes;
    }
    if (launch.shared_bytes > gpu_.properties().shared_bytes) {
      throw Error(ErrorCode::internal, "experts", fmt::format("{} bytes of shared memory", launch.shared_bytes),
                  fmt::format("at most {}", gpu_.properties().shared_bytes));
    }
    launch.grid[0] = static_cast<uint32_t>(tiles);
    launch.grid[1] = static_cast<uint32_t>(divide_up(outputs, outputs_of_block));
    gpu_.launch(launch, args);
  }

  device::Gpu& gpu_;
  const ExpertShape& shape_;
  const ExpertProductArgs& args_;
};

}  // namespace

CudaExperts::CudaExperts(device::Gpu& gpu, const std::vector<std::string>& defines) : gpu_(gpu) {
  const auto load = [&](const char* source, const char* name) {
    return gpu.load({std::string("ops/experts/") + source, name, defines});
  };
  sort_ = load("experts_sort.cu", "sort_by_expert");
  products_.rows_8 = {load("experts_rows.cu", "gate_up_8_rows"), load("experts_rows.cu", "down_8_rows")};
  products_.rows_32 = {load("experts_rows.cu", "gate_up_32_rows"), load("experts_rows.cu", "down_32_rows")};
  products_.tiles_32 = {load("experts_tiles.cu", "gate_up_tiles_32"), load("experts_tiles.cu", "down_tiles_32")};
  products_.tiles_128 = {load("experts_tiles.cu", "gate_up_tiles_128"), load("experts_tiles.cu", "down_tiles_128")};
  products_.warpgroup = {load("experts_warpgroup.cu", "gate_up_warpgroup"),
                         load("experts_warpgroup.cu", "down_warpgroup")};
  combine_ = load("experts_combine.cu", "combine_experts");
}

int64_t CudaExperts::scratch_bytes(const ExpertShape& shape, int64_t max_rows) {
  return lay_out(shape, max_rows, nullptr).bytes;
}

void CudaExperts::run(const ExpertShape& shape, const ExpertRows& rows, int64_t max_rows, ExpertKernels kernels) const {
  check(shape, rows);
  if (max_rows == 0) return;
  const CudaExpertScratch s = lay_out(shape, max_rows, rows.scratch);
  const ExpertProductArgs args = product_args(shape, rows, s, max_rows);
  const Plans plans = plans_of(gpu_.properties(), products_, shape, max_rows, kernels);
  if (shape.routed_count > 0)
    sort(shape, rows, {s.row_of, s.place_of, s.tiles, s.tile_count}, plans.sorted_rows, max_rows);
  const Runner runner(gpu_, shape, args);
  for (const Plan& plan : plans.all()) runner.gate_up(plan);
  const int64_t piece = output_columns_at_once(shape, max_rows);
  for (int64_t first = 0; first < shape.hidden; first += piece) {
    const int64_t outputs = std::min(piece, shape.hidden - first);
    for (const Plan& plan : plans.all()) runner.down(plan, first, outputs);
    combine(shape, rows, {s.place_of, s.output, s.shared_output}, first, outputs, max_rows);
  }
}

void CudaExperts::sort(const ExpertShape& shape, const ExpertRows& rows, const Lists& lists, int64_t tile_rows,
                       int64_t max_rows) const {
  ExpertSortArgs args{};
  args.rows = rows.rows;
  args.chosen = rows.chosen;
  args.per_token = static_cast<int32_t>(shape.per_token);
  args.first_routed = static_cast<int32_t>(shape.first_routed);
  args.routed_count = static_cast<int32_t>(shape.routed_count);
  args.tile_rows = static_cast<int32_t>(tile_rows);
  args.row_of = lists.row_of;
  args.place_of = lists.place_of;
  args.tiles = lists.tiles;
  args.tile_count = lists.tile_count;
  device::Launch launch{sort_};
  launch.threads = max_rows * shape.per_token > 512 ? 1024 : 256;
  launch.shared_bytes = shape.routed_count * ExpertSortArgs::shared_bytes_of_expert;
  gpu_.launch(launch, args);
}

void CudaExperts::combine(const ExpertShape& shape, const ExpertRows& rows, const Outputs& outputs_of,
                          int64_t first_output, int64_t outputs, int64_t max_rows) const {
  ExpertCombineArgs args{};
  args.rows = rows.rows;
  args.chosen = rows.chosen;
  args.weights = rows.weights;
  args.place_of = outputs_of.place_of;
  args.output = outputs_of.routed;
  args.shared_output = outputs_of.shared;
  args.experts = static_cast<int32_t>(shape.experts);
  args.per_token = shape.routed_count > 0 ? static_cast<int32_t>(shape.per_token) : 0;
  args.first_leaf = rows.leaf < 0 ? 0 : rows.leaf;
  args.end_leaf = rows.leaf < 0 ? 2 : rows.leaf + 1;
  const int64_t leaves = leaves_of_shared(shape);
  if (rows.leaf < 0) {
    args.shared_leaves[0] = leaves > 0 ? 1 : 0;
    args.shared_leaves[1] = leaves > 1 ? 2 : 0;
  } else {
    args.shared_leaves[rows.leaf] = leaves > 0 ? 1 : 0;
  }
  args.first_output = static_cast<int32_t>(first_output);
  args.outputs = static_cast<int32_t>(outputs);
  args.y = rows.y;
  args.leaf = rows.leaf < 0 ? nullptr : rows.leaf_sum;
  args.y_stride = rows.y_stride;
  args.max_rows = max_rows;
  device::Launch launch{combine_};
  launch.threads = 256;
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.grid[1] = static_cast<uint32_t>(divide_up(outputs, 4 * launch.threads));
  gpu_.launch(launch, args);
}

device::KernelCost CudaExperts::cost(const ExpertShape& shape, int64_t rows, int64_t pairs, int64_t distinct) {
  const int64_t of_expert = 3 * shape.hidden * shape.width, of_shared = 3 * shape.hidden * shape.shared_width;
  return {2 * (distinct * of_expert + of_shared + 2 * rows * shape.hidden), 2 * (pairs * of_expert + rows * of_shared)};
}

}  // namespace tandem::ops
