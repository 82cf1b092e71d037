// The bundled model as the fuzz targets of request bodies serve it, and what they hold a request to.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "api/served_model.h"
#include "text/tokenizer.h"

namespace tandem::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

struct NanoModel {
  NanoModel() : tokenizer(text::Tokenizer::load(std::filesystem::path(TANDEM_SOURCE_DIR) / "models/nano")) {
    served.names = {"nano"};
    served.tokenizer = &tokenizer;
    served.vocab_size = 2048;
    served.max_model_len = 500;
    served.defaults.eos_token_ids = {1988, 1995, 1997};
  }
  text::Tokenizer tokenizer;
  api::ServedModel served;
};

}  // namespace tandem::fuzz
