// Header, then for each window its logits and their CRC32C.
#include "eval/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"

namespace tandem::eval {
namespace {

constexpr std::array<char, 8> magic = {'T', 'N', 'D', 'M', 'L', 'G', 'T', 'S'};
constexpr uint32_t version = 1;
constexpr size_t longest_name = 255;
constexpr int64_t largest_vocab = int64_t{1} << 24, largest_window = int64_t{1} << 24, most_windows = int64_t{1} << 24;
constexpr int64_t crc_bytes = 4, float_bytes = 4;

struct HeaderFields {
  std::array<char, 8> magic{};
  uint32_t version = 0, vocab_size = 0, window = 0, config_crc = 0;
  uint64_t windows = 0, positions = 0;
  Sha256 token_hash{};
  uint32_t name_length = 0, reserved = 0;
};
static_assert(sizeof(HeaderFields) == 80 && std::has_unique_object_representations_v<HeaderFields>);

int64_t padded_to_words(int64_t length) { return (length + 3) / 4 * 4; }

int64_t header_bytes(int64_t name_length, int64_t windows) {
  return static_cast<int64_t>(sizeof(HeaderFields)) + padded_to_words(name_length) + 4 * windows + crc_bytes;
}

std::vector<std::byte> bytes_of(const CaptureHeader& header) {
  const HeaderFields fields{.magic = magic,
                            .version = version,
                            .vocab_size = static_cast<uint32_t>(header.vocab_size),
                            .window = static_cast<uint32_t>(header.window),
                            .config_crc = header.config_crc,
                            .windows = header.window_tokens.size(),
                            .positions = static_cast<uint64_t>(header.positions()),
                            .token_hash = header.token_hash,
                            .name_length = static_cast<uint32_t>(header.model.size()),
                            .reserved = 0};
  std::vector<std::byte> bytes;
  const auto append = [&bytes](std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  append(std::as_bytes(std::span(&fields, 1)));
  append(std::as_bytes(std::span(header.model)));
  bytes.resize(sizeof fields + static_cast<size_t>(padded_to_words(std::ssize(header.model))));
  append(std::as_bytes(std::span(header.window_tokens)));
  const uint32_t crc = crc32c(bytes);
  append(std::as_bytes(std::span(&crc, 1)));
  return bytes;
}

int64_t logit_bytes(const CaptureHeader& header, size_t window) {
  return (int64_t{header.window_tokens[window]} - 1) * header.vocab_size * float_bytes;
}

std::string size_text(int64_t bytes) {
  return bytes < 10 << 20 ? fmt::format("{} bytes", bytes) : fmt::format("{} MiB", (bytes >> 20) + 1);
}

// Where `path` is, before there is a file of that name.
void check_place(const std::filesystem::path& path, int64_t bytes) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !is_capture(path))
    throw Error(ErrorCode::usage, "--capture", path.string() + " is there and no capture",
                "a new file, or one to replace");
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const auto space = std::filesystem::space(folder, error);
  if (!error && space.available < static_cast<uintmax_t>(bytes))
    throw Error(ErrorCode::resource, path.string(),
                fmt::format("{} free on its disk", size_text(static_cast<int64_t>(space.available))),
                fmt::format("{} for all logits", size_text(bytes)));
}

}  // namespace

int64_t CaptureHeader::positions() const {
  return std::accumulate(window_tokens.begin(), window_tokens.end(), int64_t{0}) - std::ssize(window_tokens);
}

CaptureHeader capture_header(const Windows& windows, std::string model, uint32_t config_crc, int64_t vocab_size) {
  CaptureHeader header;
  header.model = std::move(model);
  header.model.resize(std::min(header.model.size(), longest_name));
  header.config_crc = config_crc;
  header.vocab_size = vocab_size;
  header.window = windows.size;
  header.token_hash = windows.token_hash;
  for (const Window& window : windows.windows) header.window_tokens.push_back(static_cast<uint32_t>(window.ids.size()));
  return header;
}

