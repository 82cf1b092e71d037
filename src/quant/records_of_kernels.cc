// Kernels cannot include cache_records.h; its kinds have the numbers that cache_records_device.h gives them.
#include "quant/cache_records.h"

namespace tandem::quant {
static_assert(static_cast<int>(RecordKind::f32) == 0 && static_cast<int>(RecordKind::bf16) == 1 &&
              static_cast<int>(RecordKind::latent_fp8) == 2 && static_cast<int>(RecordKind::latent_fp8_row) == 3 &&
              static_cast<int>(RecordKind::latent_nvfp4) == 4 && static_cast<int>(RecordKind::index_fp8) == 5);
}  // namespace tandem::quant
