// One-shot, chunked and decoded passes over a case's tokens, and what each of them is compared with.
#include "eval/parity_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include "base/error.h"
#include "forward/probe.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"

namespace tandem::eval {
namespace {

constexpr double near_tie_gap = 1e-5;
constexpr double near_tie_tolerance = 1e-2;

template <typename Stored, typename Value>
std::vector<Value> read_as(const model::Tensor& t) {
  std::vector<Value> out;
  for (int64_t i = 0; i < t.elements(); ++i) {
    Stored value;
    std::memcpy(&value, t.data.data() + static_cast<size_t>(i) * sizeof value, sizeof value);
    out.push_back(static_cast<Value>(value));
  }
  return out;
}

std::vector<int64_t> read_integers(const model::Tensor& t) {
  switch (t.dtype) {
    case model::DType::i32: return read_as<int32_t, int64_t>(t);
    case model::DType::i16: return read_as<int16_t, int64_t>(t);
    case model::DType::u8: return read_as<uint8_t, int64_t>(t);
    default:
      throw Error(ErrorCode::bad_file, t.file + ": " + t.name, fmt::format("dtype {}", model::dtype_name(t.dtype)),
                  "I32, I16 or U8");
  }
}

std::vector<float> read_floats(const model::Tensor& t) {
  if (t.dtype != model::DType::f32) {
    throw Error(ErrorCode::bad_file, t.file + ": " + t.name, fmt::format("dtype {}", model::dtype_name(t.dtype)),
                "F32");
  }
  return read_as<float, float>(t);
}

// Keeps what the probe shows at the case's stream positions, and where the near-ties are.
class Recorder : public forward::Probe {
 public:
  std::vector<int64_t> positions;  // wanted rows
  int64_t base = 0;                // absolute position of row 0 of the running step
  int64_t first_near_tie = std::numeric_limits<int64_t>::max();
  std::map<int64_t, std::vector<float>> stream_rows;                    // layer -> [wanted, streams]
  std::map<int64_t, std::map<int64_t, std::vector<int64_t>>> selected;  // layer -> position -> token positions
  std::map<int64_t, std::map<int64_t, std::vector<int64_t>>> experts;
  std::map<int64_t, std::map<int64_t, std::vector<float>>> expert_weights;
  int64_t stream_width = 0;

  void streams(int64_t layer, int64_t rows, const float* values) override {
    for (const int64_t position : positions) {
      const int64_t row = position - base;
      if (row < 0 || row >= rows) continue;
      auto& out = stream_rows[layer];
      out.insert(out.end(), values + row * stream_width, values + (row + 1) * stream_width);
    }
  }
  void selection(int64_t layer, int64_t first_row, int64_t rows, const int32_t* chosen, int64_t max_selected,
                 const int32_t* counts, const float* gaps) override {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = base + first_row + i;
      note_gap(position, gaps[i]);
      if (wanted(position))
        selected[layer][position].assign(chosen + i * max_selected, chosen + i * max_selected + counts[i]);
    }
  }
  void routing(int64_t layer, int64_t rows, int64_t per_token, const int32_t* chosen, const float* weights,
               const float* gaps) override {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t position = base + i;
      note_gap(position, gaps[i]);
      if (!wanted(position)) continue;
      experts[layer][position].assign(chosen + i * per_token, chosen + (i + 1) * per_token);
      expert_weights[layer][position].assign(weights + i * per_token, weights + (i + 1) * per_token);
    }
  }

 private:
  bool wanted(int64_t position) const {
    return std::find(positions.begin(), positions.end(), position) != positions.end();
  }
  void note_gap(int64_t position, float gap) {
    if (gap < near_tie_gap) first_near_tie = std::min(first_near_tie, position);
  }
};

// Rows of a tensor and the position that each belongs to.
struct Rows {
  std::vector<float> values;
  std::vector<int64_t> positions;
};

class CaseRun {
 public:
  CaseRun(const ParityModel& model, const std::filesystem::path& file)
      : model_(model), file_(model::Checkpoint::open(file)) {
    report_.model = model.name;
    report_.name = file.stem().string();
    for (const int64_t id : integers("ids")) ids_.push_back(static_cast<int32_t>(id));
    if (ids_.empty()) throw Error(ErrorCode::bad_file, file.string() + ": ids", "no tokens", "at least one");
    pages_ = static_cast<int32_t>(static_cast<int64_t>(ids_.size()) / forward::TextModel::page_rows + 1);
    recorder_.stream_width = shape().hc_mult * shape().hidden_size;
    if (file_.find("stream_pos") != nullptr) recorder_.positions = integers("stream_pos");
    logit_positions_ = integers("logits_pos");
    const auto rows = static_cast<int32_t>(ids_.size());
    text_.emplace(shape(), *model.weights, *model.threads,
                  forward::Capacity{.pages = pages_ + 1, .max_rows = rows, .max_logit_rows = rows}, model.mutation);
  }

