// For tests: writes safetensors files and model folders, so that every layout and every damage can be made on the spot.
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/checkpoint.h"

namespace tandem::model::testing {

inline std::filesystem::path source_dir() { return TANDEM_SOURCE_DIR; }

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem_model_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A whole file from a header and its data, however wrong the header is.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header + data;
}

inline std::string safetensors_bytes(const std::vector<StoredTensor>& tensors) {
  std::string header = "{", data;
  for (const StoredTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header +=
        fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.size() == 1 ? "" : ",",
                    tensor.name, dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, data.size());
  }
  return safetensors_bytes(header + '}', data);
}

inline std::vector<StoredTensor> read_tensors(const Checkpoint& checkpoint) {
  std::vector<StoredTensor> result;
  for (const Tensor* tensor : checkpoint.tensors()) {
    result.push_back({tensor->name, tensor->dtype, tensor->shape,
                      std::string(reinterpret_cast<const char*>(tensor->data.data()), tensor->data.size())});
  }
  return result;
}

inline std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Runs `action`, which must throw Error(code), and returns its message.
inline std::string error_of(const std::function<void()>& action, ErrorCode code = ErrorCode::bad_file) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line: " << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Every one of `parts` must stand in `message`.
inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" is not in: " << message;
  }
}

}  // namespace tandem::model::testing
