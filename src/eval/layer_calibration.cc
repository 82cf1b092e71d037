// A text model of a single layer, whose streams are exchanged for those of the file after the embedding.
#include "eval/layer_calibration.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "forward/step.h"
#include "forward/text_model.h"

namespace tandem::eval {
namespace {

constexpr int64_t calibration_rows = 256;

// Passes on what it sees of the layers to another probe.
class StreamProbe final : public forward::Probe {
 public:
  StreamProbe(int file, int64_t row_bytes, bool reads, bool writes, forward::Probe* inner, const std::string& where)
      : file_(file), row_bytes_(row_bytes), reads_(reads), writes_(writes), inner_(inner), where_(where) {}

  void set_first_row(int64_t row) { row_ = row; }
  void embedded(int64_t rows, float* streams) override {
    if (!reads_) return;
    auto* to = reinterpret_cast<char*>(streams);
    for (int64_t at = 0, size = rows * row_bytes_; at < size;) {
      const ssize_t got = ::pread(file_, to + at, static_cast<size_t>(size - at), row_ * row_bytes_ + at);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail(got < 0 ? std::strerror(errno) : "ends early");
      at += got;
    }
  }
  void streams(int64_t layer, int64_t rows, const float* values) override {
    if (!writes_ || layer != 0) return;
    const auto* from = reinterpret_cast<const char*>(values);
    for (int64_t at = 0, size = rows * row_bytes_; at < size;) {
      const ssize_t put = ::pwrite(file_, from + at, static_cast<size_t>(size - at), row_ * row_bytes_ + at);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) fail(put < 0 ? std::strerror(errno) : "takes no more");
      at += put;
    }
  }
  void inputs(int64_t layer, forward::LinearInput which, int64_t rows, int64_t width, const float* x) override {
    if (inner_ != nullptr) inner_->inputs(layer, which, rows, width, x);
  }
  void routing(int64_t layer, int64_t rows, int64_t per_token, const int32_t* chosen, const float* weights,
               const float* gaps) override {
    if (inner_ != nullptr) inner_->routing(layer, rows, per_token, chosen, weights, gaps);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorCode::resource, where_, what, "room for the streams between two layers");
  }

  int file_;
  int64_t row_bytes_, row_ = 0;
  bool reads_, writes_;
  forward::Probe* inner_;
  const std::string& where_;
};

// The model of one layer: its number is 0, the MTP layer's 1.
model::Shape shape_of_layer(const model::Shape& shape, int64_t layer, bool with_mtp) {
  model::Shape one = shape;
  const auto at = static_cast<size_t>(layer);
  one.num_hidden_layers = 1;
  one.num_nextn_predict_layers = with_mtp ? 1 : 0;
  one.layer_types = {shape.layer_types[at]};
  one.mlp_layer_types = {shape.mlp_layer_types[at]};
  return one;
}

model::TextWeights weights_of_layer(const model::TextWeights& weights, int64_t layer, bool with_mtp) {
  model::TextWeights one;
  one.embed_tokens = weights.embed_tokens;
  one.layers = {weights.layers[static_cast<size_t>(layer)]};
  one.norm = weights.norm;
  one.lm_head = weights.lm_head;
  if (with_mtp) one.mtp = weights.mtp;
  return one;
}

}  // namespace

LayerCalibration::LayerCalibration(const model::Shape& shape, const Windows& windows,
                                   const std::filesystem::path& folder, device::Threads& threads)
    : shape_(shape), windows_(windows), folder_(folder), threads_(threads) {
  std::string path = (folder / "streams.XXXXXX").string();
  file_ = ::mkostemp(path.data(), O_CLOEXEC);
  if (file_ < 0) throw Error(ErrorCode::resource, path, std::strerror(errno), "a file to write");
  ::unlink(path.c_str());
}

LayerCalibration::~LayerCalibration() { ::close(file_); }

