// Golden cases in bf16: what can be asked of a pass that rounds (tests/golden/README.md: no bound per element, since
// one flipped selection moves a row).
#pragma once

#include <filesystem>

#include "device/gpu.h"
#include "eval/parity_case.h"

namespace tandem::eval {

// The case's tokens as a prompt in two chunks, with a bf16 cache, on `gpu` or, where it is null, by the CPU's bf16
// mode. Measured against the reference's logits, over the case's rows: logits_l2, the median of the rows' relative L2
// distances (at most 0.02; 0.2 for random models, where bf16 moves a prompt's rows that far on every device), and for
// trained models logits_kl, the mean of KL(reference || ours) in nats (at most 1e-4; spec/performance.md). Throws
// Error(bad_file) for a case without `ids`, `logits_pos` and `logits`.
CaseReport run_rounded_case(const ParityModel& model, const std::filesystem::path& file, device::Gpu* gpu);

}  // namespace tandem::eval