int64_t capture_bytes(const CaptureHeader& header) {
  const int64_t windows = std::ssize(header.window_tokens);
  return header_bytes(std::ssize(header.model), windows) + header.positions() * header.vocab_size * float_bytes +
         windows * crc_bytes;
}

bool is_capture(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<char, magic.size()> begin{};
  return file.read(begin.data(), begin.size()) && begin == magic;
}

CaptureWriter::CaptureWriter(const std::filesystem::path& path, const CaptureHeader& header)
    : file_((check_place(path, capture_bytes(header)), path)), header_(header) {
  const auto bytes = bytes_of(header_);
  file_.write(bytes);
  at_ = begin_ = std::ssize(bytes);
}

void CaptureWriter::add(std::span<const float> logits) {
  const int64_t bytes = static_cast<int64_t>(logits.size_bytes());
  if (window_ >= header_.window_tokens.size() || at_ + bytes > begin_ + logit_bytes(header_, window_))
    throw Error(ErrorCode::internal, "capture", "more rows than its header says");
  file_.write(std::as_bytes(logits));
  at_ += bytes;
  if (at_ < begin_ + logit_bytes(header_, window_)) return;
  // The window is read back: its checksum is of what the file holds.
  const auto written = MappedFile::open(file_.written_path());
  const uint32_t crc = crc32c(written.bytes().subspan(static_cast<size_t>(begin_), static_cast<size_t>(at_ - begin_)));
  file_.write(std::as_bytes(std::span(&crc, 1)));
  begin_ = at_ += crc_bytes;
  ++window_;
}

void CaptureWriter::seal() {
  if (window_ != header_.window_tokens.size())
    throw Error(ErrorCode::internal, "capture", fmt::format("{} windows", window_),
                std::to_string(header_.window_tokens.size()));
  file_.put_in_place();
}

CaptureReader CaptureReader::open(const std::filesystem::path& path) { return {MappedFile::open(path), path.string()}; }

CaptureReader::CaptureReader(MappedFile file, std::string name) : file_(std::move(file)), name_(std::move(name)) {
  bytes_ = file_->bytes();
  read_header();
}

CaptureReader::CaptureReader(std::span<const std::byte> bytes, std::string name)
    : bytes_(bytes), name_(std::move(name)) {
  read_header();
}

void CaptureReader::bad(const std::string& what, const std::string& found, const std::string& expected) const {
  throw Error(ErrorCode::bad_file, fmt::format("{}: {}", name_, what), found, expected);
}

