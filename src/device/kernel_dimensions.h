// The model's dimensions that kernel sources are specialised on (device/kernel.h has their macros).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::device {

struct KernelDimensions {
  int64_t kda_dim = 128;  // keys and values of a KDA head
  int64_t kv_lora_rank = 512;
  int64_t index_head_dim = 128;
  int64_t index_kpool = 4;
  int64_t drafter_head_dim = 128;  // of the DFlash2 drafter
};

// As KernelSpec::defines.
std::vector<std::string> model_defines(const KernelDimensions& dimensions);

}  // namespace tandem::device
