// How ranks exchange partial sums during a step (design.md 1, 2). The implementations live in cluster/; the forward
// pass sees only this.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::device {

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Every rank gives `mine` and gets all ranks' values, in the order of ranks: `all` has ranks() · mine.size() values
  // and its piece rank() may be the memory of `mine`. All ranks call it with the same size and in the same order.
  // Throws Error(internal) when another rank has failed or has gone; no rank waits for ever then.
  virtual void all_gather(std::span<const float> mine, std::span<float> all) = 0;
};

}  // namespace tandem::device
