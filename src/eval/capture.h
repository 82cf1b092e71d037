// A sealed file of a teacher's logits, so that students can be compared where the teacher does not fit beside them or
// is not there at all. Layout in docs/internals/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "eval/quality.h"
#include "eval/quality_file.h"
#include "eval/quality_text.h"

namespace tandem::eval {

struct CaptureHeader {
  std::string model;        // name, for people; at most 255 bytes
  uint32_t config_crc = 0;  // CRC32C of the teacher's config.json
  int64_t vocab_size = 0;
  int64_t window = 0;                   // tokens of a full window
  Sha256 token_hash{};                  // Windows::token_hash
  std::vector<uint32_t> window_tokens;  // of each window: 2 to `window`

  int64_t positions() const;
};

CaptureHeader capture_header(const Windows& windows, std::string model, uint32_t config_crc, int64_t vocab_size);

// Of the whole file: four bytes for each position and token of the vocabulary, and little else.
int64_t capture_bytes(const CaptureHeader& header);

// True for a regular file that begins as a capture does.
bool is_capture(const std::filesystem::path& path);

class CaptureWriter {
 public:
  // Throws Error(resource) if the file cannot be made or its disk has not the room, Error(usage) if another file that
  // is no capture would be replaced.
  CaptureWriter(const std::filesystem::path& path, const CaptureHeader& header);

  // Logits of the next rows, which lie in one window. Throws Error(internal) for more than the header says.
  void add(std::span<const float> logits);
  // Puts the file in its place. Throws Error(internal) if rows are missing.
  void seal();

 private:
  NewFile file_;
  CaptureHeader header_;
  size_t window_ = 0;
  int64_t at_ = 0;     // bytes written
  int64_t begin_ = 0;  // of the window's logits
};

class CaptureReader : public LogitSource {
 public:
  // Checks the header and that the file is as long as it says; windows are checked when they start. Throws
  // Error(bad_file) naming what is wrong, also from start().
  static CaptureReader open(const std::filesystem::path& path);
  // `bytes` must outlive the reader.
  CaptureReader(std::span<const std::byte> bytes, std::string name);

  const CaptureHeader& header() const { return header_; }
  // Throws Error(bad_file) unless it holds exactly these windows: another --window, another text, or another tokenizer.
  void check_windows(const Windows& windows) const;

  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return header_.vocab_size; }
  void start(const Windows& windows, size_t window) override;
  std::span<const float> next(int64_t rows) override;
  // start() without windows at hand: checks the window's bytes.
  void start_window(size_t window);

 private:
  CaptureReader(MappedFile file, std::string name);
  void read_header();
  [[noreturn]] void bad(const std::string& what, const std::string& found, const std::string& expected) const;

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::string name_;
  CaptureHeader header_;
  std::vector<int64_t> begins_;  // of each window's logits, and the end
  int64_t at_ = 0, end_ = 0;     // within the window that was started
  std::vector<float> rows_;
};

}  // namespace tandem::eval
