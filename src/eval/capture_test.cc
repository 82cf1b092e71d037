// Captures: round trip, every kind of damage, and runs that they do not belong to.
#include "eval/capture.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "base/crc32c.h"
#include "base/error.h"
#include "eval/test_quality.h"

namespace tandem::eval::capture_test {
namespace {

constexpr int64_t vocab = 7;
const std::vector<int64_t> sizes = {5, 4, 2};  // 8 positions
constexpr size_t fields = 80, name_at = fields, windows_at = fields + 8, header_end = windows_at + 12;

class Capture : public ::testing::Test {
 protected:
  Capture() { std::filesystem::create_directories(folder_); }
  ~Capture() override { std::filesystem::remove_all(folder_); }

  const Windows windows_ = counted_windows(sizes, vocab, 5);
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tandem-capture-" + std::to_string(::getpid()));
  const std::filesystem::path file_ = folder_ / "teacher.logits";
  const std::vector<float> logits_ = random_logits(vocab * 8, 1);

  CaptureHeader header() const { return capture_header(windows_, "model", 0x12345678, vocab); }
  QualityRun write() {
    TableSource teacher("teacher", vocab, logits_);
    CaptureWriter writer(file_, header());
    QualityRunOptions options;
    options.capture = &writer;
    options.chunk_rows = 3;
    return run_quality(windows_, &teacher, nullptr, options);
  }
  std::vector<std::byte> written() {
    write();
    const auto mapped = MappedFile::open(file_);
    return {mapped.bytes().begin(), mapped.bytes().end()};
  }
  bool is_empty() const { return std::filesystem::is_empty(folder_); }
};

// Reads all of it; what the reader says against it.
std::string refusal(std::span<const std::byte> bytes) {
  try {
    CaptureReader reader(bytes, "file");
    for (size_t window = 0; window < reader.header().window_tokens.size(); ++window) reader.start_window(window);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::bad_file);
    return e.what();
  }
  return "";
}

void put(std::vector<std::byte>& bytes, size_t at, uint32_t value) { std::memcpy(bytes.data() + at, &value, 4); }

void sign(std::vector<std::byte>& bytes) { put(bytes, header_end, crc32c(std::span(bytes).first(header_end))); }

TEST_F(Capture, RoundTrip) {
  const QualityRun direct = write();
  EXPECT_TRUE(is_capture(file_));
  EXPECT_EQ(std::filesystem::file_size(file_), static_cast<uintmax_t>(capture_bytes(header())));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // nothing is left beside it
  auto reader = CaptureReader::open(file_);
  EXPECT_EQ(reader.header().model, "model");
  EXPECT_EQ(reader.header().config_crc, 0x12345678u);
  EXPECT_EQ(reader.header().window, 5);
  EXPECT_EQ(reader.header().positions(), 8);
  reader.check_windows(windows_);
  TableSource student("student", vocab, logits_);
  const QualityRun run = run_quality(windows_, &reader, &student);
  EXPECT_EQ(run.teacher.nll, direct.teacher.nll);  // the same bits
  for (const double kld : run.kld) EXPECT_EQ(kld, 0);
}

TEST_F(Capture, EveryDamagedByteIsSeen) {
  auto bytes = written();
  EXPECT_EQ(refusal(bytes), "");
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    EXPECT_NE(refusal(bytes), "") << "byte " << i;
    bytes[i] ^= std::byte{0x10};
  }
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(refusal(std::span(bytes).first(size)), "") << "cut at " << size;
  bytes.push_back({});
  EXPECT_NE(refusal(bytes).find("size"), std::string::npos);
}

