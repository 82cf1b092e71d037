// Comparison with vectors of the reference implementation: what `tandem eval parity` runs (tests/golden/README.md says
// what the files hold and how close is close enough).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "forward/mutation.h"
#include "forward/text_model.h"

namespace tandem::eval {

struct ParityOptions {
  std::filesystem::path golden;          // folder with one folder a model
  std::filesystem::path bundled_models;  // where models without weights of their own are looked for after golden/..
  int threads = 0;
  forward::Mutation mutation = forward::Mutation::none;
  std::string only;  // model folder or "model/case_T40"; empty: all
  // bf16, on a GPU or, where this is null, on the CPU: only logits are compared, and by how far rows lie from the
  // reference's as a whole (parity_rounded.h).
  forward::Compute compute = forward::Compute::f32;
  device::Gpu* gpu = nullptr;  // bf16 only
  std::function<void(const std::string&)> progress;
};

// One compared tensor of one case.
struct Measure {
  std::string name;  // "logits", "streams.3", …
  double error = 0;  // max|Δ| / max|expected| of the tensor (streams.<layer>: of that layer's)
  double tolerance = 0;
  double late_error = 0;  // the same over rows at and after the case's first near-tie
  bool ok = false;
  bool near_tie = false;  // accepted only because of the near-tie
};

// Things that are equal or not.
struct Count {
  std::string name;  // "selected positions", "experts", "generated ids", "tokenizer ids", "template strings"
  int64_t equal = 0, total = 0, excused = 0;  // excused: different at or after a near-tie
  std::string first_difference;
};

struct CaseReport {
  std::string model, name;
  std::vector<Measure> measures;
  std::vector<Count> counts;
  int64_t first_near_tie = -1;  // position of the first row with a gap under 1e-5 at a top-k cut, −1: none
  double seconds = 0;

  bool ok() const;
  bool used_near_tie() const;
};

struct ParityReport {
  std::vector<CaseReport> cases;
  std::vector<std::string> skipped;  // files that this program does not check yet, and why

  static constexpr int64_t max_near_tie_cases = 2;
  bool ok() const;  // every case, and at most max_near_tie_cases of them by a near-tie
};

// Throws Error(bad_file) for a folder without cases, a damaged case, a model without weights.
ParityReport run_parity(const ParityOptions& options);

std::string parity_text(const ParityReport& report);
// One object, first key "schema": "tandem.parity/1".
std::string parity_json(const ParityReport& report);

}  // namespace tandem::eval
