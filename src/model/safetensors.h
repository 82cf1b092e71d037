// The safetensors container: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape",
// "data_offsets"}}, then the tensor data. Files come from strangers, so everything the header says is checked against
// the file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace tandem::model {

// The tensors of one file in the order of their data; they point into `file`. `where` names the file in messages,
// `name` becomes Tensor::file. Throws Error(bad_file) unless the header is at most 100 MB of JSON of exactly that form
// and the tensors cover the data without gap or overlap, each as long as its shape and dtype say.
std::vector<Tensor> parse_safetensors(std::span<const std::byte> file, const std::string& where,
                                      const std::string& name);

}  // namespace tandem::model
