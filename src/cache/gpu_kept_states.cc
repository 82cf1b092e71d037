// Layout of the records and the launches that copy in and out.
#include "cache/gpu_kept_states.h"

#include <algorithm>

namespace tandem::cache {
namespace {

constexpr int64_t rows_of_block = ops::kda_block_rows;
constexpr int64_t rows_of_log = rows_of_block - 1;  // rows of the unfinished block, at most
constexpr int64_t kept_piece_alignment = 256;

int64_t bytes_of_states(const model::Shape& shape, int64_t kda_layers) {
  return 4 * kda_layers * shape.kda_width() * shape.kda_head_dim;
}

}  // namespace

GpuRecordLayout GpuKeptStates::layout(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  const int64_t width = shape.kda_width();
  GpuRecordLayout l{};
  const auto add = [&](int64_t bytes) {
    const int64_t at = l.size;
    l.size = (l.size + bytes + kept_piece_alignment - 1) / kept_piece_alignment * kept_piece_alignment;
    return at;
  };
  l.s0 = add(bytes_of_states(shape, kda_layers));
  l.log = add(4 * kda_layers * 3 * rows_of_log * width);
  l.conv = add(2 * kda_layers * (shape.short_conv_kernel_size - 1) * 3 * width);
  l.index = add(2 * index_layers * 2 * (shape.index_kpool - 1) * shape.index_head_dim);
  l.head = add(2 * shape.hidden_size);
  return l;
}

int64_t GpuKeptStates::bytes_of_record(const model::Shape& shape, int64_t kda_layers, int64_t index_layers) {
  return layout(shape, kda_layers, index_layers).size;
}

GpuKeptStates::GpuKeptStates(device::Gpu& gpu, const std::vector<std::string>& defines, const model::Shape& shape,
                             int64_t kda_layers, int64_t index_layers, int64_t mtp_layers, int64_t records)
    : gpu_(gpu),
      advance_(gpu.load({"cache/gpu_moves.cu", "advance_states", defines})),
      save_rows_(gpu.load({"cache/gpu_moves.cu", "save_rows", defines})),
      restore_rows_(gpu.load({"cache/gpu_moves.cu", "restore_rows", defines})),
      kda_layers_(kda_layers),
      index_layers_(index_layers),
      mtp_layers_(mtp_layers),
      heads_(shape.kda_num_heads),
      dim_(shape.kda_head_dim),
      conv_rows_(shape.short_conv_kernel_size - 1),
      index_rows_(shape.index_kpool - 1),
      index_width_(shape.index_head_dim),
      hidden_(shape.hidden_size),
      layout_(layout(shape, kda_layers, index_layers)),
      lengths_(static_cast<size_t>(records)) {
  if (records > 0) memory_ = gpu.allocate(records * layout_.size, "kept states");
}

MoveRowsArgs GpuKeptStates::rows_of(const GpuSlots& slots, int64_t slot, int64_t length, int64_t record) const {
  MoveRowsArgs args{};
  int64_t groups = 0;
  const auto add = [&](int64_t in_slot, int64_t in_record, int64_t matrices, int64_t packed_rows, int64_t row_bytes,
                       int64_t first, int64_t last) {
    RowGroup& group = args.groups[groups++];
    group.ring = reinterpret_cast<uint8_t*>(slots.data(slot) + in_slot);
    group.packed = reinterpret_cast<uint8_t*>(memory_.data() + record * layout_.size + in_record);
    group.matrices = static_cast<int32_t>(matrices);
    group.packed_rows = static_cast<int32_t>(packed_rows);
    group.row_bytes = static_cast<int32_t>(row_bytes);
    group.first = static_cast<int32_t>(first);
    group.last = static_cast<int32_t>(last);
  };
  const GpuSlotLayout& in = slots.layout();
  const int64_t width = heads_ * dim_, pool = index_rows_ + 1, text_layers = index_layers_ - mtp_layers_;
  add(in.log, layout_.log, 3 * kda_layers_, rows_of_log, 4 * width, length / rows_of_block * rows_of_block, length);
  add(in.conv, layout_.conv, kda_layers_, conv_rows_, 2 * 3 * width, std::max<int64_t>(0, length - conv_rows_), length);
  // The MTP layer is given row length − 1 next, the others row `length`; the pool that it belongs to is unfinished.
  add(in.index, layout_.index, 2 * text_layers, index_rows_, 2 * index_width_, length / pool * pool, length);
  add(in.index + 2 * 2 * text_layers * ring_rows * index_width_,
      layout_.index + 2 * 2 * text_layers * index_rows_ * index_width_, 2 * mtp_layers_, index_rows_, 2 * index_width_,
      (length - 1) / pool * pool, length - 1);
  add(in.head, layout_.head, 1, 1, 2 * hidden_, length - 1, length);
  return args;
}

void GpuKeptStates::move(device::Kernel kernel, const MoveRowsArgs& args) const {
  int32_t rows = 0, matrices = 0;
  for (const RowGroup& group : args.groups) {
    rows = std::max(rows, group.last - group.first);
    matrices = std::max(matrices, group.matrices);
  }
  device::Launch launch{kernel};
  launch.grid[0] = static_cast<uint32_t>(rows);
  launch.grid[1] = static_cast<uint32_t>(matrices);
  launch.grid[2] = MoveRowsArgs::max_groups;
  launch.threads = 128;
  gpu_.launch(launch, args);
}

void GpuKeptStates::save(const GpuSlots& slots, int64_t slot, int64_t length, int64_t record) {
  if (kda_layers_ * heads_ > 0) {
    AdvanceStatesArgs args{};
    args.s0 = reinterpret_cast<const float*>(slots.data(slot) + slots.layout().s0);
    args.log = reinterpret_cast<const float*>(slots.data(slot) + slots.layout().log);
    args.out = reinterpret_cast<float*>(memory_.data() + record * layout_.size + layout_.s0);
    args.heads = static_cast<int32_t>(heads_);
    args.first_block = static_cast<int32_t>(slots.kda_block(slot));
    args.last_block = static_cast<int32_t>(length / rows_of_block);
    device::Launch launch{advance_};
    launch.threads = 128;
    launch.grid[0] = static_cast<uint32_t>((dim_ * dim_ / 4 + launch.threads - 1) / launch.threads);
    launch.grid[1] = static_cast<uint32_t>(heads_);
    launch.grid[2] = static_cast<uint32_t>(kda_layers_);
    gpu_.launch(launch, args);
  }
  move(save_rows_, rows_of(slots, slot, length, record));
  lengths_[static_cast<size_t>(record)] = length;
}

void GpuKeptStates::restore(int64_t record, GpuSlots& slots, int64_t slot) const {
  const int64_t length = this->length(record), states = 4 * kda_layers_ * heads_ * dim_ * dim_;
  if (states > 0)
    gpu_.copy(slots.data(slot) + slots.layout().s0, memory_.data() + record * layout_.size + layout_.s0, states);
  move(restore_rows_, rows_of(slots, slot, length, record));
  slots.set_kda_block(slot, length / rows_of_block);
}

}  // namespace tandem::cache
