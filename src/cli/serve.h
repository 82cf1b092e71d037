// `tandem serve`: loads the model and answers HTTP until SIGTERM or SIGINT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/drafting.h"
#include "engine/plan.h"

namespace tandem::cli {

// Flags of the command; names as on the command line. Zero means "not given" where a comment says so.
struct ServeOptions {
  std::filesystem::path model;                 // a model folder
  std::string host = "127.0.0.1";              // --host
  uint16_t port = 8012;                        // --port; 0: any free port, printed when ready
  std::vector<std::string> served_model_name;  // --served-model-name, repeatable; empty: the folder's name
  std::string schema_unsupported = "refuse";   // --schema-unsupported: or warn
  bool turns_may_end_in_reasoning = false;     // --turns-may-end-in-reasoning
  bool strict_model_name = false;              // --strict-model-name: 404 for other names
  std::vector<std::string> api_keys;           // --api-key, repeatable; TANDEM_API_KEY is added by run_serve
  bool insecure = false;                       // --insecure: allow listening beyond loopback without a key
  std::string tls_cert, tls_key;               // --tls-cert, --tls-key: PEM files; both or none
  std::string default_seed = "random";         // --default-seed random|prompt
  int64_t reasoning_hold = 0;                  // --reasoning-hold: tokens of a stream
  int64_t max_model_len = 0;                   // --max-model-len, tokens; 0: what config and pool allow
  int32_t max_num_batched_tokens = 0;          // --max-num-batched-tokens, rows of a prefill chunk; 0: default
  int64_t kv_cache_memory = 0;                 // --kv-cache-memory, bytes; 0: default
  int threads = 0;                             // --threads; 0: default
  int32_t max_num_seqs = 4;                    // --max-num-seqs: streams at a time, 1 to 8
  std::optional<int64_t> kept_states_memory;   // --kept-states-memory, bytes; 0: none are kept; not given: by device
  std::string device = "auto";                 // --device
  bool check_numerics = false;                 // --check-numerics
  double gpu_memory_utilization = 0.9;         // --gpu-memory-utilization
  std::string compute = "auto";                // --compute
  std::string kv_cache_dtype = "auto";         // --kv-cache-dtype
  std::string kv_scales = "auto";              // --kv-scales
  std::string nvfp4_nibble_order = "low";      // --nvfp4-nibble-order
  int32_t tensor_parallel_size = 1;            // --tensor-parallel-size
  int32_t decode_context_parallel_size = 1;    // --decode-context-parallel-size
  double prefill_slice_ms = 200;       // --prefill-slice-ms: longest step with prompt rows beside decoding streams
  double fill_share = 0.5;             // --fill-share: of the time, for prompts beside decoding streams
  double watchdog_s = 300;             // --watchdog-s: a step that takes longer is reported as stuck; 0: off
  bool watchdog_exit = false;          // --watchdog-exit: and the process ends with status 70
  std::filesystem::path record_steps;  // --record-steps FILE
  DraftingFlags drafting;
  double request_timeout_s = 0;       // --request-timeout-s: longest life of a request; 0: no limit
  std::optional<bool> open_metrics;   // --open-metrics true or false; default: true on a loopback listener
  int64_t max_queued_requests = 256;  // --max-queued-requests: more are answered with 429
  double sse_keepalive_s = 15;        // --sse-keepalive-s: silence before a comment is sent; 0: off
  double drain_timeout_s = 30;        // --drain-timeout-s: how long SIGTERM lets running requests finish
};

// Throws what run_serve() would throw for these settings and this model folder's config and tensor names, without
// listening or loading.
void check_serve(const ServeOptions& options);

// Returns after a graceful stop (0), or when the engine has failed and every request has been answered (70, for the
// supervisor to start it again). Throws Error: resource (port in use, exit 5), usage (listening beyond loopback
// without a key), and whatever loading the model throws.
int run_serve(const ServeOptions& options);

}  // namespace tandem::cli
