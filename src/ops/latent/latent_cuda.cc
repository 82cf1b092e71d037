// Launches latent.cu.
#include "ops/latent/latent_cuda.h"

#include <string>

#include "base/error.h"
#include "quant/cache_records.h"

namespace tandem::ops {

namespace {
constexpr int64_t rows_of_block = 8;
}

CudaLatentStore::CudaLatentStore(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), kernel_(gpu.load({"ops/latent/latent.cu", "latent_store", defines})) {}

void CudaLatentStore::run(const LatentStoreArgs& args, int64_t max_rows) const {
  const auto kind = static_cast<quant::RecordKind>(args.plane.kind);
  if (kind == quant::RecordKind::f32 || kind == quant::RecordKind::index_fp8)
    throw Error(ErrorCode::internal, "latent store", std::string(quant::name_of(kind)), "bf16 or a latent record");
  if (max_rows == 0) return;
  device::Launch launch{kernel_};
  launch.grid[0] = static_cast<uint32_t>((max_rows + rows_of_block - 1) / rows_of_block);
  launch.threads = rows_of_block * 32;
  launch.shared_bytes = kind == quant::RecordKind::bf16 ? 0 : rows_of_block * args.plane.width * 4;
  gpu_.launch(launch, args);
}

device::KernelCost CudaLatentStore::cost(const PlaneView& plane, int64_t rows) {
  return {rows * (2 * int64_t{plane.width} + plane.row_bytes), 0};
}

}  // namespace tandem::ops
