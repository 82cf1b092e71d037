// Which modules the lists of a quantization_config mean.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/weight_layout.h"

namespace tandem::engine {

// Whether the published FP8 checkpoint has this weight in FP8 (spec/model.md 8.2).
bool is_published_fp8(const model::WeightSpec& spec);

// A linear layer, as other programs use the word: the embedding table, router, convolutions, mHC and norms are none.
bool is_linear(const model::WeightSpec& spec);

// Names of modules as configs write them: "lm_head", "model.layers.0.self_attn" and everything below it, "mlp.gate",
// "*.mlp.gate*" (shell wildcards), "re:.*experts.*" (an ECMAScript expression, anchored at the begin).
class ModuleNames {
 public:
  // Throws Error(bad_file) naming `where` for an expression that cannot be understood or is longer than 500 characters.
  ModuleNames(const std::vector<std::string>& entries, const std::string& where);

  // Whether one of them means the module of this weight, under whichever prefix configs give the text model.
  bool name(const model::WeightSpec& spec) const;

 private:
  struct Expression;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const Expression>> expressions_;
};

}  // namespace tandem::engine
