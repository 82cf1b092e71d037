// Checks that every reader of a weight format makes: dtype, shape, and that the bytes are there.
#include "quant/tensor_facts.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::quant {
namespace {

int64_t item_bytes(std::string_view dtype) {
  if (dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3") return 1;
  if (dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16") return 2;
  return 4;  // F32, I32, U32: callers allow no others
}

// `dtype` among words joined by " or ".
bool among(std::string_view dtypes, std::string_view dtype) {
  while (true) {
    const size_t end = dtypes.find(" or ");
    if (dtypes.substr(0, end) == dtype) return true;
    if (end == std::string_view::npos) return false;
    dtypes.remove_prefix(end + 4);
  }
}

void check_dtype(std::string_view prefix, const TensorFacts& tensor, std::string_view dtypes) {
  if (!among(dtypes, tensor.dtype)) refuse_tensor(prefix, tensor.name, "dtype " + tensor.dtype, std::string(dtypes));
}

void check_bytes(std::string_view prefix, const TensorFacts& tensor, std::span<const int64_t> shape) {
  int64_t bytes = item_bytes(tensor.dtype);
  for (const int64_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes))
      refuse_tensor(prefix, tensor.name, "shape " + shape_text(shape), "fewer than 2^63 bytes");
  if (static_cast<uint64_t>(bytes) != tensor.data.size())
    refuse_tensor(prefix, tensor.name, std::to_string(tensor.data.size()) + " bytes of data",
                  std::to_string(bytes) + " bytes for " + tensor.dtype + " " + shape_text(shape));
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

const TensorFacts* find_tensor(std::string_view prefix, std::span<const TensorFacts> tensors, std::string_view name) {
  const TensorFacts* found = nullptr;
  for (const TensorFacts& tensor : tensors) {
    if (tensor.name != name) continue;
    if (found != nullptr) refuse_tensor(prefix, name, "two tensors of this name", "one");
    found = &tensor;
  }
  return found;
}

void check_tensor(std::string_view prefix, const TensorFacts& tensor, std::string_view dtypes,
                  std::span<const int64_t> shape) {
  check_dtype(prefix, tensor, dtypes);
  if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
    refuse_tensor(prefix, tensor.name, "shape " + shape_text(tensor.shape), shape_text(shape));
  check_bytes(prefix, tensor, tensor.shape);
}

void check_scalar(std::string_view prefix, const TensorFacts& tensor, std::string_view dtypes) {
  check_dtype(prefix, tensor, dtypes);
  if (!tensor.shape.empty() && (tensor.shape.size() != 1 || tensor.shape[0] != 1))
    refuse_tensor(prefix, tensor.name, "shape " + shape_text(tensor.shape), "one element: [] or [1]");
  check_bytes(prefix, tensor, tensor.shape);
}

void refuse_tensor(std::string_view prefix, std::string_view name, std::string found, std::string expected) {
  throw Error(ErrorCode::bad_file, std::string(prefix) + "." + std::string(name), std::move(found),
              std::move(expected));
}

}  // namespace tandem::quant