  CaseReport run() {
    one_shot();
    if (file_.find("mtp_hidden") != nullptr) mtp();
    if (file_.find("chunk_sizes") != nullptr) chunked();
    if (file_.find("decode_start") != nullptr) decoded();
    if (recorder_.first_near_tie != std::numeric_limits<int64_t>::max())
      report_.first_near_tie = recorder_.first_near_tie;
    judge();
    return report_;
  }

 private:
  const model::Shape& shape() const { return *model_.shape; }
  std::vector<int64_t> integers(const std::string& name) const { return read_integers(file_.at(name)); }
  int64_t last() const { return static_cast<int64_t>(ids_.size()) - 1; }

  // Runs tokens [begin, end) as one step; the logits of the wanted positions among them.
  Rows step(int64_t begin, int64_t end, const std::vector<int64_t>& wanted, forward::Probe* probe) {
    forward::Step s = forward::single_stream_step(
        std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin, pages_);
    Rows rows;
    for (const int64_t position : wanted) {
      if (position < begin || position >= end) continue;
      s.logit_rows.push_back(static_cast<int32_t>(position - begin));
      rows.positions.push_back(position);
    }
    recorder_.base = begin;
    text_->run(s, probe);
    rows.values.assign(text_->logits().begin(), text_->logits().end());
    return rows;
  }

  void one_shot() {
    add("logits", read_floats(file_.at("logits")), step(0, last() + 1, logit_positions_, &recorder_));
    hidden_.assign(text_->hidden().begin(), text_->hidden().end());
    if (file_.find("streams") != nullptr) compare_streams();
    if (file_.find("final_hidden") != nullptr) compare_hidden("final_hidden", hidden_, recorder_.positions);
    compare_sets("index_topk.", "selected positions", recorder_.selected);
    compare_sets("router_idx.", "experts", recorder_.experts);
    compare_router_weights();
    compare_states();
  }

  void compare_streams() {
    const std::vector<float> expected = read_floats(file_.at("streams"));
    const size_t size = expected.size() / static_cast<size_t>(shape().num_hidden_layers);
    for (int64_t layer = 0; layer < shape().num_hidden_layers; ++layer) {
      const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(size) * layer;
      add(fmt::format("streams.{}", layer), {begin, begin + static_cast<std::ptrdiff_t>(size)},
          {recorder_.stream_rows[layer], recorder_.positions});
    }
  }

  void compare_hidden(const std::string& name, std::span<const float> hidden, const std::vector<int64_t>& positions) {
    Rows rows;
    const auto width = static_cast<size_t>(shape().hidden_size);
    for (const int64_t position : positions) {
      if ((static_cast<size_t>(position) + 1) * width > hidden.size()) continue;
      const auto row = hidden.subspan(static_cast<size_t>(position) * width, width);
      rows.values.insert(rows.values.end(), row.begin(), row.end());
      rows.positions.push_back(position);
    }
    add(name, read_floats(file_.at(name)), rows);
  }

