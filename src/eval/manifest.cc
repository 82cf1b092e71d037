// The manifest as JSON, and a folder against it.
#include "eval/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/finished_tensors.h"
#include "eval/model_folder.h"
#include "model/json_reader.h"

namespace tandem::eval {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using model::JsonObject;

constexpr const char* manifest_schema = "tandem.exl3_manifest/1";
constexpr std::string_view checksum_key = ",\n\"sha256\": \"", checksum_end = "\"\n}\n";

Json files_json(const std::map<std::string, FileFacts>& files) {
  Json json = Json::object();
  for (const auto& [name, facts] : files) json[name] = {{"bytes", facts.bytes}, {"sha256", facts.sha256}};
  return json;
}

std::map<std::string, FileFacts> files_of(const JsonObject& object) {
  std::map<std::string, FileFacts> files;
  for (const std::string& name : object.keys()) {
    const JsonObject facts = object.object(name);
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == ".." ||
        name.find('\0') != std::string::npos)
      object.refuse(name, "the name of a file without a folder", model::printable(name));
    const FileFacts read{facts.integer("bytes", {0}), facts.text("sha256")};
    if (read.sha256.size() != 64 || read.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
      facts.refuse("sha256", "64 hexadecimal digits");
    files.emplace(name, read);
  }
  return files;
}

Json origin_object(const EncodingOrigin& origin) {
  return {{"encoder", origin.encoder},
          {"settings", origin.settings},
          {"source", files_json(origin.source)},
          {"calibration",
           {{"files", files_json(origin.calibration)},
            {"tokens", origin.calibration_tokens},
            {"token_sha256", origin.calibration_token_sha256}}}};
}

EncodingOrigin origin_from(const JsonObject& root) {
  EncodingOrigin origin;
  origin.encoder = root.text("encoder");
  for (auto& [key, value] : root.text_members("settings")) origin.settings.emplace(key, value);
  origin.source = files_of(root.object("source"));
  const JsonObject calibration = root.object("calibration");
  origin.calibration = files_of(calibration.object("files"));
  origin.calibration_tokens = calibration.integer("tokens", {0});
  origin.calibration_token_sha256 = calibration.text("token_sha256");
  return origin;
}

std::string out_scales_text(quant::Exl3OutScales scales) {
  switch (scales) {
    case quant::Exl3OutScales::always: return "always";
    case quant::Exl3OutScales::never: return "never";
    case quant::Exl3OutScales::automatic: return "auto";
  }
  return {};
}

std::string scale_search_text(quant::Exl3ScaleSearch search) {
  switch (search) {
    case quant::Exl3ScaleSearch::full: return "full";
    case quant::Exl3ScaleSearch::small: return "small";
    case quant::Exl3ScaleSearch::none: return "none";
  }
  return {};
}

// The value whose text is `word`.
template <typename Value, size_t Count, typename Text>
Value value_of(const std::map<std::string, std::string>& settings, const char* key,
               const std::array<Value, Count>& values, const Text& text_of, const std::string& where) {
  const auto found = settings.find(key);
  const std::string word = found == settings.end() ? "missing" : found->second;
  for (const Value value : values)
    if (word == text_of(value)) return value;
  throw Error(ErrorCode::bad_file, fmt::format("{}: settings.{}", where, key), model::printable(word),
              "a value that this program writes");
}

std::string difference_of_files(const char* what, const std::map<std::string, FileFacts>& a,
                                const std::map<std::string, FileFacts>& b) {
  for (const auto& [name, facts] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !(found->second == facts)) return fmt::format("{} {}", what, name);
  }
  for (const auto& [name, facts] : b)
    if (!a.contains(name)) return fmt::format("{} {}", what, name);
  return {};
}

template <typename Number>
Number number_of(const std::map<std::string, std::string>& settings, const char* key, const std::string& where) {
  const auto found = settings.find(key);
  Number value{};
  if (found != settings.end()) {
    const char* const end = found->second.data() + found->second.size();
    const auto [at, error] = std::from_chars(found->second.data(), end, value);
    if (error == std::errc() && at == end) return value;
  }
  throw Error(ErrorCode::bad_file, fmt::format("{}: settings.{}", where, key),
              found == settings.end() ? "missing" : model::printable(found->second), "a number");
}

}  // namespace

