// Pairs of tiles are taken from a counter, so that no thread waits for another's last pair.
#include "quant/exl3_tile_encoder.h"

#include <algorithm>
#include <atomic>

#include "quant/exl3_viterbi_kernels.h"

namespace tandem::quant {

Exl3TileEncoder::Exl3TileEncoder(Exl3Codebook codebook, int bits, device::Threads& threads)
    : codebook_(codebook), bits_(bits), threads_(threads), searches_(static_cast<size_t>(threads.count())) {}

void Exl3TileEncoder::encode(const float* tiles, int64_t count, uint16_t* states) {
  std::atomic<int64_t> next{0};
  const int64_t pairs = (count + exl3_step_tiles - 1) / exl3_step_tiles;
  threads_.run(std::min<int64_t>(threads_.count(), pairs), [&](int64_t worker) {
    std::unique_ptr<Exl3Viterbi>& search = searches_[static_cast<size_t>(worker)];
    if (search == nullptr) search = std::make_unique<Exl3Viterbi>(codebook_, bits_);
    for (int64_t first; (first = exl3_step_tiles * next++) < count;) {
      search->encode(tiles + first * exl3_tile_weights, std::min<int64_t>(exl3_step_tiles, count - first),
                     states + first * exl3_tile_weights);
    }
  });
}

}  // namespace tandem::quant
