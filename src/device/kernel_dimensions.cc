// Macro names and values.
#include "device/kernel_dimensions.h"

#include <fmt/format.h>

namespace tandem::device {

std::vector<std::string> model_defines(const KernelDimensions& d) {
  return {fmt::format("TANDEM_KDA_DIM={}", d.kda_dim), fmt::format("TANDEM_KV_LORA_RANK={}", d.kv_lora_rank),
          fmt::format("TANDEM_INDEX_HEAD_DIM={}", d.index_head_dim),
          fmt::format("TANDEM_INDEX_KPOOL={}", d.index_kpool),
          fmt::format("TANDEM_DRAFTER_HEAD_DIM={}", d.drafter_head_dim)};
}

}  // namespace tandem::device
