// Reads and checks a safetensors header with a streaming JSON parser, so that duplicate names are seen and no document
// is built.
#include "model/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "model/json_reader.h"

namespace tandem::model {
namespace {

using nlohmann::json;

constexpr uint64_t largest_header = 100'000'000;  // the limit of the format's reference implementation
constexpr size_t most_dimensions = 8;

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
};
constexpr DTypeRow dtypes[] = {
    {DType::f64, "F64", 8},         {DType::f32, "F32", 4},         {DType::f16, "F16", 2}, {DType::bf16, "BF16", 2},
    {DType::f8_e4m3, "F8_E4M3", 1}, {DType::f8_e5m2, "F8_E5M2", 1}, {DType::i64, "I64", 8}, {DType::i32, "I32", 4},
    {DType::i16, "I16", 2},         {DType::i8, "I8", 1},           {DType::u32, "U32", 4}, {DType::u16, "U16", 2},
    {DType::u8, "U8", 1},           {DType::boolean, "BOOL", 1},
};

const DTypeRow& row_of(DType dtype) {
  for (const DTypeRow& row : dtypes) {
    if (row.dtype == dtype) return row;
  }
  throw Error(ErrorCode::internal, "dtype", fmt::format("{}", static_cast<int>(dtype)), "a known dtype");
}

// What the header says about one tensor.
struct Entry {
  Tensor tensor;
  uint64_t begin = 0, end = 0;  // bytes after the header
};

// Receives the header's JSON piece by piece. Accepts only the form of the format; anything else throws.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  HeaderReader(std::string where, std::string file) : where_(std::move(where)), file_(std::move(file)) {}

  std::vector<Entry> take() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::start: state_ = State::header; return true;
      case State::name: state_ = key_ == "__metadata__" ? State::metadata : State::tensor; break;
      default: refuse("an object");
    }
    if (state_ == State::tensor) begin_tensor();
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) end_tensor();
    state_ = state_ == State::header ? State::done : State::header;
    key_.clear();
    return true;
  }

  bool key(string_t& text) override {
    switch (state_) {
      case State::header:
        if (!names_.insert(text).second) bad("tensor " + printable(text), "named twice", "every name once");
        key_ = text;
        state_ = State::name;
        return true;
      case State::tensor: begin_field(text); return true;
      case State::metadata: return true;
      default: refuse("a key");
    }
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata) return true;
    if (state_ != State::dtype) refuse("a string");
    for (const DTypeRow& row : dtypes) {
      if (text == row.name) {
        current_.tensor.dtype = row.dtype;
        state_ = State::tensor;
        return true;
      }
    }
    bad(place(), "dtype \"" + printable(text) + '"', "one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64..I8, U8, BOOL");
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape) {
      state_ = State::shape_numbers;
    } else if (state_ == State::offsets) {
      state_ = State::offset_numbers;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offset_numbers && offsets_ != 2) {
      bad(place(), fmt::format("data_offsets with {} numbers", offsets_), "two");
    }
    state_ = State::tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (state_ == State::shape_numbers) {
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        refuse(fmt::format("dimension {}", number));
      if (current_.tensor.shape.size() == most_dimensions) {
        bad(place(), fmt::format("more than {} dimensions", most_dimensions), "a shape of fewer");
      }
      current_.tensor.shape.push_back(static_cast<int64_t>(number));
    } else if (state_ == State::offset_numbers) {
      if (offsets_ == 2) bad(place(), "data_offsets with more than 2 numbers", "two");
      (offsets_ == 0 ? current_.begin : current_.end) = number;
      ++offsets_;
    } else {
      refuse(fmt::format("the number {}", number));
    }
    return true;
  }

  bool number_integer(number_integer_t number) override { refuse(fmt::format("the number {}", number)); }
  bool number_float(number_float_t, const string_t& text) override { refuse("the number " + printable(text)); }
  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool binary(binary_t&) override { refuse("binary data"); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    bad("header", fmt::format("not valid JSON at byte {}", position), "a JSON object");
  }

 private:
  enum class State {
    start,
    header,    // in the outer object, before a name
    name,      // after a name
    metadata,  // in "__metadata__": strings only
    tensor,    // in a tensor's object, before a field
    dtype,
    shape,
    offsets,
    shape_numbers,
    offset_numbers,
    done,
  };

  [[noreturn]] void bad(const std::string& what, std::string found, std::string expected) const {
    throw Error(ErrorCode::bad_file, where_ + ": " + what, std::move(found), std::move(expected));
  }

  std::string place() const { return key_.empty() ? "header" : "tensor " + printable(key_); }

  [[noreturn]] void refuse(const std::string& found) const {
    static constexpr const char* expected[] = {
        "a JSON object",
        "a tensor's name",
        "an object with dtype, shape and data_offsets",
        "strings only",
        "dtype, shape or data_offsets",
        "dtype as a string",
        "shape as an array of non-negative integers",
        "data_offsets as an array of two non-negative integers",
        "shape as an array of non-negative integers",
        "data_offsets as an array of two non-negative integers",
        "the end of the header",
    };
    bad(place(), "found " + found, expected[static_cast<size_t>(state_)]);
  }

  void begin_tensor() {
    current_ = {};
    current_.tensor.name = key_;
    current_.tensor.file = file_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_ = 0;
  }

  void begin_field(const std::string& field) {
    bool* seen = nullptr;
    if (field == "dtype") {
      seen = &has_dtype_;
      state_ = State::dtype;
    } else if (field == "shape") {
      seen = &has_shape_;
      state_ = State::shape;
    } else if (field == "data_offsets") {
      seen = &has_offsets_;
      state_ = State::offsets;
    } else {
      bad(place(), "unknown field \"" + printable(field) + '"', "dtype, shape or data_offsets");
    }
    if (*seen) bad(place(), field + " given twice", "every field once");
    *seen = true;
  }

  void end_tensor() {
    if (!has_dtype_) bad(place(), "dtype missing", "dtype, shape and data_offsets");
    if (!has_shape_) bad(place(), "shape missing", "dtype, shape and data_offsets");
    if (!has_offsets_) bad(place(), "data_offsets missing", "dtype, shape and data_offsets");
    entries_.push_back(std::move(current_));
  }

  std::string where_, file_, key_;
  State state_ = State::start;
  Entry current_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
};