  void compare_sets(const std::string& prefix, const std::string& what,
                    const std::map<int64_t, std::map<int64_t, std::vector<int64_t>>>& seen) {
    Count count;
    count.name = what;
    for (const auto& [layer, rows] : seen) {
      const model::Tensor* t = file_.find(prefix + std::to_string(layer));
      if (t == nullptr) continue;
      const std::vector<int64_t> stored = read_integers(*t);
      const auto width = stored.size() / recorder_.positions.size();
      for (size_t i = 0; i < recorder_.positions.size(); ++i) {
        const auto row = rows.find(recorder_.positions[i]);
        std::vector<int64_t> expected(stored.begin() + static_cast<std::ptrdiff_t>(i * width),
                                      stored.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
        std::erase(expected, -1);
        ++count.total;
        if (row != rows.end() && row->second == expected) {
          ++count.equal;
        } else if (recorder_.positions[i] >= recorder_.first_near_tie) {
          ++count.excused;
        } else if (count.first_difference.empty()) {
          count.first_difference = fmt::format("layer {}, position {}", layer, recorder_.positions[i]);
        }
      }
    }
    if (count.total > 0) report_.counts.push_back(count);
  }

  void compare_router_weights() {
    for (const auto& [layer, rows] : recorder_.expert_weights) {
      const model::Tensor* t = file_.find("router_w." + std::to_string(layer));
      if (t == nullptr) continue;
      Rows got;
      for (const auto& [position, weights] : rows) {
        got.values.insert(got.values.end(), weights.begin(), weights.end());
        got.positions.push_back(position);
      }
      add(fmt::format("router_w.{}", layer), read_floats(*t), got);
    }
  }

  void compare_states() {
    const int64_t width = shape().kda_width(), kept = shape().short_conv_kernel_size - 1;
    int64_t kda_layer = 0;
    for (int64_t layer = 0; layer < shape().num_hidden_layers; ++layer) {
      if (shape().layer_types[static_cast<size_t>(layer)] != model::AttentionKind::kda) continue;
      std::vector<float> state(static_cast<size_t>(width * shape().kda_head_dim)),
          conv(static_cast<size_t>(3 * width * kept));
      text_->read_kda_state(0, kda_layer++, state, conv);
      for (const auto& [name, values] : {std::pair{"kda_state", &state}, std::pair{"conv_state", &conv}}) {
        const model::Tensor* t = file_.find(fmt::format("{}.{}", name, layer));
        if (t != nullptr) add(t->name, read_floats(*t), {*values, {last()}});
      }
    }
  }

  void chunked() {
    std::vector<int64_t> ends;
    int64_t end = 0;
    for (const int64_t size : integers("chunk_sizes")) ends.push_back(end = std::min(end + size, last() + 1));
    if (end <= last()) ends.push_back(last() + 1);
    Rows all;
    int64_t begin = 0;
    for (const int64_t stop : ends) {
      if (stop == begin) continue;
      append(all, step(begin, stop, logit_positions_, &recorder_));
      begin = stop;
    }
    add("logits_chunked", read_floats(file_.at(file_.find("logits_chunked") != nullptr ? "logits_chunked" : "logits")),
        all);
  }

  void decoded() {
    const int64_t start = integers("decode_start").at(0);
    const std::vector<float> expected = read_floats(file_.at("logits_decode"));
    const int64_t rows = static_cast<int64_t>(expected.size()) / shape().vocab_size;
    if (start > 0) step(0, start, {}, &recorder_);
    Rows all;
    for (int64_t position = start; position < start + rows; ++position) {
      append(all, step(position, position + 1, {position}, &recorder_));
    }
    add("logits_decode", expected, all);
  }

  void mtp() {
    if (!model_.weights->mtp || last() < 1) return;
    for (const bool zero : {false, true}) {
      forward::Step s = forward::single_stream_step(std::span(ids_).subspan(1), 0, pages_);
      Rows logits;
      for (const int64_t position : logit_positions_) {
        if (position >= last()) continue;
        s.logit_rows.push_back(static_cast<int32_t>(position));
        logits.positions.push_back(position);
      }
      recorder_.base = 0;
      text_->run_mtp(s, hidden_, zero, &recorder_);
      compare_hidden(zero ? "mtp_hidden_zero0" : "mtp_hidden", text_->mtp_hidden(), recorder_.positions);
      if (zero || file_.find("mtp_logits") == nullptr) continue;
      logits.values.assign(text_->mtp_logits().begin(), text_->mtp_logits().end());
      add("mtp_logits", read_floats(file_.at("mtp_logits")), logits);
    }
  }

  static void append(Rows& all, const Rows& more) {
    all.values.insert(all.values.end(), more.values.begin(), more.values.end());
    all.positions.insert(all.positions.end(), more.positions.begin(), more.positions.end());
  }

  void add(const std::string& name, std::vector<float> expected, Rows got) {
    if (got.values.size() != expected.size() || got.positions.empty()) {
      throw Error(ErrorCode::bad_file, fmt::format("{}/{}: {}", report_.model, report_.name, name),
                  fmt::format("{} values", expected.size()), fmt::format("{}", got.values.size()));
    }
    compared_.push_back({name, std::move(expected), std::move(got)});
  }

  void judge() {
    for (const Compared& c : compared_) {
      Measure m;
      m.name = c.name;
      m.tolerance = model_.tolerance;
      double largest = 0, early = 0, late = 0;
      const size_t width = c.expected.size() / c.got.positions.size();
      for (size_t i = 0; i < c.expected.size(); ++i) {
        double difference = std::abs(static_cast<double>(c.got.values[i]) - c.expected[i]);
        if (!std::isfinite(c.got.values[i])) difference = std::numeric_limits<double>::infinity();
        largest = std::max(largest, std::abs(static_cast<double>(c.expected[i])));
        double& side = c.got.positions[i / width] < recorder_.first_near_tie ? early : late;
        side = std::max(side, difference);
      }
      m.error = std::max(early, late) / largest;
      m.late_error = late / largest;
      m.near_tie = m.late_error > m.tolerance;
      m.ok = early / largest <= m.tolerance && m.late_error <= (m.near_tie ? near_tie_tolerance : m.tolerance);
      report_.measures.push_back(m);
    }
  }

  struct Compared {
    std::string name;
    std::vector<float> expected;
    Rows got;
  };

  const ParityModel& model_;
  model::Checkpoint file_;
  CaseReport report_;
  std::vector<int32_t> ids_;
  int32_t pages_ = 0;
  std::vector<int64_t> logit_positions_;
  Recorder recorder_;
  std::optional<forward::TextModel> text_;
  std::vector<float> hidden_;
  std::vector<Compared> compared_;
};

}  // namespace

CaseReport run_case(const ParityModel& model, const std::filesystem::path& file) { return CaseRun(model, file).run(); }

}  // namespace tandem::eval
