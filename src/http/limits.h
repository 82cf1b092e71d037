// Bounds of what one connection may ask for (spec/frontend.md D.10; body: decisions.md).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tandem::http {

struct Limits {
  uint32_t header_bytes = 64 * 1024;
  size_t header_fields = 100;
  size_t body_bytes = 32 * 1024 * 1024;
  size_t all_bodies_bytes = 256 * 1024 * 1024;  // of requests being read or parsed; beyond: 503
  size_t connections = 1024;                    // more wait in the kernel's queue
  size_t unsent_bytes = 256 * 1024;             // above this a stream counts as congested
  int send_buffer_bytes = 256 * 1024;           // of the kernel, a connection; by itself it would grow to megabytes
  size_t pipelined_bytes = 64 * 1024;           // read ahead while a request is being answered
  size_t discarded_bytes = 64 << 20;  // read and thrown away after a refusal, so that the client sees the answer
  std::chrono::milliseconds handshake{10'000};      // of TLS
  std::chrono::milliseconds header{10'000};         // from the first byte to the end of the head
  std::chrono::milliseconds body_idle{30'000};      // between two pieces of a body
  std::chrono::milliseconds body{600'000};          // a whole body
  std::chrono::milliseconds idle{75'000};           // between two requests
  std::chrono::milliseconds write_idle{30'000};     // a client that takes nothing for so long is gone
  std::chrono::milliseconds linger{2'000};          // between two discarded pieces
  std::chrono::milliseconds sse_keepalive{15'000};  // silence before a comment is sent; 0: off
};

}  // namespace tandem::http
