// fuzz-room: model
// Any bytes as a drafter's config.json: either refused with an Error or read into a shape that keeps the promises of
// drafter.h.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "model/drafter.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const tandem::model::DrafterShape s =
        tandem::model::parse_drafter_shape(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    if (s.block_size < 2 || s.block_size > 16 || s.selector_top_k < 1 || s.selector_top_k > 16) abort();
    if (s.selector_top_k > s.vocab_size || s.mask_token_id < 0 || s.mask_token_id >= s.vocab_size) abort();
    if (s.num_attention_heads % s.num_key_value_heads != 0 || s.hidden_size % s.conv_group_size != 0) abort();
    if (s.target_layer_ids.empty() || s.target_layer_ids.back() >= s.num_target_layers) abort();
    if (s.parameters() <= 0 || s.row_bytes(1) <= 0 || s.ring_rows() < 17) abort();
  } catch (const tandem::Error&) {
  }
  return 0;
}
