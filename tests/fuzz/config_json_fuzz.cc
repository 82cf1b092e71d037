// fuzz-room: model
// Any bytes as config.json: either refused with an Error or read into a shape that keeps the promises of shape.h.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "model/shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const tandem::model::Shape shape =
        tandem::model::parse_shape(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const auto layers = static_cast<size_t>(shape.num_hidden_layers);
    if (shape.layer_types.size() != layers || shape.mlp_layer_types.size() != layers) abort();
    if (shape.index_topk % shape.index_kpool != 0 || shape.eos_token_ids.empty()) abort();
    if (shape.num_experts_per_tok > shape.n_routed_experts || shape.pad_token_id >= shape.vocab_size) abort();
  } catch (const tandem::Error&) {
  }
  return 0;
}
