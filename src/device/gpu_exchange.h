// How ranks on GPUs exchange partial sums during a step: device::Exchange's rule for values in device memory, as work
// in the GPU's queue. Ranks of one process meet in cluster/gpu_exchange.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::device {

class GpuExchange {
 public:
  virtual ~GpuExchange() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Every rank gives the `bytes` bytes at all + rank() · bytes, as what is queued before leaves them, and for what is
  // queued after, `all` has all ranks' in their order. All ranks call it with the same size and in the same order, and
  // with two memories in turn: what a rank gave may be read by the others until its next call but one. Throws
  // Error(internal) when another rank has failed or has gone; no rank waits for ever then.
  virtual void all_gather(std::byte* all, int64_t bytes) = 0;

  // Whether all_gather() may be part of a graph.
  virtual bool can_be_captured() const = 0;
};

}  // namespace tandem::device
