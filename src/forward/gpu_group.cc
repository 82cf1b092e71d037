// The four places where ranks meet: embedding rows, sums over heads, sums over experts and MLP width, logits.
#include "forward/gpu_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace tandem::forward {

GpuGroup::GpuGroup(const model::Shape& whole, const Ranks& ranks, device::GpuExchange* exchange)
    : ranks_(ranks), exchange_(exchange) {
  check_ranks(ranks);
  if (ranks.decode_context_parallel_size > 1)
    throw Error(ErrorCode::usage, "--decode-context-parallel-size",
                fmt::format("{} with --device cuda", ranks.decode_context_parallel_size), "1, or --device cpu");
  const int32_t size = ranks.tensor_parallel_size;
  if (size == 2 && (exchange == nullptr || exchange->ranks() != size || exchange->rank() != ranks.rank))
    throw Error(ErrorCode::internal, "rank", "no exchange of this rank with the other");
  for (int32_t rank = 0; rank < size; ++rank)
    parts_[static_cast<size_t>(rank)] = model::parts_of_rank(whole, rank, size);
}

int64_t GpuGroup::exchange_bytes(const model::Shape& whole, const Capacity& capacity, const Ranks& ranks,
                                 const model::DrafterShape* drafter) {
  if (ranks.tensor_parallel_size == 1) return 0;
  const int64_t vocabulary = model::parts_of_rank(whole, 0, ranks.tensor_parallel_size).vocabulary.count;  // the most
  int64_t bytes = std::max(capacity.max_rows * whole.hidden_size, capacity.max_logit_rows * vocabulary) * 4;
  if (drafter != nullptr) {
    const int64_t rows = capacity.slots * drafter->block_size, drafts = capacity.slots * drafter->draft_rows();
    bytes = std::max({bytes, rows * whole.hidden_size * 2, drafts * vocabulary * 4});
  }
  constexpr int64_t alignment = 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

void GpuGroup::use(std::byte* memory, int64_t exchange_bytes) {
  limit_ = exchange_bytes;
  memories_ = {memory, memory + 2 * exchange_bytes};
}

std::byte* GpuGroup::begin(int64_t bytes) {
  if (bytes > limit_)
    throw Error(ErrorCode::internal, "exchange between ranks", fmt::format("{} bytes", bytes),
                fmt::format("at most {}", limit_));
  memory_ = memories_[turn_];
  turn_ ^= 1;
  constexpr int64_t alignment = 16;  // of what kernels read and write at a time
  bytes_ = (bytes + alignment - 1) / alignment * alignment;
  return memory_ + ranks_.rank * bytes_;
}

void GpuGroup::embed(const GpuOps& ops, const ops::CudaMatrix& table, ops::EmbedArgs args, int64_t max_rows) {
  args.table = table.data;
  args.token_count = table.out_features;
  args.first_token = static_cast<int32_t>(own().vocabulary.first);
  if (alone()) return ops.embed.embed(args, max_rows);
  ops::JoinEmbeddingsArgs join{};
  join.rows = args.rows;
  join.tokens = args.tokens;
  join.first_of_second = static_cast<int32_t>(parts_[1].vocabulary.first);
  join.hidden = args.hidden;
  join.copies = args.copies;
  join.out = args.out;
  join.out_stride = args.out_stride;
  args.out = begin<bf16>(max_rows * args.hidden);
  args.out_stride = args.hidden;
  args.copies = 1;
  ops.embed.embed(args, max_rows);
  gather();
  join.part[0] = of<bf16>(0);
  join.part[1] = of<bf16>(1);
  ops.leaves.join_embeddings(join, max_rows);
}

void GpuGroup::project_heads(const GpuOps& ops, const ops::CudaMatrix& o_proj, const bf16* x, bool second, bf16* y,
                             const int32_t* rows, int64_t max_rows) {
  const int64_t width = o_proj.out_features;
  ops::CudaLinearCall call{o_proj, x, o_proj.in_features, y, width, false};
  if (!alone()) {
    call.y = begin<float>(max_rows * width);
    call.y_is_fp32 = true;
  }
  if (o_proj.in_features > 0) ops.linear.run({&call, 1}, rows, max_rows);
  if (alone()) return;
  gather();
  ops.leaves.add({rows, {of<float>(0), second ? of<float>(1) : nullptr}, y, static_cast<int32_t>(width)}, max_rows);
}

void GpuGroup::feed_forward(const GpuOps& ops, const ops::ExpertShape& shape, ops::ExpertRows rows, int64_t max_rows) {
  if (alone()) return ops.experts.run(shape, rows, max_rows);
  bf16* y = rows.y;
  rows.y = nullptr;
  rows.leaf = ranks_.rank;
  rows.leaf_sum = begin<float>(max_rows * shape.hidden);
  rows.y_stride = shape.hidden;
  ops.experts.run(shape, rows, max_rows);
  gather();
  ops.leaves.add({rows.rows, {of<float>(0), of<float>(1)}, y, static_cast<int32_t>(shape.hidden)}, max_rows);
}

void GpuGroup::head(const GpuOps& ops, const ops::CudaMatrix& lm_head, const bf16* x, float* logits,
                    const int32_t* rows, int64_t max_rows) {
  if (max_rows == 0) return;
  const int64_t columns = lm_head.out_features;
  ops::CudaLinearCall call{lm_head, x, lm_head.in_features, logits, columns, true};
  if (!alone()) call.y = begin<float>(max_rows * parts_[0].vocabulary.count);
  ops.linear.run({&call, 1}, rows, max_rows);
  if (alone()) return;
  gather();
  ops::JoinColumnsArgs join{};
  join.rows = rows;
  for (int64_t rank = 0; rank < 2; ++rank) {
    join.part[rank] = of<float>(rank);
    join.columns[rank] = static_cast<int32_t>(parts_[static_cast<size_t>(rank)].vocabulary.count);
  }
  join.out = logits;
  ops.leaves.join_columns(join, max_rows);
}

}  // namespace tandem::forward
