// manifest.json of a model folder in EXL3: what it was made from and how, and the SHA-256 of every file, so that a
// changed byte anywhere is found without the source (`tandem verify`).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/threads.h"
#include "eval/hash.h"
#include "eval/quantize.h"

namespace tandem::eval {

constexpr const char* manifest_name = "manifest.json";
// Changes when the same model, text and settings give other bytes.
constexpr const char* exl3_encoder_version = "tandem exl3/1";

// Everything that decides the bytes of an encoding.
struct EncodingOrigin {
  std::string encoder;                          // exl3_encoder_version
  std::map<std::string, std::string> settings;  // "experts": "exl3:4", …
  std::map<std::string, FileFacts> source;      // files of the model
  std::map<std::string, FileFacts> calibration;
  int64_t calibration_tokens = 0;
  std::string calibration_token_sha256;

  bool operator==(const EncodingOrigin&) const = default;
};

EncodingOrigin origin_of(const QuantizeOptions& options, device::Threads& threads);
std::string origin_json(const EncodingOrigin& origin);
// Throws Error(bad_file) naming `where` and the key.
EncodingOrigin parse_origin(std::string_view json, const std::string& where);
// The first thing in which two origins differ ("source config.json"), or empty.
std::string difference(const EncodingOrigin& a, const EncodingOrigin& b);

// The options that an origin's settings stand for, without folders, text and threads. Throws Error(bad_file).
QuantizeOptions options_of(const EncodingOrigin& origin, const std::string& where);

struct Manifest {
  EncodingOrigin origin;
  std::vector<EncodedTensor> tensors;
  std::map<std::string, FileFacts> files;  // of the folder, without the manifest itself
};

// Text with a last key "sha256" over all that stands before it.
std::string manifest_text(const Manifest& manifest);
// JSON whose last brace is missing, with that key and the brace.
std::string seal_manifest(const std::string& text);
// Throws Error(bad_file) naming `where` and the key: no JSON, another schema, a checksum that does not fit, a file name
// with a folder in it.
Manifest parse_manifest(std::string_view text, const std::string& where);

// What differs between a folder and its manifest, one line each naming the file: changed, missing, not listed. Throws
// Error(bad_file) for the manifest itself.
std::vector<std::string> verify_folder(const std::filesystem::path& folder, const Manifest& manifest,
                                       device::Threads& threads);
Manifest read_manifest(const std::filesystem::path& folder);

// "exl3:4", "fp8", "keep".
std::string coding_text(Coding coding, int bits);

}  // namespace tandem::eval
