// Adds up what a step reads.
#include "model/inspect_floor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"

namespace tandem::model {
namespace {

constexpr double rows_of_a_block = 16;  // of KDA: S₀ advances once in as many (design.md 5)
constexpr int64_t most_rows = 64;

bool is_read(const FormatRow& row) { return !row.mtp && row.component != Component::embedding; }

// "3.47 GB", "12.1 MB".
std::string size(double bytes) {
  return bytes >= 1e9 ? fmt::format("{:.3f} GB", bytes / 1e9) : fmt::format("{:.3f} MB", bytes / 1e6);
}

}  // namespace

double bytes_per_token(const FormatRow& row, const Shape& shape) {
  if (!is_read(row)) return 0;
  const auto bytes = static_cast<double>(row.bytes);
  if (row.component != Component::routed_experts) return bytes;
  return bytes * static_cast<double>(shape.num_experts_per_tok) / static_cast<double>(shape.n_routed_experts);
}

StepBytes step_bytes(const Shape& shape, const std::vector<FormatRow>& weights, const FloorSettings& settings,
                     int64_t rows) {
  StepBytes step;
  step.rows = rows;
  const auto experts = static_cast<double>(shape.n_routed_experts);
  const double missed = 1 - static_cast<double>(shape.num_experts_per_tok) / experts;  // by one row
  step.distinct_experts = experts * (1 - std::pow(missed, static_cast<double>(rows)));
  for (const FormatRow& row : weights) {
    if (!is_read(row)) continue;
    const auto bytes = static_cast<double>(row.bytes);
    if (row.component == Component::routed_experts)
      step.experts += bytes * step.distinct_experts / experts;
    else
      step.dense += bytes;
  }
  const CacheBytes cache = cache_bytes(shape);
  const double writes = std::min(1.0, static_cast<double>(rows) / rows_of_a_block);
  step.states = static_cast<double>(cache.kda_state_bytes) * (1 + writes);
  const auto layers = static_cast<double>(cache.dsa_layers);
  const int64_t pools = settings.context / shape.index_kpool;
  const int64_t selected = std::min(settings.context, shape.max_selected());
  step.latents = layers * static_cast<double>(selected * settings.cache.latent_bytes);
  if (pools > shape.pool_budget()) step.index_keys = layers * static_cast<double>(pools * settings.cache.pool_bytes);
  return step;
}

Floor floor_of(const Shape& shape, const std::vector<FormatRow>& weights, const FloorSettings& settings) {
  if (!std::isfinite(settings.gb_per_s) || settings.gb_per_s <= 0)
    throw Error(ErrorCode::usage, "--bandwidth", fmt::format("{}", settings.gb_per_s),
                "GB/s above 0, such as 4400 (4.4e12 bytes a second)");
  if (settings.context < 0 || settings.context > shape.max_position_embeddings)
    throw Error(ErrorCode::usage, "--context", fmt::format("{}", settings.context),
                fmt::format("0 to max_position_embeddings {}", shape.max_position_embeddings));
  Floor floor;
  floor.settings = settings;
  for (int64_t rows = 1; rows <= most_rows; rows *= 2)
    floor.steps.push_back(step_bytes(shape, weights, settings, rows));
  return floor;
}

std::string floor_text(const Floor& floor, const Shape& shape) {
  std::string text = fmt::format("floor at {} GB/s after {} tokens ({})\n", floor.settings.gb_per_s,
                                 floor.settings.context, floor.settings.cache.format);
  const StepBytes& one = floor.steps.front();
  const auto line = [&](const std::string& what, double bytes) {
    text += fmt::format("  {:<44} {:>12} {:>9.4f} ms\n", what, size(bytes), bytes / (1e6 * floor.settings.gb_per_s));
  };
  line("weights but routed experts", one.dense);
  line(fmt::format("{} of {} experts of each layer", shape.num_experts_per_tok, shape.n_routed_experts), one.experts);
  line("KDA states, read, and written once in 16 rows", one.states);
  line(fmt::format("latent rows attended to, {}", std::min(floor.settings.context, shape.max_selected())), one.latents);
  line("pooled index keys", one.index_keys);
  line("a decoded token", one.total());
  text += fmt::format("  at most {:.2f} tokens/s without drafts\n", 1 / floor.seconds(one));
  text += "  rows of a step  experts of a layer         read          ms   rows/s\n";
  for (const StepBytes& step : floor.steps)
    text += fmt::format("  {:>14}  {:>18.1f} {:>12} {:>11.4f} {:>8.1f}\n", step.rows, step.distinct_experts,
                        size(step.total()), 1e3 * floor.seconds(step),
                        static_cast<double>(step.rows) / floor.seconds(step));
  return text;
}

}  // namespace tandem::model
