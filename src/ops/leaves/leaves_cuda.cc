// The launches over what two ranks gave.
#include "ops/leaves/leaves_cuda.h"

#include <fmt/format.h>

#include "base/error.h"

namespace tandem::ops {
namespace {

constexpr int64_t block_columns = 1024;

template <typename Args>
void launch(device::Gpu& gpu, device::Kernel kernel, const Args& args, int64_t rows, int64_t columns) {
  if (rows == 0) return;
  device::Launch launch{kernel};
  launch.threads = 256;
  launch.grid[0] = static_cast<uint32_t>(rows);
  launch.grid[1] = static_cast<uint32_t>((columns + block_columns - 1) / block_columns);
  gpu.launch(launch, args);
}

}  // namespace

CudaLeaves::CudaLeaves(device::Gpu& gpu, const std::vector<std::string>& defines) : gpu_(gpu) {
  const auto load = [&](const char* name) { return gpu.load({"ops/leaves/leaves.cu", name, defines}); };
  add_ = load("add_leaves");
  join_embeddings_ = load("join_embeddings");
  join_columns_ = load("join_columns");
}

void CudaLeaves::add(const AddLeavesArgs& args, int64_t max_rows) const {
  if (args.width % 4 != 0 || (args.part[0] == nullptr && args.part[1] == nullptr))
    throw Error(ErrorCode::internal, "sum of leaves", fmt::format("a width of {}", args.width),
                "a multiple of 4, and at least one leaf");
  launch(gpu_, add_, args, max_rows, args.width);
}

void CudaLeaves::join_embeddings(const JoinEmbeddingsArgs& args, int64_t max_rows) const {
  if (args.hidden % 8 != 0)
    throw Error(ErrorCode::internal, "embedding rows", fmt::format("a width of {}", args.hidden), "a multiple of 8");
  launch(gpu_, join_embeddings_, args, max_rows, 1);
}

void CudaLeaves::join_columns(const JoinColumnsArgs& args, int64_t max_rows) const {
  launch(gpu_, join_columns_, args, max_rows, int64_t{args.columns[0]} + args.columns[1]);
}

}  // namespace tandem::ops
