// The text that quantize and verify run a model over.
#pragma once

#include <filesystem>

#include "cli/quantize.h"
#include "eval/quantize.h"
#include "model/shape.h"

namespace tandem::cli {

// Reads, hashes and cuts the files into options.calibration and options.calibration_files, with the model's own
// tokenizer; "none" as the only file means that there is no text. Throws Error: usage for files of one name and a
// window that the model cannot have, what eval::parse_eval_texts and eval::cut_windows throw.
void read_calibration(const CalibrationText& text, const std::filesystem::path& model, const model::Shape& shape,
                      int64_t window, eval::Exl3Options& options);

}  // namespace tandem::cli
