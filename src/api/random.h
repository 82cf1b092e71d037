// Ids and seeds: what must differ from request to request, and what must not.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tandem::api {

// `bytes` random bytes of the kernel's generator as lower-case hexadecimal text.
std::string random_hex(int bytes);

// A random seed below 2^53, so that a client that reads JSON numbers as doubles can send it back unchanged.
uint64_t random_seed();

// The seed that follows from the prompt (spec/speculation.md 3.5): the first 8 bytes, little endian, top bit cleared,
// of SHA-256 over the ids in decimal joined by "," followed by "|0".
uint64_t seed_of_prompt(std::span<const int32_t> prompt_ids);

}  // namespace tandem::api
