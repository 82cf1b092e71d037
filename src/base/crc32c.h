// CRC32C (Castagnoli), which every binary record of ours ends with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace tandem
