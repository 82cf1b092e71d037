// The simplest kernels there are: random bits, a stream that is read once, nothing. What a GPU can do at the most is
// measured with them.
#include "device/kernel.h"
#include "device/rates_args.h"

namespace {

using namespace tandem::device;

TANDEM_KERNEL(fill_random, FillRandomArgs, 256) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    // A finaliser of MurmurHash3 (fmix32) over the place.
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + args.seed + static_cast<uint32_t>(i >> 32);
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    h ^= h >> 16;
    args.words[i] = (h & args.keep) + args.add;
  }
}

// Floor: the bytes once. Eight loads of a thread are under way at a time.
TANDEM_KERNEL(read_stream, ReadStreamArgs, 256) {
  constexpr int32_t loads = 8;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t sum = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; first < args.count;
       first += loads * threads) {
    uint4 pieces[loads];
    for (int32_t j = 0; j < loads; ++j) {
      const int64_t i = first + j * threads;
      pieces[j] = load_once_16(args.data + (i < args.count ? i : first) * 16);
    }
    for (int32_t j = 0; j < loads; ++j) sum ^= pieces[j].x + pieces[j].y * 3u + pieces[j].z * 5u + pieces[j].w * 7u;
  }
  if (sum == 0x9e3779b9u) *args.out = sum;
}

TANDEM_KERNEL(do_nothing, NothingArgs, 32) {
  if (args.unused < 0) return;
}

}  // namespace
