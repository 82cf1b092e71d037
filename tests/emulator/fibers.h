// Runs one block of a kernel (see fibers.cc).
#pragma once

#include <cstdint>
#include <random>

#include "kernel_emulated.h"

namespace tandem::emulator {

struct Dimensions {
  uint32_t grid[3], block[3];
  uint32_t threads;
};

// Throws what a thread throws, and std::logic_error when the threads' barriers do not meet.
void run_block(Body body, const void* args, const Dimensions& at, unsigned char* shared, std::mt19937_64& random);

}  // namespace tandem::emulator
