// Launches index_store.cu.
#include "ops/index/index_store_cuda.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "quant/cache_records.h"

namespace tandem::ops {

CudaIndexStore::CudaIndexStore(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/index/index_store.cu", "index_store", defines})) {}

void CudaIndexStore::run(const IndexStoreArgs& args, int64_t max_rows) const {
  const auto kind = static_cast<quant::RecordKind>(args.pooled.kind);
  if (kind != quant::RecordKind::bf16 && kind != quant::RecordKind::index_fp8)
    throw Error(ErrorCode::internal, "index store", std::string(quant::name_of(kind)), "bf16 or index_fp8");
  if (max_rows == 0) return;
  device::Launch launch{kernel_};
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.threads = static_cast<uint32_t>((args.pooled.width + 31) / 32 * 32);  // a channel each
  gpu_.launch(launch, args);
}

device::KernelCost CudaIndexStore::cost(const IndexStoreArgs& args, int64_t rows) {
  const int64_t width = args.pooled.width, record = args.pooled.row_bytes + (args.pooled.scales != nullptr ? 4 : 0);
  // Read, and the last rows written to the rings; of every fourth row a record.
  return {rows * 4 * width + std::min<int64_t>(rows, args.ring_rows) * 4 * width + rows / 4 * record, rows * 8 * width};
}

}  // namespace tandem::ops
