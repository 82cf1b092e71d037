// Bytes of the weights by rank and by component: of a checkpoint as it is stored, or of a bare config.json in a format
// (spec/model.md 1.3).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/plan_formats.h"
#include "model/checkpoint.h"
#include "model/inventory.h"
#include "model/shape.h"

namespace tandem::engine {

struct WeightBytes {
  int64_t parameters = 0;
  int64_t total = 0;              // as stored
  std::array<int64_t, 2> rank{};  // each of two ranks; one rank alone has the total
  // Main model first, by component and format; a checkpoint's have the format "as stored".
  std::vector<model::FormatRow> rows;
  int64_t of_rank(int rank_number, int ranks) const {
    return ranks == 1 ? total : rank[static_cast<size_t>(rank_number)];
  }
};

// The text model, with its MTP layer where the shape has one.
WeightBytes weights_in_format(const model::Shape& shape, const WeightFormat& format);
// As the tensors of the checkpoint are stored, whatever their format. Throws Error(bad_file) naming a tensor of which
// nothing is stored.
WeightBytes weights_of_checkpoint(const model::Checkpoint& checkpoint, const model::Shape& shape);

}  // namespace tandem::engine
