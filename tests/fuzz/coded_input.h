// Fuzz bytes as a list of tensors that claim things about themselves: names, dtypes and shapes, some likely and some
// absurd, and data that is as long as the shape says or is not. Shared by the targets of the weight formats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quant/tensor_facts.h"

namespace tandem::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return position_ < size_ ? data_[position_++] : 0; }
  int64_t number() { return byte() | byte() << 8; }

  std::vector<int64_t> shape() {
    std::vector<int64_t> dims(byte() % 5);
    for (int64_t& dim : dims) dim = dimension();
    return dims;
  }

  // `largest` tensors at most, with names and dtypes of these lists.
  std::vector<quant::TensorFacts> tensors(std::span<const std::string_view> names,
                                          std::span<const std::string_view> dtypes, size_t largest) {
    std::vector<quant::TensorFacts> all(byte() % (largest + 1));
    lengths_.clear();
    for (quant::TensorFacts& tensor : all) {
      tensor.name = names[byte() % names.size()];
      tensor.dtype = dtypes[byte() % dtypes.size()];
      tensor.shape = shape();
      lengths_.push_back(byte());
    }
    fill(&all);
    return all;
  }

 private:
  int64_t dimension() {
    const uint8_t kind = byte();
    if (kind < 250) return kind;
    const int64_t absurd[] = {-1, INT64_MIN, INT64_MAX, int64_t{1} << 32, int64_t{1} << 62, number()};
    return absurd[kind - 250];
  }

  // Tensor data from the bytes that are left, repeated; length byte 0: what the shape says (when that is little).
  void fill(std::vector<quant::TensorFacts>* all) {
    buffers_.assign(all->size(), {});
    for (size_t i = 0; i < all->size(); ++i) {
      quant::TensorFacts& tensor = (*all)[i];
      int64_t length = tensor.dtype == "U8" || tensor.dtype == "F8_E4M3" ? 1 : tensor.dtype == "F16" ? 2 : 4;
      if (tensor.dtype == "I16" || tensor.dtype == "U16" || tensor.dtype == "BF16") length = 2;
      for (const int64_t dim : tensor.shape)
        length = __builtin_mul_overflow(length, dim, &length) ? 0 : std::clamp<int64_t>(length, 0, 1 << 17);
      if (lengths_[i] != 0) length = lengths_[i];
      buffers_[i].resize(static_cast<size_t>(length));
      const size_t rest = size_ - std::min(position_, size_);
      for (size_t j = 0; j < buffers_[i].size(); ++j)
        buffers_[i][j] = rest == 0 ? std::byte{0} : static_cast<std::byte>(data_[position_ + j % rest]);
      // Constants that a fuzzer would look for in vain.
      const uint32_t marker = tensor.name == "mcg" ? 0xCBAC1FED : 0x83DCD12D;
      if (length == 4 && (tensor.name == "mcg" || tensor.name == "mul1") && lengths_[i] == 0)
        for (size_t j = 0; j < 4; ++j) buffers_[i][j] = static_cast<std::byte>(marker >> 8 * j);
      tensor.data = buffers_[i];
    }
  }

  const uint8_t* data_;
  size_t size_, position_ = 0;
  std::vector<uint8_t> lengths_;
  std::vector<std::vector<std::byte>> buffers_;
};

}  // namespace tandem::fuzz
