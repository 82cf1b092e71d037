// Moves of hidden rows on a GPU; rows_args.h says what each does.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "ops/rows/rows_args.h"

namespace tandem::ops {

class CudaRows {
 public:
  CudaRows(device::Gpu& gpu, const std::vector<std::string>& defines);
  // The last argument bounds what the device memory says: rows, segments or sources of this launch.
  void gather(const MoveRowsArgs& args, int64_t max_count) const;
  void store_head_rows(const KeepHeadRowsArgs& args, int64_t max_rows) const;
  void store_last_rows(const StoreLastRowsArgs& args, int64_t max_segments) const;
  void add(const AddRowsArgs& args, int64_t max_rows) const;
  void zero_first(const ZeroFirstArgs& args, int64_t max_rows) const;

 private:
  template <typename Args>
  void launch(device::Kernel kernel, const Args& args, int64_t blocks) const;

  device::Gpu& gpu_;
  device::Kernel gather_, store_head_rows_, store_last_rows_, add_, zero_first_;
};

}  // namespace tandem::ops
