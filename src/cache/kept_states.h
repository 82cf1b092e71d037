// Kept states: copies of a slot at a length, from which any later stream with the same tokens can go on (design.md 5,
// spec/runtime.md b.4). A fixed array of records; which tokens a record stands for is PrefixIndex's business. A record
// is smaller than a slot: of the logs and rings it holds the rows that a stream of this length can still look back to.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/slots.h"
#include "device/host_memory.h"
#include "device/threads.h"
#include "model/shape.h"

namespace tandem::cache {

class KeptStates {
 public:
  // The last `mtp_layers` (0 or 1) of the `index_layers` are MTP layers.
  KeptStates(const model::Shape& shape, int64_t kda_layers, int64_t index_layers, int64_t mtp_layers, int64_t records);
  static int64_t bytes_of_record(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);

  int64_t records() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t record) const { return lengths_[static_cast<size_t>(record)]; }  // 0: empty

  // The slot's state after its first `length` ≥ 1 rows; the slot may hold up to max_window rows more. S₀ is stored at
  // the start of block length / 16, so what is stored of the text model depends on the tokens alone. The MTP layer's
  // row length − 1 depends on the token after it, so of that layer's raw index rows those are kept with which this row
  // is absorbed again.
  void save(device::Threads& threads, Slots& slots, int64_t slot, int64_t length, int64_t record);
  // Makes the slot what it was. The record must not be empty.
  void restore(device::Threads& threads, int64_t record, Slots& slots, int64_t slot) const;

 private:
  // Pieces of a record, in floats from its start.
  struct Layout {
    int64_t s0 = 0, log = 0, conv = 0, index = 0, head = 0, size = 0;
  };
  static Layout layout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);
  // Raw index rows [first, last) of a layer that a record at `length` holds.
  struct Range {
    int64_t first = 0, last = 0;
  };
  Range index_range(int64_t layer, int64_t length) const;
  float* at(int64_t record) const { return memory_.floats() + record * layout_.size; }

  int64_t kda_layers_, index_layers_, mtp_layers_, heads_, dim_, conv_rows_, index_rows_, index_width_, hidden_;
  Layout layout_;
  device::HostMemory memory_;
  std::vector<int64_t> lengths_;
};

}  // namespace tandem::cache