std::string coding_text(Coding coding, int bits) {
  return coding == Coding::exl3 ? fmt::format("exl3:{}", bits) : std::string(name_of(coding));
}

EncodingOrigin origin_of(const QuantizeOptions& options, device::Threads& threads) {
  const Exl3Options& exl3 = options.exl3;
  EncodingOrigin origin;
  origin.encoder = exl3_encoder_version;
  origin.settings = {{"experts", coding_text(options.experts, exl3.expert_bits)},
                     {"dense", coding_text(options.dense, exl3.dense_bits)},
                     {"head", coding_text(options.head, exl3.head_bits)},
                     {"bits_target", fmt::format("{}", exl3.bits_target)},
                     {"layout", std::string(name_of(exl3.layout))},
                     {"codebook", std::string(name_of(exl3.codebook))},
                     {"out_scales", out_scales_text(exl3.out_scales)},
                     {"scale_search", scale_search_text(exl3.scale_search)},
                     {"seed", fmt::format("{}", exl3.seed)},
                     {"window", fmt::format("{}", exl3.calibration.size)}};
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(options.model, error), end; !error && entry != end; entry.increment(error))
    if (entry->is_regular_file(error) && !entry->path().filename().string().starts_with('.'))
      names.push_back(entry->path().filename().string());
  if (error) fail_to_write(options.model, error, "a readable folder");
  origin.source = facts_of_files(options.model, names, threads);
  for (const CalibrationFile& file : exl3.calibration_files) origin.calibration[file.name] = {file.bytes, file.sha256};
  origin.calibration_tokens = exl3.calibration.tokens();
  origin.calibration_token_sha256 = hex(exl3.calibration.token_hash);
  return origin;
}

std::string origin_json(const EncodingOrigin& origin) { return origin_object(origin).dump(1) + "\n"; }

EncodingOrigin parse_origin(std::string_view json, const std::string& where) {
  const model::JsonDocument document(json, where);
  return origin_from(document.root());
}

std::string difference(const EncodingOrigin& a, const EncodingOrigin& b) {
  if (a.encoder != b.encoder) return "encoder";
  for (const auto& [key, value] : a.settings) {
    const auto found = b.settings.find(key);
    if (found == b.settings.end() || found->second != value) return "settings " + key;
  }
  if (a.settings.size() != b.settings.size()) return "settings";
  std::string files = difference_of_files("source", a.source, b.source);
  if (files.empty()) files = difference_of_files("calibration", a.calibration, b.calibration);
  if (!files.empty()) return files;
  const bool same =
      a.calibration_tokens == b.calibration_tokens && a.calibration_token_sha256 == b.calibration_token_sha256;
  return same ? "" : "calibration tokens";
}

QuantizeOptions options_of(const EncodingOrigin& origin, const std::string& where) {
  const auto& settings = origin.settings;
  QuantizeOptions options;
  const auto coding = [&](const char* key, int& bits) {
    const auto found = settings.find(key);
    const std::string word = found == settings.end() ? "missing" : found->second;
    for (bits = 0; bits <= 8; ++bits)
      for (const Coding value : {Coding::keep, Coding::fp8, Coding::nvfp4, Coding::exl3})
        if (word == coding_text(value, bits) && (value == Coding::exl3) == (bits > 0)) return value;
    bits = 0;
    if (word == coding_text(Coding::exl3, 0)) return Coding::exl3;  // the allocator gives the widths
    throw Error(ErrorCode::bad_file, fmt::format("{}: settings.{}", where, key), model::printable(word),
                "keep, fp8, nvfp4 or exl3:N");
  };
  options.experts = coding("experts", options.exl3.expert_bits);
  options.dense = coding("dense", options.exl3.dense_bits);
  options.head = coding("head", options.exl3.head_bits);
  options.exl3.bits_target = number_of<double>(settings, "bits_target", where);
  options.exl3.seed = number_of<uint64_t>(settings, "seed", where);
  options.exl3.is_calibrated = origin.calibration_tokens > 0;
  options.exl3.calibration.size = number_of<int64_t>(settings, "window", where);
  using quant::Exl3Codebook, quant::Exl3OutScales, quant::Exl3ScaleSearch;
  options.exl3.layout = value_of(
      settings, "layout", std::array{Exl3Layout::exl3, Exl3Layout::tr3},
      [](Exl3Layout value) { return name_of(value); }, where);
  options.exl3.codebook = value_of(
      settings, "codebook", std::array{Exl3Codebook::three_inst, Exl3Codebook::mcg, Exl3Codebook::mul1},
      [](Exl3Codebook value) { return name_of(value); }, where);
  options.exl3.out_scales = value_of(settings, "out_scales",
                                     std::array{Exl3OutScales::always, Exl3OutScales::never, Exl3OutScales::automatic},
                                     out_scales_text, where);
  options.exl3.scale_search = value_of(settings, "scale_search",
                                       std::array{Exl3ScaleSearch::full, Exl3ScaleSearch::small, Exl3ScaleSearch::none},
                                       scale_search_text, where);
  return options;
}

