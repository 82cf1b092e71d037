// Kept states in device memory: cache/kept_states.h has the rules of what a record holds. Records are bf16 where the
// slots' rings are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/gpu_moves_args.h"
#include "cache/gpu_slots.h"
#include "device/gpu.h"
#include "model/shape.h"

namespace tandem::cache {

class GpuKeptStates {
 public:
  // The last `mtp_layers` (0 or 1) of the `index_layers` are MTP layers.
  GpuKeptStates(device::Gpu& gpu, const std::vector<std::string>& defines, const model::Shape& shape,
                int64_t kda_layers, int64_t index_layers, int64_t mtp_layers, int64_t records);
  static int64_t bytes_of_record(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);

  int64_t records() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t record) const { return lengths_[static_cast<size_t>(record)]; }  // 0: empty

  // The slot's state after its first `length` ≥ 1 rows; the slot may hold up to max_window rows more. S₀ is stored at
  // the start of block length / 16, advanced by the arithmetic of the step where the slot's is older. Both enqueue two
  // pieces of work, outside of graphs.
  void save(const GpuSlots& slots, int64_t slot, int64_t length, int64_t record);
  // Makes the slot what it was. The record must not be empty.
  void restore(int64_t record, GpuSlots& slots, int64_t slot) const;

 private:
  static GpuRecordLayout layout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers);
  MoveRowsArgs rows_of(const GpuSlots& slots, int64_t slot, int64_t length, int64_t record) const;
  void move(device::Kernel kernel, const MoveRowsArgs& args) const;

  device::Gpu& gpu_;
  device::Kernel advance_, save_rows_, restore_rows_;
  int64_t kda_layers_, index_layers_, mtp_layers_, heads_, dim_, conv_rows_, index_rows_, index_width_, hidden_;
  GpuRecordLayout layout_;
  device::GpuMemory memory_;
  std::vector<int64_t> lengths_;
};

}  // namespace tandem::cache
