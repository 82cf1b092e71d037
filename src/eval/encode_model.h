// A model folder with matrices in EXL3 (spec/quantization.md 2): the run as a whole. Every finished matrix is kept in
// "<out>.tmp", whose run.json says what it was made from, so that a run that was stopped at any moment goes on where it
// was and ends in the same bytes; the folder itself appears whole, with a manifest of every file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "eval/manifest.h"
#include "eval/quantize.h"
#include "eval/quantize_weights.h"

namespace tandem::eval {

// What quantize() does where something is to be in EXL3. Weights that FP8 takes are converted in the same run. Throws
// what quantize() throws, and Error: usage for a calibration text of fewer than least_calibration_tokens tokens, a
// target of bits without such a text, for an
// "<out>.tmp" that another run uses or whose source, text or settings were others (naming what differs), a width
// outside 1 to 8 or a target that no widths reach; failed_check naming the layer for inputs that no damping makes
// positive. Where such a run was stopped between the folder's name and the removal of "<out>.tmp", the same options
// verify the folder and remove the latter; failed_check naming the file if it is not as it was written.
QuantizeReport encode_model(const QuantizeOptions& options, const QuantizeProgress& progress);

constexpr int64_t least_calibration_tokens = 128;

// Sets the widths of a plan to those of the manifest. Throws Error(bad_file) naming `where` and a matrix that lacks.
void take_widths(const Manifest& manifest, const std::string& where, const Exl3Options& options, ConversionPlan& plan);

struct RecheckResult {
  std::string name;   // of the module
  std::string fault;  // empty: the same bytes
};

// Encodes `count` matrices of `folder`, chosen by `seed`, again from options.model and options.exl3.calibration, with
// the settings of the manifest, and compares bytes. Throws Error(failed_check) naming what differs where model or text
// are not those that the manifest names. `progress`: matrices done and their number.
std::vector<RecheckResult> recheck(const std::filesystem::path& folder, const Manifest& manifest,
                                   const QuantizeOptions& options, int64_t count, uint64_t seed,
                                   const QuantizeProgress& progress);

}  // namespace tandem::eval