template <typename Chunk>
void LayerCalibration::run(const model::TextWeights& weights, bool with_mtp, forward::Probe* probe, bool writes,
                           const Chunk& after) {
  constexpr int64_t page_rows = forward::TextModel::page_rows;
  int64_t longest = 0;
  for (const Window& window : windows_.windows) longest = std::max(longest, std::ssize(window.ids));
  const auto pages = static_cast<int32_t>((longest + page_rows - 1) / page_rows);
  forward::Capacity capacity;
  capacity.pages = 1 + pages;
  capacity.max_rows = static_cast<int32_t>(std::min(calibration_rows, longest));
  capacity.max_logit_rows = 1;
  capacity.mtp = with_mtp;
  const model::Shape shape = shape_of_layer(shape_, layer_, with_mtp);
  const model::TextWeights one = weights_of_layer(weights, layer_, with_mtp);
  forward::TextModel text(shape, one, threads_, capacity);
  const auto row_bytes = shape.hc_mult * shape.hidden_size * static_cast<int64_t>(sizeof(float));
  const std::string where = folder_.string();
  StreamProbe streams(file_, row_bytes, layer_ > 0, writes, probe, where);
  int64_t row = 0;
  for (const Window& window : windows_.windows) {
    const std::span<const int32_t> ids(window.ids);
    for (int64_t first = 0; first < std::ssize(ids); first += calibration_rows) {
      const int64_t rows = std::min(calibration_rows, std::ssize(ids) - first);
      streams.set_first_row(row);
      text.run(
          forward::single_stream_step(ids.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), first, pages),
          &streams);
      row += rows;
      const int64_t paired = std::min(rows, std::ssize(ids) - 1 - first);  // rows with a next token
      if (with_mtp && paired > 0) {
        const std::vector<float> hidden(text.hidden().begin(), text.hidden().begin() + paired * shape.hidden_size);
        text.run_mtp(forward::single_stream_step(
                         ids.subspan(static_cast<size_t>(first + 1), static_cast<size_t>(paired)), first, pages),
                     hidden, true, &streams);
      }
      after(text, rows);
    }
  }
}

void LayerCalibration::check(const std::map<InputKey, quant::Exl3Moments>& moments, const std::string& where) const {
  for (const auto& [key, sums] : moments)
    if (10 * sums.dropped_rows > sums.rows + sums.dropped_rows)
      throw Error(
          ErrorCode::bad_file, fmt::format("{}: inputs of {}", where, name_of(key)),
          fmt::format("{} of {} calibration rows are not finite", sums.dropped_rows, sums.rows + sums.dropped_rows),
          "at most a tenth");
}

void LayerCalibration::capture(const model::TextWeights& weights, RowWeight weight,
                               std::map<InputKey, quant::Exl3Moments>& moments) {
  MomentProbe probe(0, weights.layers[static_cast<size_t>(layer_)], shape_, weight, moments, threads_);
  run(weights, false, &probe, false, [](const forward::TextModel&, int64_t) {});
  check(moments, fmt::format("layer {}", layer_));
}

void LayerCalibration::advance(const model::TextWeights& weights) {
  run(weights, false, nullptr, true, [](const forward::TextModel&, int64_t) {});
  ++layer_;
}

void LayerCalibration::capture_end(const model::TextWeights& weights, RowWeight weight,
                                   std::map<InputKey, quant::Exl3Moments>& head,
                                   std::map<InputKey, quant::Exl3Moments>& mtp) {
  const bool with_mtp = !mtp.empty();
  std::optional<MomentProbe> probe;
  if (with_mtp) probe.emplace(1, weights.mtp->layer, shape_, weight, mtp, threads_);
  const auto wanted = head.find({InputSite::head});
  run(weights, with_mtp, probe ? &*probe : nullptr, false, [&](const forward::TextModel& text, int64_t rows) {
    if (wanted != head.end()) add_rows(wanted->second, text.hidden().data(), rows, nullptr, threads_);
  });
  check(head, "final norm");
  check(mtp, fmt::format("layer {}", shape_.num_hidden_layers));
}

}  // namespace tandem::eval
