// Launches embed.cu.
#include "ops/embed/embed_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {
CudaEmbed::CudaEmbed(device::Gpu& gpu, const std::vector<std::string>& defines)
    : gpu_(gpu), embed_(gpu.load({"ops/embed/embed.cu", "embed_rows", defines})) {}

void CudaEmbed::embed(const EmbedArgs& args, int64_t max_rows) const {
  for (const int64_t values : {int64_t{args.hidden}, args.out_stride}) {  // rows are copied 16 bytes at a time
    if (values % 8 != 0)
      throw Error(ErrorCode::internal, "CudaEmbed", fmt::format("{} values", values), "a multiple of 8");
  }
  if (max_rows == 0) return;
  device::Launch launch{embed_};
  launch.grid[0] = static_cast<uint32_t>(max_rows);
  launch.threads = 256;
  gpu_.launch(launch, args);
}

device::KernelCost CudaEmbed::cost(int64_t rows, int64_t width, int64_t copies) {
  return {rows * width * 2 * (1 + copies), 0};
}

}  // namespace tandem::ops
