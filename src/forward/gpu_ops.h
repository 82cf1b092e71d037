// Every operation of the text model on a GPU, with its kernels loaded.
#pragma once

#include <string>
#include <vector>

#include "device/gpu.h"
#include "model/shape.h"
#include "ops/attend/mla_absorb_cuda.h"
#include "ops/attend/sparse_attend_cuda.h"
#include "ops/embed/embed_cuda.h"
#include "ops/experts/experts_cuda.h"
#include "ops/index/index_select_cuda.h"
#include "ops/index/index_store_cuda.h"
#include "ops/kda_block/kda_block_cuda.h"
#include "ops/kda_conv/kda_conv_cuda.h"
#include "ops/latent/latent_cuda.h"
#include "ops/leaves/leaves_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/mhc/mhc_cuda.h"
#include "ops/norm/norm_cuda.h"
#include "ops/route/route_cuda.h"
#include "ops/rows/rows_cuda.h"
#include "ops/sample/sample_cuda.h"

namespace tandem::forward {

// What kernels of this model are compiled with; drafter_head_dim: of a DFlash2 drafter, or the default.
std::vector<std::string> kernel_defines(const model::Shape& shape, int64_t drafter_head_dim = 128);

struct GpuOps {
  GpuOps(device::Gpu& gpu, const std::vector<std::string>& defines, const model::Shape& shape)
      : norm(gpu, defines),
        linear(gpu, defines),
        mhc(gpu, defines, shape.hc_mult, shape.hidden_size, shape.hc_sinkhorn_iters, shape.hc_eps, shape.rms_norm_eps),
        embed(gpu, defines),
        rows(gpu, defines),
        kda_conv(gpu, defines, shape.kda_head_dim),
        kda_block(gpu, defines, shape.kda_head_dim),
        kda_output(gpu, defines, shape.kda_head_dim),
        latent_store(gpu, defines),
        index_store(gpu, defines),
        index_select(gpu, defines),
        selection_share(gpu, defines),
        attend(gpu, defines),
        route(gpu, defines),
        experts(gpu, defines),
        leaves(gpu, defines),
        sample(gpu, defines) {}

  ops::CudaNorm norm;
  ops::CudaLinear linear;
  ops::CudaMhc mhc;
  ops::CudaEmbed embed;
  ops::CudaRows rows;
  ops::CudaKdaConv kda_conv;
  ops::CudaKdaBlock kda_block;
  ops::CudaKdaOutput kda_output;
  ops::CudaLatentStore latent_store;
  ops::CudaIndexStore index_store;
  ops::CudaIndexSelect index_select;
  ops::CudaSelectionShare selection_share;
  ops::CudaSparseAttend attend;
  ops::CudaRoute route;
  ops::CudaExperts experts;
  ops::CudaLeaves leaves;
  ops::CudaSample sample;
};

}  // namespace tandem::forward
