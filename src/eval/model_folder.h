// What every written model folder has beside its converted weights: shards, index, the files that are not weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "eval/quantize.h"
#include "eval/quantize_weights.h"
#include "model/checkpoint.h"
#include "model/safetensors_writer.h"

namespace tandem::eval {

// Throws Error(resource) with the system's words.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, const std::error_code& error,
                                const std::string& expected);

// The path without "..", "." and a last slash.
std::filesystem::path folder_to_write(const std::filesystem::path& out);

// Throws Error(usage) naming --out.
void refuse_present(const std::filesystem::path& path, const char* expected);

// config.json of a model in plain numbers. Throws Error(bad_file), also if it has a quantization_config.
nlohmann::ordered_json read_plain_config(const std::filesystem::path& path);

// Tokenizer, templates, texts: everything at the top but weights, what speaks of them, and hidden files.
std::vector<std::filesystem::path> other_files(const std::filesystem::path& folder);

struct Shard {
  std::vector<const model::Tensor*> copied;
  std::vector<const ConvertedWeight*> converted;
};
using Shards = std::map<std::string, Shard>;  // by file name

// Copied tensors come first, those with the widest elements before others, so that their data is aligned. Points into
// both arguments.
Shards shards_of(const model::Checkpoint& checkpoint, const ConversionPlan& plan);
std::vector<model::TensorHeader> headers_of(const Shard& shard);

// Of what is converted and copied, without what EXL3 adds.
QuantizeReport make_report(const QuantizeOptions& options, const ConversionPlan& plan, const Shards& shards,
                           int64_t source_bytes);

// Throws Error(resource) where the disk of `folder` has no room for tensors of `bytes` and the files.
void check_space(const std::filesystem::path& folder, int64_t bytes, const std::vector<std::filesystem::path>& files);

void write_text(const std::filesystem::path& path, const std::string& text);
void write_index(const std::filesystem::path& folder, const Shards& shards, int64_t bytes);
void copy_files(const std::vector<std::filesystem::path>& files, const std::filesystem::path& folder);

// On disk, and not only in the system's memory, when this returns: a file or the names in a folder; a folder with its
// files. Throws Error(resource).
void flush(const std::filesystem::path& path);
void flush_folder(const std::filesystem::path& folder);

}  // namespace tandem::eval
