// Files to windows.
#include "cli/calibration_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "cli/standard_io.h"
#include "eval/hash.h"
#include "eval/quality_text.h"
#include "text/tokenizer.h"

namespace tandem::cli {
namespace {

// The windows' first `tokens` tokens.
eval::Windows first_tokens(const eval::Windows& all, int64_t tokens, const std::vector<eval::EvalText>& texts,
                           const text::Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokens <= 0 || all.tokens() <= tokens) return all;
  // Whole texts, so that the windows and their hash are those of a shorter file.
  std::vector<eval::EvalText> kept;
  for (const eval::EvalText& text : texts) {
    kept.push_back(text);
    eval::Windows cut = eval::cut_windows(kept, tokenizer, vocab_size, all.size);
    if (cut.tokens() >= tokens) return cut;
  }
  return all;
}

}  // namespace

void read_calibration(const CalibrationText& text, const std::filesystem::path& model, const model::Shape& shape,
                      int64_t window, eval::Exl3Options& options) {
  std::vector<std::string> files = text.files;
  if (files == std::vector<std::string>{"none"}) {
    if (text.tokens != 0)
      throw Error(ErrorCode::usage, "--calibration-tokens", std::to_string(text.tokens), "no such option without text");
    options.is_calibrated = false;
    options.calibration.size = window;
    return;
  }
  std::error_code error;
  if (files.empty()) {
    files.push_back((model / "calibration_text.jsonl").string());
    if (!std::filesystem::exists(files[0], error))
      throw Error(ErrorCode::usage, "--calibration", "missing, and the model folder has no calibration_text.jsonl",
                  "texts that the model is not evaluated on");
  }
  if (window > shape.max_position_embeddings)
    throw Error(ErrorCode::usage, "--window", std::to_string(window),
                fmt::format("at most max_position_embeddings {}", shape.max_position_embeddings));
  if (text.tokens < 0) throw Error(ErrorCode::usage, "--calibration-tokens", std::to_string(text.tokens), "0 or more");
  std::vector<eval::EvalText> texts;
  std::set<std::string> names;
  for (const std::string& file : files) {
    const std::string name = std::filesystem::path(file).filename().string();
    if (!names.insert(name).second)
      throw Error(ErrorCode::usage, "--calibration", fmt::format("two files with the name {}", name),
                  "names that tell them apart");
    const std::string bytes = read_text(file);
    options.calibration_files.push_back({name, std::ssize(bytes), eval::hex(eval::sha256(bytes))});
    std::vector<eval::EvalText> more = eval::parse_eval_texts(bytes, file);
    texts.insert(texts.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  const text::Tokenizer tokenizer = text::Tokenizer::load(model);
  options.calibration = first_tokens(eval::cut_windows(texts, tokenizer, shape.vocab_size, window), text.tokens, texts,
                                     tokenizer, shape.vocab_size);
}

}  // namespace tandem::cli
