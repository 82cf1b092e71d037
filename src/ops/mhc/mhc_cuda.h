// Hyper-connections on a GPU (spec/model.md 2.3; mhc.h has the formulas): what stands between two sub-layers.
//
// Streams are bf16, rounded after leave; the mapping is a tensor-core product of bf16 streams and bf16 fn (exact
// products, fp32 sums: 128 columns of a stream from a zero accumulator, streams and pieces added in ascending order in
// fp32); the collapsed x is rounded to bf16, its norm has fp32 statistics of the rounded values and rounds once.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/kernel_cost.h"
#include "ops/mhc/mhc_args.h"

namespace tandem::ops {

class CudaMhc {
 public:
  // Error(internal) unless hc_mult is cuda_streams and hidden a multiple of 8.
  CudaMhc(device::Gpu& gpu, const std::vector<std::string>& defines, int64_t hc_mult, int64_t hidden,
          int64_t sinkhorn_iters, float hc_eps, float rms_norm_eps);
  // Device memory that CudaMhcRows::scratch points to; used from enter or leave_and_enter to its end only.
  static int64_t scratch_bytes(int64_t hidden, int64_t max_rows);

  // x = RMSNorm(Σ_s pre[s] streams[s]; site.norm), bf16 [rows, hidden]; writes post and comb. Two launches.
  void enter(const CudaMhcRows& at, const CudaMhcSite& site, device::bf16* x, int64_t x_stride, int64_t max_rows) const;
  // streams[j] ← post[j] y + Σ_i comb[i][j] streams[i], then enter at the next site: the streams are read and written
  // once by the first launch, read again by the second. post and comb are the last site's before and the next one's
  // after.
  void leave_and_enter(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, const CudaMhcSite& next,
                       device::bf16* x, int64_t x_stride, int64_t max_rows) const;
  // The first half alone. One launch.
  void leave(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, int64_t max_rows) const;
  // out[i] = RMSNorm(mean of the streams of row row_list[i]; norm). norm nullptr: the mean, rounded; row_list nullptr:
  // row i. `rows`: how many there are of out.
  void collapse(const device::bf16* streams, const float* norm, const int32_t* row_list, const int32_t* rows,
                device::bf16* out, int64_t out_stride, int64_t max_rows) const;

  // Of leave_and_enter over `rows` rows.
  device::KernelCost cost(int64_t rows) const;

 private:
  void map(const CudaMhcRows& at, const device::bf16* y, int64_t y_stride, const device::bf16* fn,
           int64_t max_rows) const;
  void finish(const CudaMhcRows& at, const CudaMhcSite& site, device::bf16* x, int64_t x_stride,
              int64_t max_rows) const;

  device::Gpu& gpu_;
  device::Kernel map_, enter_, mean_;
  int32_t hidden_, sinkhorn_iters_;
  float hc_eps_, rms_norm_eps_;
};

}  // namespace tandem::ops
