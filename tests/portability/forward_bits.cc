// Prints one hash for each small model over the logits of a prompt and of ten decoded tokens: the same on every
// instruction set and architecture (design promise: one arithmetic a row). aarch64.sh compares two architectures.
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>

#include "device/threads.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "ops/simd/kernels.h"

namespace tandem {
namespace {

class Hash {  // FNV-1a
 public:
  void add(std::span<const float> values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size_bytes(); ++i) value_ = (value_ ^ bytes[i]) * 1099511628211u;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

uint64_t hash_of(const std::string& folder) {
  const model::Shape shape = model::read_shape(folder);
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder);
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
  device::Threads threads(2);
  constexpr int32_t prompt = 280, total = 290;
  forward::TextModel text(shape, weights, threads,
                          forward::Capacity{.pages = 3, .max_rows = prompt, .max_logit_rows = prompt});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < total; ++i) tokens.push_back((i * 7919 + 13) % 200);
  Hash hash;
  forward::Step step = forward::single_stream_step(std::span(tokens).first(prompt), 0, 2);
  for (int32_t row = 0; row < prompt; ++row) step.logit_rows.push_back(row);
  text.run(step);
  hash.add(text.logits());
  for (int32_t i = prompt; i < total; ++i) {
    step = forward::single_stream_step(std::span(tokens).subspan(static_cast<size_t>(i), 1), i, 2);
    step.logit_rows = {0};
    text.run(step);
    hash.add(text.logits());
  }
  return hash.value();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const std::string root = argc > 1 ? argv[1] : ".";
  std::fprintf(stderr, "instruction set %d\n", static_cast<int>(tandem::ops::kernels().level));
  for (const char* name : {"tests/golden/tinyA", "tests/golden/tinyB", "models/nano"})
    std::printf("%s %016" PRIx64 "\n", name, tandem::hash_of(root + "/" + name));
  return 0;
}
