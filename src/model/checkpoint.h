// A model folder's safetensors shards, mapped into memory and looked up by tensor name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem::model {

enum class DType { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u32, u16, u8, boolean };

const char* dtype_name(DType dtype);  // as spelled in safetensors: "BF16", "F8_E4M3", …
int64_t dtype_bytes(DType dtype);

// A view of one stored tensor; the bytes live as long as the Checkpoint. Data may be unaligned.
struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::string file;  // file name of its shard, for messages

  int64_t elements() const;
};

// Whether a folder has weights to open: an index or a .safetensors file. False for what is no folder.
bool has_weights(const std::filesystem::path& folder);

class Checkpoint {
 public:
  // Opens a folder: model.safetensors.index.json with its shards, or else model.safetensors, or else every
  // *.safetensors; or a single .safetensors file. Headers are checked in full (bounds, overlap, gaps, sizes against
  // shape and dtype); tensor data is not read. Throws Error(bad_file).
  static Checkpoint open(const std::filesystem::path& path);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const Tensor* find(const std::string& name) const;  // nullptr if absent
  const Tensor& at(const std::string& name) const;    // throws Error(bad_file) naming the tensor
  std::vector<const Tensor*> tensors() const;         // sorted by name
  // The tensors whose names begin with `prefix`, sorted by name.
  std::span<const Tensor> starting_with(const std::string& prefix) const;
  // The folder that the files lie in.
  const std::filesystem::path& folder() const;
  int64_t total_bytes() const;

 private:
  struct Files;
  explicit Checkpoint(std::unique_ptr<Files> files);
  std::unique_ptr<Files> files_;
};

}  // namespace tandem::model