std::string manifest_text(const Manifest& manifest) {
  Json json = {{"schema", manifest_schema}};
  json.update(origin_object(manifest.origin));
  Json& tensors = json["tensors"] = Json::object();
  for (const EncodedTensor& tensor : manifest.tensors) tensors[tensor.name] = Json::parse(facts_json(tensor));
  json["files"] = files_json(manifest.files);
  std::string text = json.dump(0);
  text.resize(text.rfind('\n'));  // the last brace
  return seal_manifest(text);
}

std::string seal_manifest(const std::string& text) {
  return fmt::format("{}{}{}{}", text, checksum_key, hex(sha256(text)), checksum_end);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const model::JsonDocument document(text, where);
  const JsonObject root = document.root();
  if (root.text("schema") != manifest_schema) root.refuse("schema", manifest_schema);
  const size_t tail = checksum_key.size() + 64 + checksum_end.size();
  const std::string_view body = text.substr(0, text.size() - std::min(text.size(), tail));
  const std::string found = hex(sha256(body));
  if (text.substr(body.size()) != fmt::format("{}{}{}", checksum_key, found, checksum_end))
    root.refuse("sha256", fmt::format("{} of the text before it: the file was changed", found));
  Manifest manifest;
  manifest.origin = origin_from(root);
  const JsonObject tensors = root.object("tensors");
  for (const std::string& name : tensors.keys()) {
    EncodedTensor facts = facts_from(tensors.object(name));
    facts.name = name;
    manifest.tensors.push_back(std::move(facts));
  }
  manifest.files = files_of(root.object("files"));
  return manifest;
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / manifest_name;
  const MappedFile file = MappedFile::open(path);
  return parse_manifest(file.text(), path.string());
}

std::vector<std::string> verify_folder(const fs::path& folder, const Manifest& manifest, device::Threads& threads) {
  std::vector<std::string> faults, present;
  std::error_code error;
  std::set<std::string> there;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    there.insert(entry->path().filename().string());
  if (error) throw Error(ErrorCode::bad_file, folder.string(), error.message(), "a readable folder");
  for (const auto& [name, facts] : manifest.files) {
    if (!there.contains(name)) {
      faults.push_back(fmt::format("{}: missing", name));
    } else if (fs::file_size(folder / name, error) != static_cast<uintmax_t>(facts.bytes)) {
      faults.push_back(
          fmt::format("{}: {} bytes; expected {}", name, fs::file_size(folder / name, error), facts.bytes));
    } else {
      present.push_back(name);
    }
  }
  for (const auto& [name, facts] : facts_of_files(folder, present, threads))
    if (const FileFacts& expected = manifest.files.at(name); !(facts == expected))
      faults.push_back(fmt::format("{}: SHA-256 {}; expected {}", name, facts.sha256, expected.sha256));
  for (const std::string& name : there)
    if (name != manifest_name && !manifest.files.contains(name))
      faults.push_back(fmt::format("{}: not in the manifest", name));
  return faults;
}

}  // namespace tandem::eval