void CaptureReader::read_header() {
  const int64_t size = std::ssize(bytes_);
  HeaderFields fields;
  if (size < static_cast<int64_t>(sizeof fields)) bad("header", fmt::format("{} bytes", size), "a capture of logits");
  std::memcpy(&fields, bytes_.data(), sizeof fields);
  if (fields.magic != magic) bad("first bytes", "something else", "a capture of logits");
  if (fields.version != version) bad("version", std::to_string(fields.version), std::to_string(version));
  const auto check = [&](const char* what, uint64_t value, int64_t least, int64_t most) {
    if (value < static_cast<uint64_t>(least) || value > static_cast<uint64_t>(most))
      bad(what, std::to_string(value), fmt::format("{} to {}", least, most));
    return static_cast<int64_t>(value);
  };
  header_.vocab_size = check("vocabulary", fields.vocab_size, 1, largest_vocab);
  header_.window = check("window", fields.window, 2, largest_window);
  const int64_t windows = check("windows", fields.windows, 1, most_windows);
  const int64_t name_length = check("length of the model's name", fields.name_length, 0, longest_name);
  if (fields.reserved != 0) bad("reserved", std::to_string(fields.reserved), "0");
  const int64_t end = header_bytes(name_length, windows);
  if (size < end) bad("header", fmt::format("{} bytes", size), fmt::format("{}", end));
  const std::byte* at = bytes_.data() + sizeof fields;
  header_.model.assign(reinterpret_cast<const char*>(at), static_cast<size_t>(name_length));
  header_.window_tokens.resize(static_cast<size_t>(windows));
  std::memcpy(header_.window_tokens.data(), at + padded_to_words(name_length), static_cast<size_t>(4 * windows));
  uint32_t crc = 0;
  std::memcpy(&crc, bytes_.data() + end - crc_bytes, sizeof crc);
  if (const uint32_t found = crc32c(bytes_.first(static_cast<size_t>(end - crc_bytes))); found != crc)
    bad("header", fmt::format("checksum {:08x}", found), fmt::format("{:08x}: it is damaged", crc));
  for (size_t window = 0; window < header_.window_tokens.size(); ++window)
    check(fmt::format("tokens of window {}", window).c_str(), header_.window_tokens[window], 2, header_.window);
  if (fields.positions != static_cast<uint64_t>(header_.positions()))
    bad("positions", std::to_string(fields.positions), fmt::format("{} of its windows", header_.positions()));
  header_.config_crc = fields.config_crc;
  header_.token_hash = fields.token_hash;
  // Largest product: 2^24 windows of 2^24 positions of 2^24 logits; so the sum stops where the file does.
  begins_.push_back(end);
  for (size_t window = 0; window < header_.window_tokens.size() && begins_.back() <= size; ++window)
    begins_.push_back(begins_.back() + logit_bytes(header_, window) + crc_bytes);
  if (begins_.back() != size || begins_.size() != header_.window_tokens.size() + 1)
    bad("size", fmt::format("{} bytes", size),
        begins_.size() == header_.window_tokens.size() + 1 ? fmt::format("{} of its windows", begins_.back())
                                                           : fmt::format("{} or more of its windows", begins_.back()));
}

void CaptureReader::check_windows(const Windows& windows) const {
  if (header_.window != windows.size)
    bad("window", fmt::format("{} tokens", header_.window), fmt::format("--window {} as in this run", windows.size));
  if (header_.token_hash != windows.token_hash)
    bad("tokens", fmt::format("SHA-256 {}", hex(header_.token_hash)),
        fmt::format("{} of this text: the capture is of another text or tokenizer", hex(windows.token_hash)));
  const auto tokens = capture_header(windows, {}, 0, 1).window_tokens;
  const auto [here, there] =
      std::mismatch(header_.window_tokens.begin(), header_.window_tokens.end(), tokens.begin(), tokens.end());
  if (here == header_.window_tokens.end() && there == tokens.end()) return;
  bad(fmt::format("window {}", here - header_.window_tokens.begin()),
      here == header_.window_tokens.end() ? "missing" : fmt::format("{} tokens", *here),
      there == tokens.end() ? "no such window in this text" : fmt::format("{}", *there));
}

void CaptureReader::start(const Windows& windows, size_t window) {
  if (window == 0) check_windows(windows);
  start_window(window);
}

void CaptureReader::start_window(size_t window) {
  at_ = begins_[window];
  end_ = begins_[window + 1] - crc_bytes;
  uint32_t crc = 0;
  std::memcpy(&crc, bytes_.data() + end_, sizeof crc);
  if (const uint32_t found = crc32c(bytes_.subspan(static_cast<size_t>(at_), static_cast<size_t>(end_ - at_)));
      found != crc)
    bad(fmt::format("window {}", window), fmt::format("checksum {:08x}", found),
        fmt::format("{:08x}: it is damaged", crc));
}

std::span<const float> CaptureReader::next(int64_t rows) {
  const int64_t bytes = rows * header_.vocab_size * float_bytes;
  if (rows < 0 || bytes > end_ - at_) throw Error(ErrorCode::internal, name_, "rows beyond the window were asked for");
  rows_.resize(static_cast<size_t>(rows * header_.vocab_size));
  std::memcpy(rows_.data(), bytes_.data() + at_, static_cast<size_t>(bytes));
  at_ += bytes;
  return rows_;
}

}  // namespace tandem::eval
