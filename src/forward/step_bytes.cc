// Steps as bytes: what rank 0 sends to the others and what recordings hold (layout in docs/internals/formats.md).
#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/crc32c.h"
#include "base/error.h"
#include "forward/step.h"

namespace tandem::forward {
namespace {

static_assert(std::endian::native == std::endian::little, "steps are little-endian");

constexpr uint32_t magic = 0x50455453;  // "STEP"
constexpr uint32_t version = 3;
constexpr size_t arrays = 11;
constexpr size_t header_bytes = 4 * (3 + arrays);

template <typename T>
constexpr void check_layout() {  // arrays are copied as they lie in memory, which must have no holes
  static_assert(std::has_unique_object_representations_v<T>);
}
template <>
constexpr void check_layout<RowSample>() {  // a zero has two signs, and both may travel
  static_assert(sizeof(RowSample) == 3 * sizeof(double) + 2 * 8 + 6 * 4 && std::is_trivially_copyable_v<RowSample>);
}

// Calls f with every array of the step, in the order of the layout.
template <typename Step, typename F>
void for_arrays(Step& step, const F& f) {
  f(step.keeps);
  f(step.restores);
  f(step.page_copies);
  f(step.tokens);
  f(step.positions);
  f(step.segments);
  f(step.page_tables);
  f(step.logit_rows);
  f(step.head_slots);
  f(step.samples);
  f(step.masked_tokens);
}

uint32_t read_u32(std::span<const std::byte> bytes, size_t at) {
  uint32_t value;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

[[noreturn]] void bad(const std::string& found, const std::string& expected) {
  throw Error(ErrorCode::bad_file, "step bytes", found, expected);
}

}  // namespace

void write_step(const Step& step, std::vector<std::byte>& bytes) {
  size_t size = header_bytes + 4, at = 0;
  for_arrays(step, [&](const auto& array) {
    if (array.size() > std::numeric_limits<uint32_t>::max())
      throw Error(ErrorCode::internal, "step", fmt::format("{} elements in one array", array.size()));
    size += array.size() * sizeof(array[0]);
  });
  bytes.resize(size);
  const auto put = [&](const void* data, size_t length) {
    if (length > 0) std::memcpy(bytes.data() + at, data, length);
    at += length;
  };
  const auto put_u32 = [&put](uint32_t value) { put(&value, 4); };
  put_u32(magic);
  put_u32(version);
  put_u32(static_cast<uint32_t>(step.kind));
  for_arrays(step, [&](const auto& array) { put_u32(static_cast<uint32_t>(array.size())); });
  for_arrays(step, [&](const auto& array) {
    using Element = typename std::remove_cvref_t<decltype(array)>::value_type;
    check_layout<Element>();
    put(array.data(), array.size() * sizeof(Element));
  });
  put_u32(crc32c(std::span(bytes).first(at)));
}

void read_step(std::span<const std::byte> bytes, Step& step) {
  if (bytes.size() < header_bytes + 4)
    bad(fmt::format("{} bytes", bytes.size()), fmt::format("at least {}", header_bytes + 4));
  if (read_u32(bytes, 0) != magic) bad(fmt::format("magic {:#x}", read_u32(bytes, 0)), fmt::format("{:#x}", magic));
  if (read_u32(bytes, 4) != version) bad(fmt::format("version {}", read_u32(bytes, 4)), fmt::format("{}", version));
  if (read_u32(bytes, 8) > static_cast<uint32_t>(StepKind::dflash2))
    bad(fmt::format("step kind {}", read_u32(bytes, 8)), "0 to 3");
  size_t size = header_bytes + 4, at = 12;
  for_arrays(step, [&](auto& array) {
    size += size_t{read_u32(bytes, at)} * sizeof(array[0]);  // at most 11 · 2^32 · 64 bytes: no overflow
    at += 4;
  });
  if (size != bytes.size()) bad(fmt::format("{} bytes", bytes.size()), fmt::format("{} by its counts", size));
  const uint32_t stored = read_u32(bytes, size - 4), computed = crc32c(bytes.first(size - 4));
  if (stored != computed) bad(fmt::format("CRC32C {:#010x}", computed), fmt::format("{:#010x}", stored));
  step.kind = static_cast<StepKind>(read_u32(bytes, 8));
  size_t count_at = 12;
  at = header_bytes;
  for_arrays(step, [&](auto& array) {
    array.resize(read_u32(bytes, count_at));
    count_at += 4;
    const size_t length = array.size() * sizeof(array[0]);
    if (length > 0) std::memcpy(array.data(), bytes.data() + at, length);
    at += length;
  });
}

}  // namespace tandem::forward
