// Offsets are the running sum of sizes.
#include "model/safetensors_writer.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

namespace tandem::model {

int64_t TensorHeader::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), dtype_bytes(dtype), std::multiplies<>());
}

std::string safetensors_header(const std::vector<TensorHeader>& tensors) {
  constexpr size_t length_bytes = 8;
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    header[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((length_bytes - text.size() % length_bytes) % length_bytes, ' ');
  std::string length(length_bytes, '\0');
  for (size_t i = 0; i < length_bytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace tandem::model
