// Header, then for each step its length and bytes, and once it has run a mark and the checksum of its logits.
#include "engine/step_recording.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/plan.h"

namespace tandem::engine {
namespace {

constexpr std::array<char, 8> magic = {'T', 'N', 'D', 'M', 'S', 'T', 'E', 'P'};
constexpr uint32_t version = 3;
constexpr uint32_t with_mtp = 1, with_drafter = 2, with_bf16_compute = 4, all_flags = 7;
constexpr uint32_t mark_of_result = 0x544C5352;  // "RSLT"
constexpr size_t longest_name = 255, most_scales = 1024;

constexpr int64_t most_rows = 65536;

// The header's numbers, in the order of the layout.
struct HeaderFields {
  uint32_t version = 0;
  int32_t slots = 0, max_rows = 0, max_logit_rows = 0, kept_states = 0, page_rows = 0;
  int64_t pages = 0, max_stream_pages = 0;
  uint32_t cache_type = 0;
  int32_t tensor_parallel_size = 0, decode_context_parallel_size = 0;
  uint32_t config_crc = 0, name_length = 0, flags = 0;
  uint32_t drafter_crc = 0, latent_scales = 0;  // the number of them
};
static_assert(sizeof(HeaderFields) == 72 && std::has_unique_object_representations_v<HeaderFields>);

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

HeaderFields fields_of(const RecordingHeader& header, size_t name_length) {
  const forward::Capacity& capacity = header.capacity;
  return {.version = version,
          .slots = capacity.slots,
          .max_rows = capacity.max_rows,
          .max_logit_rows = capacity.max_logit_rows,
          .kept_states = capacity.kept_states,
          .page_rows = capacity.page_rows,
          .pages = capacity.pages,
          .max_stream_pages = capacity.max_stream_pages,
          .cache_type = static_cast<uint32_t>(capacity.cache_type),
          .tensor_parallel_size = header.ranks.tensor_parallel_size,
          .decode_context_parallel_size = header.ranks.decode_context_parallel_size,
          .config_crc = header.config_crc,
          .name_length = static_cast<uint32_t>(name_length),
          .flags = (capacity.mtp ? with_mtp : 0) | (header.drafter_crc ? with_drafter : 0) |
                   (capacity.compute == forward::Compute::bf16 ? with_bf16_compute : 0),
          .drafter_crc = header.drafter_crc.value_or(0),
          .latent_scales = static_cast<uint32_t>(capacity.latent_scales.size())};
}

struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

[[noreturn]] void not_a_recording(const std::string& name) {
  throw Error(ErrorCode::usage, name, "is a file that is not a recording of steps",
              "a new file, or a recording to replace");
}

bool begins_as_recording(int file) {
  std::array<char, magic.size()> begin{};
  return ::pread(file, begin.data(), begin.size(), 0) == std::ssize(begin) && begin == magic;
}

// An empty file that is ours alone, or a device or pipe. Nothing is lost before it is known to be a recording.
std::FILE* open_to_record(const std::string& name) {
  const auto refuse = [&](int number, const char* found = nullptr) {
    throw Error(ErrorCode::resource, name, found != nullptr ? found : std::strerror(number),
                "a file that can be written");
  };
  check_recording_file(name);
  // O_NONBLOCK: a pipe without a reader is an error, not a wait.
  Descriptor file{::open(name.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666)};
  if (file.value < 0) refuse(errno, errno == ENXIO ? "is a pipe that nobody reads" : nullptr);
  struct stat info {};
  if (::fstat(file.value, &info) != 0) refuse(errno);
  if (S_ISREG(info.st_mode)) {
    if (::flock(file.value, LOCK_EX | LOCK_NB) != 0)
      refuse(errno, errno == EWOULDBLOCK ? "another program is recording into it" : nullptr);
    if (::ftruncate(file.value, 0) != 0) refuse(errno);
  }
  if (::fcntl(file.value, F_SETFL, 0) != 0) refuse(errno);
  std::FILE* const stream = ::fdopen(file.value, "wb");
  if (stream == nullptr) refuse(errno);
  file.value = -1;
  return stream;
}

// Null, or what no server records. Within these bounds the formulas of a plan do not overflow.
const char* wrong_size(const HeaderFields& f) {
  constexpr int64_t most = int64_t{1} << 31;
  const auto outside = [](int64_t value, int64_t low, int64_t high) { return value < low || value > high; };
  if (outside(f.slots, 1, largest_max_num_seqs)) return "slots";
  if (outside(f.max_rows, 1, most_rows)) return "rows of a step";
  if (outside(f.max_logit_rows, 1, most_rows)) return "logit rows";
  if (outside(f.kept_states, 0, most)) return "kept states";
  if (outside(f.page_rows, 1, forward::TextModel::page_rows)) return "rows of a page";
  if (outside(f.pages, 2, most)) return "pages";
  if (outside(f.max_stream_pages, 0, most)) return "pages of a stream";
  if (outside(f.tensor_parallel_size, 1, 2) || outside(f.decode_context_parallel_size, 1, f.tensor_parallel_size))
    return "ranks";
  return nullptr;
}

}  // namespace

void check_recording_file(const std::filesystem::path& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
  const Descriptor opened{::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  if (opened.value < 0 || !begins_as_recording(opened.value)) not_a_recording(file.string());
}

uint32_t crc_of_result(const StepRunner& runner) {
  const forward::DraftLattices lattices = runner.lattices();
  if (lattices.streams == 0 && runner.sampled().empty()) return crc32c(std::as_bytes(runner.logits()));
  if (lattices.streams == 0) {
    uint32_t crc = crc32c(std::as_bytes(runner.logits()));
    for (const ops::Sampled& one : runner.sampled())
      crc = crc32c(
          bytes_of(std::array<uint32_t, 3>{crc, static_cast<uint32_t>(one.token), static_cast<uint32_t>(one.status)}));
    return crc;
  }
  const std::array<uint32_t, 3> parts = {crc32c(std::as_bytes(lattices.ids)), crc32c(std::as_bytes(lattices.unary)),
                                         crc32c(std::as_bytes(lattices.edges))};
  return crc32c(bytes_of(parts));
}

StepRecorder::StepRecorder(StepRunner& runner, const std::filesystem::path& file, const RecordingHeader& header)
    : runner_(runner), name_(file.string()), file_(open_to_record(name_)) {
  const std::string model = header.model.substr(0, longest_name);
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
  add(bytes_of(magic));
  add(bytes_of(fields_of(header, model.size())));
  add(std::as_bytes(std::span(model)));
  add(std::as_bytes(std::span(header.capacity.latent_scales)));
  add(bytes_of(crc32c(bytes)));
  write(bytes);
}

void StepRecorder::write(std::span<const std::byte> bytes) {
  if (!file_) return;
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size() && std::fflush(file_.get()) == 0) return;
  log(LogLevel::error, "{}: {}; the recording of steps ends here", name_, std::strerror(errno));
  file_.reset();
}

void StepRecorder::run(const forward::Step& step) {
  if (file_) {
    forward::write_step(step, step_);
    write(bytes_of(static_cast<uint32_t>(step_.size())));
    write(step_);
  }
  runner_.run(step);
  if (file_) write(bytes_of(std::array<uint32_t, 2>{mark_of_result, crc_of_result(runner_)}));
}

RecordingReader::RecordingReader(std::span<const std::byte> bytes, std::string name)
    : bytes_(bytes), name_(std::move(name)) {
  read_header();
}

void RecordingReader::bad(const std::string& found, const std::string& expected) const {
  throw Error(ErrorCode::bad_file, fmt::format("{}: byte {}", name_, at_), found, expected);
}

void RecordingReader::read_header() {
  constexpr size_t fixed = magic.size() + sizeof(HeaderFields);
  if (bytes_.size() < fixed + 4) bad(fmt::format("{} bytes", bytes_.size()), "a recording of steps");
  if (std::memcmp(bytes_.data(), magic.data(), magic.size()) != 0) bad("other first bytes", "a recording of steps");
  HeaderFields fields;
  std::memcpy(&fields, bytes_.data() + magic.size(), sizeof fields);
  if (fields.version != version) bad(fmt::format("version {}", fields.version), fmt::format("version {}", version));
  if (fields.name_length > longest_name || bytes_.size() < fixed + fields.name_length + 4)
    bad(fmt::format("a name of {} bytes", fields.name_length), fmt::format("at most {}", longest_name));
  const size_t scales = fixed + fields.name_length, end = scales + 4 * size_t{fields.latent_scales};
  if (fields.latent_scales > most_scales || bytes_.size() < end + 4)
    bad(fmt::format("{} scales of latent rows", fields.latent_scales), fmt::format("at most {}", most_scales));
  uint32_t crc = 0;
  std::memcpy(&crc, bytes_.data() + end, 4);
  if (crc != crc32c(bytes_.first(end))) bad("a header with a wrong checksum", "an undamaged one");
  if (fields.cache_type >= std::size(model::all_cache_types))
    bad(fmt::format("cache type {}", fields.cache_type), fmt::format("0 to {}", std::size(model::all_cache_types) - 1));
  if (fields.flags > all_flags) bad(fmt::format("flags {}", fields.flags), fmt::format("0 to {}", all_flags));
  if (const char* size = wrong_size(fields))
    bad(fmt::format("{} out of their range", size), "sizes that a server can have");
  header_.capacity = {
      .slots = fields.slots,
      .pages = fields.pages,
      .max_stream_pages = fields.max_stream_pages,
      .max_rows = fields.max_rows,
      .max_logit_rows = fields.max_logit_rows,
      .kept_states = fields.kept_states,
      .page_rows = fields.page_rows,
      .cache_type = static_cast<forward::CacheType>(fields.cache_type),
      .compute = (fields.flags & with_bf16_compute) != 0 ? forward::Compute::bf16 : forward::Compute::f32,
      .mtp = (fields.flags & with_mtp) != 0};
  header_.capacity.latent_scales.resize(fields.latent_scales);
  std::memcpy(header_.capacity.latent_scales.data(), bytes_.data() + scales, 4 * size_t{fields.latent_scales});
  for (const float scale : header_.capacity.latent_scales)
    if (!(std::isfinite(scale) && scale > 0)) bad(fmt::format("a scale of {}", scale), "finite ones above 0");
  header_.ranks = {.rank = 0,
                   .tensor_parallel_size = fields.tensor_parallel_size,
                   .decode_context_parallel_size = fields.decode_context_parallel_size};
  header_.config_crc = fields.config_crc;
  if ((fields.flags & with_drafter) != 0) header_.drafter_crc = fields.drafter_crc;
  header_.model.assign(reinterpret_cast<const char*>(bytes_.data()) + fixed, fields.name_length);
  at_ = end + 4;
}

bool RecordingReader::next(RecordedStep& recorded) {
  recorded.result_crc.reset();
  const size_t left = bytes_.size() - at_;
  if (left == 0) return false;
  uint32_t length = 0;
  if (left >= 4) std::memcpy(&length, bytes_.data() + at_, 4);
  if (left < 4 || left - 4 < length) {
    is_cut_off_ = true;
    return false;
  }
  try {
    forward::read_step(bytes_.subspan(at_ + 4, length), recorded.step);
  } catch (const Error& e) {
    bad(e.what(), "a step");
  }
  at_ += 4 + size_t{length};
  std::array<uint32_t, 2> result{};
  if (bytes_.size() - at_ < sizeof result) {  // the step did not end, or its result was not written whole
    is_cut_off_ = bytes_.size() != at_;
    at_ = bytes_.size();
    return true;
  }
  std::memcpy(&result, bytes_.data() + at_, sizeof result);
  if (result[0] != mark_of_result) bad("no result after a step", "one");
  recorded.result_crc = result[1];
  at_ += sizeof result;
  return true;
}

}  // namespace tandem::engine
