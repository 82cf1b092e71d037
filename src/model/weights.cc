// Fills TextWeights from a checkpoint by walking the layout.
#include "model/weights.h"

#include "model/weight_layout.h"
#include "model/weight_source.h"

namespace tandem::model {
namespace {

class Loader final : public WeightVisitor {
 public:
  explicit Loader(const WeightSource& source) : source_(source) {}
  void matrix(const WeightSpec& spec, Matrix& target) override { target = source_.matrix(spec); }
  void vector(const WeightSpec& spec, Vector& target) override { source_.append_values(spec, target); }

 private:
  const WeightSource& source_;
};

}  // namespace

TextWeights load_text_weights(const Checkpoint& checkpoint, const Shape& shape, WeightOptions options) {
  const WeightSource source(checkpoint, shape, options);
  Loader loader(source);
  TextWeights weights;
  visit_main_weights(shape, weights, loader);
  if (shape.num_nextn_predict_layers == 1 && source.has_layer(shape.num_hidden_layers)) {
    visit_mtp_weights(shape, weights, loader);
  }
  return weights;
}

}  // namespace tandem::model
