// The sum over a row's experts: routed experts in ascending id into the leaf that owns them, one fma each, then the
// shared expert's part of that leaf, then leaf 0 + leaf 1, where an empty leaf is skipped. Floor: the outputs of down
// read once (per_token + 1 rows of fp32 a row) and y written.
#include "device/kernel.h"
#include "ops/experts/experts_args.h"

namespace {

using namespace tandem;
using namespace tandem::device;

TANDEM_DEVICE float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
TANDEM_DEVICE float4 add_product(float weight, float4 x, float4 sum) {
  return make_float4(fma_(weight, x.x, sum.x), fma_(weight, x.y, sum.y), fma_(weight, x.z, sum.z),
                     fma_(weight, x.w, sum.w));
}

// The sum of one leaf so far.
struct Leaf {
  float4 sum;
  bool any;
};

TANDEM_DEVICE void add_shared(const ops::ExpertCombineArgs& args, int32_t which, int64_t row, int32_t output,
                              Leaf& leaf) {
  if (args.shared_leaves[which] == 0) return;
  const int64_t at = ((args.shared_leaves[which] - 1) * args.max_rows + row) * args.outputs + output;
  const float4 part = *reinterpret_cast<const float4*>(args.shared_output + at);
  leaf.sum = leaf.any ? add(leaf.sum, part) : part;
  leaf.any = true;
}

TANDEM_KERNEL(combine_experts, ops::ExpertCombineArgs, 256) {
  const int64_t row = blockIdx.x;
  const int32_t output = static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (row >= *args.rows || output >= args.outputs) return;
  const int32_t border = (args.experts + 1) / 2;
  Leaf first = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), false}, second = first;
#pragma unroll 4
  for (int64_t i = row * args.per_token; i < (row + 1) * args.per_token; ++i) {
    const bool is_second = args.chosen[i] >= border;
    const bool here = is_second ? args.end_leaf == 2 : args.first_leaf == 0;
    const int64_t place = here ? args.place_of[i] : 0;  // read in any case, so that the loads do not wait for a branch
    const float4 part = *reinterpret_cast<const float4*>(args.output + place * args.outputs + output);
    const float weight = args.weights[i];
    if (here && !is_second) first = {add_product(weight, part, first.sum), true};
    if (here && is_second) second = {add_product(weight, part, second.sum), true};
  }
  if (args.first_leaf == 0) add_shared(args, 0, row, output, first);
  if (args.end_leaf == 2) add_shared(args, 1, row, output, second);
  const int64_t at = row * args.y_stride + args.first_output + output;
  if (args.leaf != nullptr) {
    const Leaf only = args.first_leaf == 0 ? first : second;
    *reinterpret_cast<float4*>(args.leaf + at) = only.any ? only.sum : make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
    return;
  }
  if (first.any && second.any) first.sum = add(first.sum, second.sum);
  const float4 y = first.any || !second.any ? first.sum : second.sum;
  *reinterpret_cast<uint2*>(args.y + at) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
}

}  // namespace
