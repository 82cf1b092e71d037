// Launches of rows.cu: a block a row.
#include "ops/rows/rows_cuda.h"

namespace tandem::ops {

CudaRows::CudaRows(device::Gpu& gpu, const std::vector<std::string>& defines) : gpu_(gpu) {
  const auto load = [&](const char* name) { return gpu.load({"ops/rows/rows.cu", name, defines}); };
  gather_ = load("gather_rows");
  store_head_rows_ = load("store_head_rows");
  store_last_rows_ = load("store_last_rows");
  add_ = load("add_rows");
  zero_first_ = load("zero_first");
}

template <typename Args>
void CudaRows::launch(device::Kernel kernel, const Args& args, int64_t blocks) const {
  if (blocks == 0) return;
  device::Launch launch{kernel};
  launch.grid[0] = static_cast<uint32_t>(blocks);
  launch.threads = 128;
  gpu_.launch(launch, args);
}

void CudaRows::gather(const MoveRowsArgs& args, int64_t max_count) const { launch(gather_, args, max_count); }
void CudaRows::store_head_rows(const KeepHeadRowsArgs& args, int64_t max_rows) const {
  launch(store_head_rows_, args, max_rows);
}
void CudaRows::store_last_rows(const StoreLastRowsArgs& args, int64_t max_segments) const {
  launch(store_last_rows_, args, max_segments);
}
void CudaRows::add(const AddRowsArgs& args, int64_t max_rows) const { launch(add_, args, max_rows); }
void CudaRows::zero_first(const ZeroFirstArgs& args, int64_t max_rows) const { launch(zero_first_, args, max_rows); }

}  // namespace tandem::ops
