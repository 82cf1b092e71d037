// Matrices that a run has finished, each in a file of its own, so that a run that was killed goes on where it was.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "eval/quantize.h"
#include "eval/quantize_weights.h"
#include "model/json_reader.h"

namespace tandem::eval {

struct FinishedTensor {
  EncodedTensor facts;
  std::span<const std::byte> data;  // of weight.tensors, one after the other
  std::optional<MappedFile> file;   // holds `data`; or
  std::vector<std::byte> bytes;
};

class FinishedTensors {
 public:
  // Makes the folder, or takes it over: what a killed run was writing is removed. Throws Error(resource).
  explicit FinishedTensors(const std::filesystem::path& folder);

  // Nothing where there is no file for the weight at this width. A file that is damaged (its SHA-256 does not fit) or
  // of another size is removed and told of in `notes`.
  std::optional<FinishedTensor> find(const ConvertedWeight& weight, std::vector<std::string>* notes = nullptr) const;
  // Throws Error(resource), and leaves nothing then.
  void put(const ConvertedWeight& weight, const EncodedTensor& facts, std::span<const std::byte> data) const;

 private:
  std::filesystem::path path_of(const ConvertedWeight& weight) const;

  std::filesystem::path folder_;
};

// The keys of a matrix in the manifest, and back. Throws Error(bad_file) naming `where` and the key.
std::string facts_json(const EncodedTensor& facts);
EncodedTensor parse_facts(std::string_view json, const std::string& where);
EncodedTensor facts_from(const model::JsonObject& object);

}  // namespace tandem::eval
