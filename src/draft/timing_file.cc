// The file of a measured timing table; the one place of this room that sees JSON.
#include "draft/timing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"

namespace tandem::draft {
namespace {

using nlohmann::json;

constexpr std::string_view schema = "tandem.timing/1";
constexpr size_t largest_file = 4 << 20;
constexpr int deepest_nesting = 128;
constexpr size_t most_rows = 4096;

[[noreturn]] void refuse(const std::string& where, std::string found, std::string expected) {
  throw Error(ErrorCode::bad_file, where, std::move(found), std::move(expected));
}

std::string short_text(const json& value) {
  constexpr size_t longest = 80;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > longest ? text.substr(0, longest) + "..." : text;
}

json parse_object(std::string_view text, const std::string& where) {
  if (text.size() > largest_file)
    refuse(where, fmt::format("{} bytes", text.size()), fmt::format("at most {} bytes", largest_file));
  if (const size_t at = text.find('\0'); at != std::string_view::npos)  // the parser takes it for the end
    refuse(where, fmt::format("not valid JSON at byte {}", at + 1), "a timing table");
  const auto bounded = [&where](int depth, json::parse_event_t, json&) {
    if (depth > deepest_nesting)
      refuse(where, fmt::format("nesting deeper than {} levels", deepest_nesting), "a timing table");
    return true;
  };
  try {
    json parsed = json::parse(text, bounded);
    if (parsed.is_object()) return parsed;
    refuse(where, short_text(parsed), "a JSON object");
  } catch (const json::exception&) {
    refuse(where, "not valid JSON", "a timing table");
  }
}

const json& member(const json& object, const char* name, const std::string& where) {
  const auto at = object.find(name);
  if (at == object.end()) refuse(fmt::format("{}: {}", where, name), "missing", "a timing table's field");
  return *at;
}

std::string text_of(const json& object, const char* name, const std::string& where) {
  const json& value = member(object, name, where);
  if (!value.is_string()) refuse(fmt::format("{}: {}", where, name), short_text(value), "a text");
  return value.get<std::string>();
}

double milliseconds(const json& value, const std::string& where, bool may_be_zero) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!std::isfinite(number) || number < 0 || (number == 0 && !may_be_zero))
    refuse(where, short_text(value), may_be_zero ? "milliseconds of at least 0" : "milliseconds above 0");
  return number;
}

TimingTable table_of(const json& fields, const std::string& where) {
  if (!fields.is_object()) refuse(where, short_text(fields), "an object");
  TimingTable table;
  table.id = text_of(fields, "id", where);
  const json& verify = member(fields, "verify_ms", where);
  const std::string place = where + ".verify_ms";
  if (!verify.is_array() || verify.empty() || verify.size() > most_rows)
    refuse(place, short_text(verify), fmt::format("a list of 1 to {} times", most_rows));
  for (const json& value : verify) {
    const double time = milliseconds(value, fmt::format("{}[{}]", place, table.verify_ms.size()), false);
    if (!table.verify_ms.empty() && time < table.verify_ms.back())
      refuse(fmt::format("{}[{}]", place, table.verify_ms.size()), short_text(value), "no less than the time before");
    table.verify_ms.push_back(time);
  }
  const auto read = [&](const char* name) {
    return milliseconds(member(fields, name, where), fmt::format("{}.{}", where, name), true);
  };
  table.mtp_ms = read("mtp_ms");
  table.mtp_step_ms = read("mtp_step_ms");
  table.mtp_row_ms = read("mtp_row_ms");
  table.block_ms = read("block_ms");
  table.overhead_ms = read("overhead_ms");
  if (table.id != id_of(table))
    refuse(where + ".id", fmt::format("'{}'", table.id), fmt::format("'{}' by what it says", id_of(table)));
  return table;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& beside)
      : path_(beside.string() + fmt::format(".{}.new", ::getpid())),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail();
  }
  ~TemporaryFile() {
    if (file_ >= 0) ::close(file_);
    if (!renamed_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(file_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail();
      text.remove_prefix(static_cast<size_t>(written));
    }
    if (::fsync(file_) != 0) fail();
  }
  void rename_to(const std::filesystem::path& path) {
    if (::rename(path_.c_str(), path.c_str()) != 0) fail();
    renamed_ = true;
  }

 private:
  [[noreturn]] void fail() const { throw Error(ErrorCode::resource, path_, std::strerror(errno), "a file to write"); }

  std::string path_;
  int file_ = -1;
  bool renamed_ = false;
};

}  // namespace

std::string timing_json(const Calibration& calibration, std::string_view key) {
  const TimingTable& table = calibration.table;
  nlohmann::ordered_json file;
  file["schema"] = schema;
  file["key"] = key;
  file["table"] = {{"id", table.id},
                   {"verify_ms", table.verify_ms},
                   {"mtp_ms", table.mtp_ms},
                   {"mtp_step_ms", table.mtp_step_ms},
                   {"mtp_row_ms", table.mtp_row_ms},
                   {"block_ms", table.block_ms},
                   {"overhead_ms", table.overhead_ms}};
  file["chosen_batch"] = calibration.chosen;
  file["doubtful"] = calibration.doubtful;
  auto& batches = file["batches"] = nlohmann::ordered_json::array();
  for (const CalibrationBatch& batch : calibration.batches) {
    nlohmann::ordered_json samples;
    for (size_t piece = 0; piece < calibration.pieces.size(); ++piece)
      samples[name_of(calibration.pieces[piece])] = batch.samples[piece];
    batches.push_back({{"ascends", batch.ascends}, {"verify_sum_ms", batch.verify_sum}, {"samples_ms", samples}});
  }
  return file.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

TimingTable parse_timing(std::string_view text, std::string_view key, const std::string& where) {
  const json file = parse_object(text, where);
  if (const std::string found = text_of(file, "schema", where); found != schema)
    refuse(where + ": schema", fmt::format("'{:.80}'", found), fmt::format("'{}'", schema));
  TimingTable table = table_of(member(file, "table", where), where + ": table");
  if (const std::string found = text_of(file, "key", where); found != key)
    refuse(where + ": key", fmt::format("'{:.200}'", found), fmt::format("'{}'", key));
  return table;
}

void write_timing(const std::filesystem::path& path, const Calibration& calibration, std::string_view key) {
  TemporaryFile file(path);
  file.write(timing_json(calibration, key));
  file.rename_to(path);
}

TimingTable read_timing(const std::filesystem::path& path, std::string_view key) {
  return parse_timing(MappedFile::open(path).text(), key, path.string());
}

}  // namespace tandem::draft