TEST_F(Capture, LyingFieldsAreNamed) {
  const auto whole = written();
  const auto expect = [&](size_t at, uint32_t value, const char* name) {
    auto bytes = whole;
    put(bytes, at, value);
    sign(bytes);
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find(name), std::string::npos) << message << " should name " << name;
  };
  expect(0, 1, "first bytes");
  expect(8, 2, "version: 2; expected 1");
  expect(12, 0, "vocabulary");
  expect(12, 0xFFFFFFFF, "vocabulary");
  expect(12, vocab + 1, "size");
  expect(16, 1, "window: 1");
  expect(16, 4, "tokens of window 0");
  expect(24, 0, "windows: 0");
  expect(24, 1 << 24, "header");
  expect(28, 1, "windows");
  expect(32, 9, "positions");
  expect(36, 1, "positions");
  expect(72, 256, "length of the model's name");
  expect(76, 1, "reserved");
  expect(windows_at, 1, "tokens of window 0");
  expect(windows_at + 8, 6, "tokens of window 2");
  expect(windows_at + 8, 3, "positions");

  auto bytes = whole;
  bytes[name_at] ^= std::byte{1};
  EXPECT_NE(refusal(bytes).find("header"), std::string::npos);
  bytes = whole;
  bytes[header_end + 4 + 4 * vocab * 4 + 4] ^= std::byte{1};
  EXPECT_NE(refusal(bytes).find("window 1"), std::string::npos);
}

TEST_F(Capture, OtherRunsAreRefused) {
  write();
  const auto reader = CaptureReader::open(file_);
  const auto message = [&](const Windows& windows) -> std::string {
    try {
      reader.check_windows(windows);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_NE(message(counted_windows(sizes, vocab, 16)).find("--window 16"), std::string::npos);
  Windows other = windows_;
  other.token_hash[31] = std::byte{1};
  EXPECT_NE(message(other).find("another text"), std::string::npos);
  other = windows_;
  other.windows[0].ids.pop_back();
  EXPECT_NE(message(other).find("window 0: 5 tokens; expected 4"), std::string::npos);
  other = windows_;
  other.windows.pop_back();
  EXPECT_NE(message(other).find("window 2"), std::string::npos);
  other = windows_;
  other.windows.push_back(other.windows[0]);
  EXPECT_NE(message(other).find("window 3: missing"), std::string::npos);

  auto teacher = CaptureReader::open(file_);
  TableSource student("student", vocab + 1, random_logits((vocab + 1) * 8, 1));
  EXPECT_THROW(run_quality(windows_, &teacher, &student), Error);
}

TEST_F(Capture, LogitsThatAreNotFinite) {
  auto bytes = written();
  const size_t first = header_end + 4, window = 4 * vocab * 4;
  put(bytes, first + 4 * vocab, 0x7FC00000);
  put(bytes, first + window, crc32c(std::span(bytes).subspan(first, window)));
  CaptureReader reader(bytes, "file");
  try {
    run_quality(windows_, &reader, nullptr);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.where(), "file: window 0, position 1");
  }
}

TEST_F(Capture, NothingIsLeftOfARunThatFails) {
  {
    CaptureWriter writer(file_, header());
    writer.add(std::span(logits_).first(3 * vocab));
    EXPECT_THROW(writer.seal(), Error);
    EXPECT_THROW(writer.add(std::span(logits_).first(2 * vocab)), Error);  // beyond the window
  }
  EXPECT_TRUE(is_empty());
}

TEST_F(Capture, PlacesThatAreRefused) {
  const auto code = [&](const std::filesystem::path& path, const CaptureHeader& header) {
    try {
      CaptureWriter writer(path, header);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  std::ofstream(folder_ / "notes.txt") << "not a capture";
  EXPECT_EQ(code(folder_ / "notes.txt", header()), ErrorCode::usage);
  EXPECT_EQ(code(folder_, header()), ErrorCode::usage);
  EXPECT_EQ(code(folder_ / "none" / "file", header()), ErrorCode::resource);
  auto large = header();
  large.vocab_size = int64_t{1} << 24;
  large.window_tokens.assign(1 << 16, 1 << 16);
  EXPECT_EQ(code(folder_ / "large", large), ErrorCode::resource);
  write();
  write();  // a capture may be replaced
  EXPECT_TRUE(is_capture(file_));
}

}  // namespace
}  // namespace tandem::eval::capture_test
