// `tandem serve`: loads the model and answers HTTP until SIGTERM or SIGINT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::cli {

// Flags of the command; names as on the command line. Zero means "not given" where a comment says so.
struct ServeOptions {
  std::filesystem::path model;                 // a model folder
  std::string host = "127.0.0.1";              // --host
  uint16_t port = 8012;                        // --port; 0: any free port, printed when ready
  std::vector<std::string> served_model_name;  // --served-model-name, repeatable; empty: the folder's name
  bool strict_model_name = false;              // --strict-model-name: 404 for other names
  std::vector<std::string> api_keys;           // --api-key, repeatable; TANDEM_API_KEY is added by run_serve
  bool insecure = false;                       // --insecure: allow listening beyond loopback without a key
  std::string default_seed = "random";         // --default-seed random|prompt
  int64_t max_model_len = 0;                   // --max-model-len, tokens; 0: what config and pool allow
  int32_t max_num_batched_tokens = 0;          // --max-num-batched-tokens, rows of a prefill chunk; 0: default
  int64_t kv_cache_memory = 0;                 // --kv-cache-memory, bytes; 0: default
  int threads = 0;                             // --threads; 0: default
  int64_t max_queued_requests = 1024;          // --max-queued-requests: more are answered with 429
  double sse_keepalive_s = 15;                 // --sse-keepalive-s: silence before a comment is sent; 0: off
  double drain_timeout_s = 30;                 // --drain-timeout-s: how long SIGTERM lets running requests finish
};

// Returns after a graceful stop (0). Throws Error: resource (port in use, exit 5), usage (listening beyond loopback
// without a key), and whatever loading the model throws.
int run_serve(const ServeOptions& options);

}  // namespace tandem::cli
