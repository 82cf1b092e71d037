// Plans and launches sparse_attend.cu.
#include "ops/attend/sparse_attend_cuda.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "quant/cache_records.h"

namespace tandem::ops {

namespace {

constexpr int64_t tile_keys = 64, threads = 256, join_threads = 512;
constexpr int64_t reserved_shared_bytes = 1024;  // that the system takes of a multiprocessor's for each block

int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
int64_t splits_of_row(int64_t max_selected) { return max_selected / attend_split + 2; }  // two leaves, each rounded up
int64_t head_blocks(const SparseAttendPlan& plan, int64_t heads) {
  return up(heads, 16 * plan.head_tiles) / (16 * plan.head_tiles);
}

// Parts of the scratch, bytes.
struct Scratch {
  int64_t partial = 0, sums = 0, splits = 0, places = 0;
};
Scratch scratch_of(const SparseAttendPlan& plan, int64_t max_rows, int64_t heads, int64_t kv_lora_rank,
                   int64_t max_selected, int64_t row_blocks) {
  Scratch s;
  if (!plan.by_splits) {
    s.partial = up(row_blocks * 16 * plan.head_tiles * kv_lora_rank * 4, 256);
    s.places = row_blocks * max_selected * 4;
    return s;
  }
  const int64_t parts = max_rows * splits_of_row(max_selected) * heads;
  s.partial = up(parts * kv_lora_rank * 4, 256);
  s.sums = up(parts * 8, 256);
  s.splits = up(max_rows * 8, 256);
  return s;
}

// Blocks that take the rows in turn: as many as run at a time.
uint32_t row_blocks(const device::GpuProperties& gpu, const SparseAttendPlan& plan, int64_t max_rows, int64_t heads,
                    int64_t kv_lora_rank) {
  const int64_t of_one = sparse_attend_shared_bytes(plan, kv_lora_rank) + reserved_shared_bytes;
  const int64_t resident =
      2 * of_one <= gpu.shared_bytes + reserved_shared_bytes ? 2 : 1;  // blocks of a multiprocessor
  return static_cast<uint32_t>(
      std::max<int64_t>(1, std::min(resident * gpu.multiprocessors, max_rows * head_blocks(plan, heads))));
}

int64_t bytes_of(const device::GpuProperties& gpu, const SparseAttendPlan& plan, int64_t max_rows, int64_t heads,
                 int64_t kv_lora_rank, int64_t max_selected) {
  const Scratch s = scratch_of(plan, max_rows, heads, kv_lora_rank, max_selected,
                               row_blocks(gpu, plan, max_rows, heads, kv_lora_rank));
  return s.partial + s.sums + s.splits + s.places;
}

}  // namespace

int64_t sparse_attend_shared_bytes(const SparseAttendPlan& plan, int64_t kv_lora_rank) {
  const int64_t row_stride = up(kv_lora_rank, 16) * 2 + 16, heads = 16 * plan.head_tiles;
  const int64_t scale_blocks = (kv_lora_rank + 127) / 128;
  return heads * row_stride + tile_keys * row_stride + heads * 72 * 4 + tile_keys * scale_blocks * 4 + 2 * heads * 4 +
         threads / 32 * 4 + tile_keys * 4;
}

SparseAttendPlan sparse_attend_plan(int64_t max_rows, int64_t heads, int64_t kv_lora_rank, int64_t multiprocessors,
                                    int64_t shared_bytes) {
  SparseAttendPlan plan;
  plan.head_tiles = heads > 16 ? 2 : 1;
  // What splits come to is written and read once: only while rows leave most multiprocessors idle.
  plan.by_splits = 8 * max_rows * head_blocks(plan, heads) <= multiprocessors;
  // Half the heads a block doubles what is gathered: only while blocks are few.
  const int64_t blocks = max_rows * head_blocks(plan, heads);
  if (plan.by_splits ? blocks <= 4 : 2 * blocks <= multiprocessors) plan.head_tiles = 1;
  if (sparse_attend_shared_bytes(plan, kv_lora_rank) > shared_bytes) plan.head_tiles = 1;
  return plan;
}

CudaSparseAttend::CudaSparseAttend(device::Gpu& gpu, const std::vector<std::string>& defines,
                                   std::optional<SparseAttendPlan> plan)
    : gpu_(gpu), plan_(plan) {
  const std::string source = "ops/attend/sparse_attend.cu";
  splits_[0] = gpu.load({source, "attend_splits_16", defines});
  splits_[1] = gpu.load({source, "attend_splits_32", defines});
  rows_[0] = gpu.load({source, "attend_rows_16", defines, true});
  rows_[1] = gpu.load({source, "attend_rows_32", defines, true});
  join_ = gpu.load({"ops/attend/sparse_attend_join.cu", "attend_join", defines});
}

SparseAttendPlan CudaSparseAttend::plan_for(int64_t max_rows, int64_t heads, int64_t kv_lora_rank) const {
  if (plan_) return *plan_;
  const device::GpuProperties& gpu = gpu_.properties();
  return sparse_attend_plan(max_rows, heads, kv_lora_rank, gpu.multiprocessors, gpu.shared_bytes);
}

int64_t CudaSparseAttend::scratch_bytes(int64_t max_rows, int64_t heads, int64_t kv_lora_rank,
                                        int64_t max_selected) const {
  if (plan_) return bytes_of(gpu_.properties(), *plan_, max_rows, heads, kv_lora_rank, max_selected);
  return scratch_bytes(gpu_.properties(), max_rows, heads, kv_lora_rank, max_selected);
}

int64_t CudaSparseAttend::scratch_bytes(const device::GpuProperties& gpu, int64_t max_rows, int64_t heads,
                                        int64_t kv_lora_rank, int64_t max_selected) {
  const auto of_rows = [&](int64_t rows) {
    const SparseAttendPlan plan = sparse_attend_plan(rows, heads, kv_lora_rank, gpu.multiprocessors, gpu.shared_bytes);
    return bytes_of(gpu, plan, rows, heads, kv_lora_rank, max_selected);
  };
  int64_t most = of_rows(max_rows);
  for (int64_t rows = 1; rows < max_rows && 8 * rows <= gpu.multiprocessors; ++rows)
    most = std::max(most, of_rows(rows));
  return most;
}

void CudaSparseAttend::run(const SparseAttendArgs& args, int64_t max_rows, std::byte* scratch) const {
  const auto kind = static_cast<quant::RecordKind>(args.latent.kind);
  if (kind == quant::RecordKind::f32 || kind == quant::RecordKind::index_fp8)
    throw Error(ErrorCode::internal, "sparse attention", std::string(quant::name_of(kind)), "bf16 or a latent record");
  if (max_rows == 0 || args.heads == 0) return;
  const int64_t rank = args.latent.width;
  const SparseAttendPlan plan = plan_for(max_rows, args.heads, rank);
  const uint32_t blocks = row_blocks(gpu_.properties(), plan, max_rows, args.heads, rank);
  const Scratch s = scratch_of(plan, max_rows, args.heads, rank, args.max_selected, blocks);
  SparseAttendLaunch of{};
  of.attend = args;
  of.max_splits = static_cast<int32_t>(splits_of_row(args.max_selected));
  of.head_blocks = static_cast<int32_t>(head_blocks(plan, args.heads));
  of.partial = reinterpret_cast<float*>(scratch);
  of.partial_sums = reinterpret_cast<float*>(scratch + s.partial);
  of.splits = reinterpret_cast<int32_t*>(scratch + s.partial + s.sums);
  of.places = reinterpret_cast<int32_t*>(scratch + s.partial);
  device::Launch launch;
  launch.threads = threads;
  launch.shared_bytes = sparse_attend_shared_bytes(plan, rank);
  if (!plan.by_splits) {
    launch.kernel = rows_[plan.head_tiles - 1];
    launch.grid[0] = blocks;
    gpu_.launch(launch, of);
    return;
  }
  launch.kernel = splits_[plan.head_tiles - 1];
  launch.grid[0] = static_cast<uint32_t>(of.max_splits);
  launch.grid[1] = static_cast<uint32_t>(of.head_blocks);
  launch.grid[2] = static_cast<uint32_t>(max_rows);
  gpu_.launch(launch, of);
  launch = {join_};
  launch.grid[0] = static_cast<uint32_t>(args.heads);
  launch.grid[1] = static_cast<uint32_t>(max_rows);
  launch.threads = join_threads;
  gpu_.launch(launch, of);
}

device::KernelCost CudaSparseAttend::cost(const SparseAttendArgs& args, int64_t rows, int64_t keys) {
  const int64_t width = args.latent.width;
  return {rows * (keys * (args.latent.row_bytes + 4) + args.heads * width * 4), rows * keys * args.heads * width * 4};
}

}  // namespace tandem::ops
