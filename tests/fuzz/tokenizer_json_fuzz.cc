// Any bytes as tokenizer.json: refused with an Error, or a tokenizer in which every id that it gives has bytes.
// fuzz-room: text
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tandem::text::AddedTokens;
  using tandem::text::Tokenizer;
  try {
    const Tokenizer tokenizer = Tokenizer::parse(std::string_view(reinterpret_cast<const char*>(data), size));
    const std::string text = "The quick <think>brown</think> fox's 1234 \xE6\xBC\xA2\n\n  <|user|>";
    for (const AddedTokens mode : {AddedTokens::recognise, AddedTokens::literal}) {
      // A spelling outside the byte alphabet may decode to anything, but a text's ids always exist.
      for (const int32_t id : tokenizer.encode(text, mode)) {
        if (tokenizer.token_bytes(id).empty()) std::abort();
      }
    }
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (tokenizer.token_bytes(id).empty()) std::abort();
    }
  } catch (const tandem::Error& error) {
    if (error.code() != tandem::ErrorCode::bad_file) std::abort();
  }
  return 0;
}