// Bytes that shape and dtype ask for, or nothing if they do not fit 63 bits.
std::optional<uint64_t> expected_bytes(const Tensor& tensor) {
  int64_t bytes = dtype_bytes(tensor.dtype);
  for (const int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

void check_entry(const Entry& entry, uint64_t data_bytes, const std::string& where) {
  const std::string place = where + ": tensor " + printable(entry.tensor.name);
  if (entry.begin > entry.end) {
    throw Error(ErrorCode::bad_file, place, fmt::format("data_offsets [{}, {}]", entry.begin, entry.end),
                "begin at or before end");
  }
  if (entry.end > data_bytes) {
    throw Error(ErrorCode::bad_file, place, fmt::format("the file holds {} bytes of data", data_bytes),
                fmt::format("at least {} (the file is cut short, or the header is wrong)", entry.end));
  }
  const std::optional<uint64_t> expected = expected_bytes(entry.tensor);
  if (!expected)
    throw Error(ErrorCode::bad_file, place, "a shape of more than 2^63 bytes", "a shape that fits the file");
  if (*expected != entry.end - entry.begin) {
    throw Error(ErrorCode::bad_file, place, fmt::format("{} bytes of data", entry.end - entry.begin),
                fmt::format("{} for its shape and dtype {}", *expected, dtype_name(entry.tensor.dtype)));
  }
}

// Every byte of the data belongs to exactly one tensor, as the format demands: a gap or an overlap means a damaged
// header.
void check_cover(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& where) {
  uint64_t covered = 0;
  const std::string* before = nullptr;
  for (const Entry& entry : entries) {
    const std::string place = where + ": tensor " + printable(entry.tensor.name);
    if (entry.begin < covered) {
      throw Error(ErrorCode::bad_file, place,
                  fmt::format("begins at byte {}, inside {}", entry.begin, printable(*before)),
                  fmt::format("byte {}", covered));
    }
    if (entry.begin > covered) {
      throw Error(ErrorCode::bad_file, place, fmt::format("begins at byte {} after a gap", entry.begin),
                  fmt::format("byte {}", covered));
    }
    covered = entry.end;
    before = &entry.tensor.name;
  }
  if (covered != data_bytes) {
    throw Error(ErrorCode::bad_file, where, fmt::format("{} bytes after the last tensor", data_bytes - covered),
                "the file to end with its last tensor");
  }
}

uint64_t header_length(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < 8) {
    throw Error(ErrorCode::bad_file, where, fmt::format("{} bytes", file.size()),
                "a safetensors file (8 bytes at least)");
  }
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | std::to_integer<uint64_t>(file[i]);
  if (length > largest_header) {
    throw Error(ErrorCode::bad_file, where, fmt::format("header length {}", length),
                fmt::format("at most {} bytes (not a safetensors file?)", largest_header));
  }
  if (length > file.size() - 8) {
    throw Error(ErrorCode::bad_file, where,
                fmt::format("header length {}, but {} bytes follow", length, file.size() - 8),
                "a whole header (the file is cut short)");
  }
  return length;
}

}  // namespace

const char* dtype_name(DType dtype) { return row_of(dtype).name; }
int64_t dtype_bytes(DType dtype) { return row_of(dtype).bytes; }

std::vector<Tensor> parse_safetensors(std::span<const std::byte> file, const std::string& where,
                                      const std::string& name) {
  const uint64_t length = header_length(file, where);
  const auto* const text = reinterpret_cast<const char*>(file.data()) + 8;
  if (length == 0 || text[0] != '{') {
    throw Error(ErrorCode::bad_file, where + ": header", "does not begin with '{'", "a JSON object");
  }
  if (std::string_view(text, length).find('\0') != std::string_view::npos) {  // the parser takes it for the end
    throw Error(ErrorCode::bad_file, where + ": header", "has a NUL byte", "a JSON object");
  }
  HeaderReader reader(where, name);
  if (!json::sax_parse(text, text + length, &reader)) {
    throw Error(ErrorCode::bad_file, where + ": header", "not valid JSON", "a JSON object");
  }
  std::vector<Entry> entries = reader.take();
  const std::span<const std::byte> data = file.subspan(8 + static_cast<size_t>(length));
  for (const Entry& entry : entries) check_entry(entry, data.size(), where);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_cover(entries, data.size(), where);
  std::vector<Tensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.tensor.data = data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
    tensors.push_back(std::move(entry.tensor));
  }
  return tensors;
}

}  // namespace tandem::model
