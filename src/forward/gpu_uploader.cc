// Weights as bf16 and fp32 through a pinned staging buffer.
#include "forward/gpu_uploader.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace tandem::forward {
namespace {

constexpr int64_t alignment = 256;
constexpr int64_t staging_bytes = int64_t{16} << 20;

device::bf16 nearest_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

void check_format(const ops::Matrix& m, const std::string& name) {
  if (m.format != ops::WeightFormat::bf16 && m.format != ops::WeightFormat::f32) {
    throw Error(ErrorCode::bad_file, name, "a weight in FP8, NVFP4 or EXL3",
                "BF16 or F32 with --device cuda (coded weights run with --device cpu)");
  }
  if (m.in_features % 8 != 0 || m.leaf_columns % 8 != 0) {
    throw Error(ErrorCode::bad_file, name,
                fmt::format("{} input columns, {} in the first leaf", m.in_features, m.leaf_columns),
                "multiples of 8 with --device cuda");
  }
}

// One row of a matrix as bf16.
void row_values(const ops::Matrix& m, int64_t row, device::bf16* to) {
  if (m.format == ops::WeightFormat::bf16) {
    std::memcpy(to, m.data + row * m.stride() * 2, static_cast<size_t>(m.in_features) * 2);
    return;
  }
  for (int64_t i = 0; i < m.in_features; ++i) {
    float value;
    std::memcpy(&value, m.data + (row * m.stride() + i) * 4, 4);
    to[i] = nearest_bf16(value);
  }
}

}  // namespace

GpuUploader::GpuUploader(device::Gpu& gpu, std::byte* memory)
    : gpu_(&gpu), memory_(memory), staging_(gpu.allocate_pinned(staging_bytes, "staging of weights")) {}

std::byte* GpuUploader::take(int64_t bytes) {
  std::byte* piece = memory_ == nullptr ? nullptr : memory_ + used_;
  used_ += (bytes + alignment - 1) / alignment * alignment;
  return piece;
}

void GpuUploader::copy(std::byte* to, const void* from, int64_t size) {
  const auto* source = static_cast<const std::byte*>(from);
  for (int64_t at = 0; at < size; at += staging_bytes) {
    const int64_t count = std::min(staging_bytes, size - at);
    std::memcpy(staging_.data(), source + at, static_cast<size_t>(count));
    gpu_->upload(to + at, staging_.data(), count);
    gpu_->synchronize();
  }
}

const std::byte* GpuUploader::bytes(const void* from, int64_t size) {
  std::byte* to = take(size);
  if (to != nullptr) copy(to, from, size);
  return to;
}

ops::CudaMatrix GpuUploader::matrix(const ops::Matrix& m, const std::string& name) {
  check_format(m, name);
  std::byte* to = take(m.out_features * m.in_features * 2);
  if (to != nullptr && m.in_features > 0) {
    const int64_t row_bytes = m.in_features * 2;
    const int64_t rows_at_a_time = std::max<int64_t>(1, staging_bytes / row_bytes);
    for (int64_t row = 0; row < m.out_features; row += rows_at_a_time) {
      const int64_t count = std::min(rows_at_a_time, m.out_features - row);
      for (int64_t i = 0; i < count; ++i) row_values(m, row + i, staging_.as<device::bf16>() + i * m.in_features);
      gpu_->upload(to + row * row_bytes, staging_.data(), count * row_bytes);
      gpu_->synchronize();
    }
  }
  const auto columns = static_cast<int32_t>(m.in_features);
  return {reinterpret_cast<const device::bf16*>(to), static_cast<int32_t>(m.out_features), columns, columns,
          static_cast<int32_t>(m.leaf_columns)};
}

const float* GpuUploader::floats(std::span<const float> values) {
  return reinterpret_cast<const float*>(bytes(values.data(), static_cast<int64_t>(values.size_bytes())));
}

const device::bf16* GpuUploader::values(std::span<const device::bf16> values) {
  return reinterpret_cast<const device::bf16*>(bytes(values.data(), static_cast<int64_t>(values.size_bytes())));
}

std::vector<device::bf16> bf16_values(const ops::Matrix& m, const std::string& name) {
  check_format(m, name);
  std::vector<device::bf16> out(static_cast<size_t>(m.out_features * m.in_features));
  for (int64_t row = 0; row < m.out_features; ++row) row_values(m, row, out.data() + row * m.in_features);
  return out;
}

}  // namespace tandem::forward
