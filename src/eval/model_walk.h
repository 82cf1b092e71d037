// The order in which a model is encoded: layer after layer, each for the inputs that calibration text brings it through
// the layers that are coded already (spec/quantization.md 2.1). Encoding and its check (`tandem verify --recheck`) are
// the same walk.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "device/threads.h"
#include "eval/finished_tensors.h"
#include "eval/layer_calibration.h"
#include "eval/quantize.h"
#include "eval/quantize_weights.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

// What the walk asks for and hands out.
class WalkStore {
 public:
  virtual ~WalkStore() = default;
  // Whether this matrix is to be encoded. A matrix that is not must be found().
  virtual bool is_wanted(const ConvertedWeight& weight) = 0;
  // The bytes of a matrix that is coded already. Called once for each, when the walk comes to it.
  virtual FinishedTensor found(const ConvertedWeight& weight) = 0;
  // A matrix is encoded: `data` are the bytes of weight.tensors. Called by the thread that walks.
  virtual void encoded(const ConvertedWeight& weight, const EncodedTensor& facts,
                       const std::vector<std::byte>& data) = 0;
  // False: no further layer is needed.
  virtual bool goes_on() { return true; }
};

// How the layers that feed a layer are taken: as they will be served, or as the source has them (candidates of the bit
// allocation, where it is not known yet how they will be served).
enum class Predecessors { coded, source };

class ModelWalk {
 public:
  // `folder` takes the file of the streams. All references must outlive the walk.
  ModelWalk(const QuantizeOptions& options, const model::Shape& shape, const model::TextWeights& weights,
            const ConversionPlan& plan, const std::filesystem::path& folder, device::Threads& threads);
  ~ModelWalk();

  // Throws what LayerCalibration, quant::exl3_encode and the store throw.
  void run(WalkStore& store, Predecessors predecessors = Predecessors::coded);

 private:
  using Weights = std::vector<const ConvertedWeight*>;
  using Moments = std::map<InputKey, quant::Exl3Moments>;
  enum class Part { layer, end };  // a decoder layer, or the head with the MTP layer

  void encode_part(WalkStore& store, int64_t layer, Part part);
  void encode_phase(WalkStore& store, const Weights& weights, Part part);
  void encode_batch(WalkStore& store, const Weights& weights, Part part);
  void capture(Part part, Moments& layer, Moments& mtp);
  void encode_inputs(WalkStore& store, const Weights& weights, InputKey key, const quant::Exl3Moments& moments,
                     int64_t layer);
  uint64_t input_seed(InputKey key, int64_t layer) const;
  void replace(WalkStore& store, const Weights& weights);
  void share_vectors(const Weights& weights, Part part);

  const QuantizeOptions& options_;
  const model::Shape& shape_;
  model::TextWeights coded_;                      // matrices are exchanged for coded ones as the walk goes on
  std::map<std::string, model::Matrix*> places_;  // in coded_, by full name
  std::map<int64_t, Weights> by_layer_;           // -1: the head
  std::filesystem::path folder_;
  device::Threads& threads_;
  std::unique_ptr<LayerCalibration> calibration_;         // none without text
  std::vector<FinishedTensor> held_;                      // what coded_ points to
  std::map<std::string, quant::Exl3GivenVectors> given_;  // TR3, by module
};

// Where the inputs of a matrix are measured.
InputKey input_of(const ConvertedWeight& weight);

}  // namespace tandem::eval
