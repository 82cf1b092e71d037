// A file: the SHA-256 of all that follows it, the length of a JSON text, that text, the data.
#include "eval/finished_tensors.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "eval/hash.h"
#include "eval/model_folder.h"
#include "eval/quality_file.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

constexpr size_t hash_bytes = std::tuple_size_v<Sha256>, length_bytes = sizeof(uint32_t);

// The facts and the data of a file, or why it is none.
std::optional<FinishedTensor> read(const fs::path& path, int64_t size, std::string& fault) {
  FinishedTensor found;
  found.file = MappedFile::open(path);
  const std::span<const std::byte> bytes = found.file->bytes();
  if (bytes.size() < hash_bytes + length_bytes) {
    fault = "is cut off";
    return std::nullopt;
  }
  Hasher hasher;
  hasher.add(bytes.subspan(hash_bytes));
  const Sha256 digest = hasher.finish();
  if (std::memcmp(digest.data(), bytes.data(), hash_bytes) != 0) {
    fault = "is damaged";
    return std::nullopt;
  }
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + hash_bytes, length_bytes);
  const size_t begin = hash_bytes + length_bytes;
  if (length > bytes.size() - begin || std::ssize(bytes) - static_cast<int64_t>(begin + length) != size) {
    fault = "has another size";
    return std::nullopt;
  }
  found.facts = parse_facts({reinterpret_cast<const char*>(bytes.data() + begin), length}, path.string());
  found.data = bytes.subspan(begin + length);
  return found;
}

}  // namespace

FinishedTensors::FinishedTensors(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_to_write(folder_, error, "a folder to write");
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".new") fs::remove(entry->path(), error);
  if (error) fail_to_write(folder_, error, "a readable folder");
}

fs::path FinishedTensors::path_of(const ConvertedWeight& weight) const {
  return folder_ / fmt::format("{}.{}{}", weight.module(), name_of(weight.coding),
                               weight.coding == Coding::exl3 ? std::to_string(weight.bits) : "");
}

std::optional<FinishedTensor> FinishedTensors::find(const ConvertedWeight& weight,
                                                    std::vector<std::string>* notes) const {
  const fs::path path = path_of(weight);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  std::string fault;
  std::optional<FinishedTensor> found;
  try {
    found = read(path, weight.bytes(), fault);
  } catch (const Error& failure) {
    fault = failure.what();
  }
  if (found) return found;
  if (notes != nullptr) notes->push_back(fmt::format("{} {}: made again", path.string(), fault));
  fs::remove(path, error);
  return std::nullopt;
}

void FinishedTensors::put(const ConvertedWeight& weight, const EncodedTensor& facts,
                          std::span<const std::byte> data) const {
  const std::string json = facts_json(facts);
  const auto length = static_cast<uint32_t>(json.size());
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(&length, 1)));
  hasher.add(json);
  hasher.add(data);
  const Sha256 digest = hasher.finish();
  NewFile file(path_of(weight));
  file.write(std::span<const std::byte>(digest));
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(json);
  file.write(data);
  file.put_in_place();
}

std::string facts_json(const EncodedTensor& facts) {
  nlohmann::ordered_json json;
  json["bits"] = facts.bits;
  json["scale"] = facts.scale;
  json["relative_mse"] = facts.relative_mse;
  json["proxy_error"] = facts.proxy_error;
  json["calibration_rows"] = facts.calibration_rows;
  json["dropped_rows"] = facts.dropped_rows;
  json["damping_retries"] = facts.damping_retries;
  json["fallback"] = facts.fallback;
  return json.dump();
}

EncodedTensor parse_facts(std::string_view json, const std::string& where) {
  const model::JsonDocument document(json, where);
  return facts_from(document.root());
}

EncodedTensor facts_from(const model::JsonObject& root) {
  EncodedTensor facts;
  facts.bits = static_cast<int>(root.integer("bits", {0, 8}));
  facts.scale = root.number("scale");
  facts.relative_mse = root.number("relative_mse");
  facts.proxy_error = root.number("proxy_error");
  facts.calibration_rows = root.integer("calibration_rows", {0});
  facts.dropped_rows = root.integer("dropped_rows", {0});
  facts.damping_retries = static_cast<int>(root.integer("damping_retries", {0, 1000}));
  facts.fallback = root.boolean("fallback");
  return facts;
}

}  // namespace tandem::eval
