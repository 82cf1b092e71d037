// Trellis searches of many tiles, shared by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/threads.h"
#include "quant/exl3_viterbi.h"

namespace tandem::quant {

class Exl3TileEncoder {
 public:
  Exl3TileEncoder(Exl3Codebook codebook, int bits, device::Threads& threads);

  // As Exl3Viterbi::encode; each tile's states do not depend on its neighbours.
  void encode(const float* tiles, int64_t count, uint16_t* states);

  Exl3Codebook codebook() const { return codebook_; }
  int bits() const { return bits_; }
  device::Threads& threads() { return threads_; }

 private:
  Exl3Codebook codebook_;
  int bits_;
  device::Threads& threads_;
  std::vector<std::unique_ptr<Exl3Viterbi>> searches_;  // one a thread, made when it is first needed
};

}  // namespace tandem::quant
