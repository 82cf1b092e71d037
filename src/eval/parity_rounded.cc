// Two chunks of a prompt, and how far their logits lie from the reference's.
#include "eval/parity_rounded.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "eval/quality_math.h"
#include "forward/gpu_model.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"

namespace tandem::eval {
namespace {

constexpr int32_t page_rows = 64;

template <typename T>
std::vector<T> values_of(const model::Checkpoint& file, const char* name, model::DType dtype) {
  const model::Tensor& tensor = file.at(name);
  if (tensor.dtype != dtype) {
    throw Error(ErrorCode::bad_file, tensor.file + ": " + tensor.name,
                "dtype " + std::string(model::dtype_name(tensor.dtype)), std::string(model::dtype_name(dtype)));
  }
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

double relative_l2(std::span<const float> expected, std::span<const float> got) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    difference += d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(difference / size);
}

struct Expected {
  std::vector<int32_t> ids, positions;  // positions ascend
  std::vector<float> logits;            // [positions, vocab]

  int64_t length() const { return std::ssize(ids); }
};

Expected read_expected(const std::filesystem::path& path, size_t vocab) {
  const model::Checkpoint file = model::Checkpoint::open(path);
  Expected out{values_of<int32_t>(file, "ids", model::DType::i32),
               values_of<int32_t>(file, "logits_pos", model::DType::i32),
               values_of<float>(file, "logits", model::DType::f32)};
  const bool sorted = std::is_sorted(out.positions.begin(), out.positions.end());
  if (!sorted || out.positions.empty() || out.positions.front() < 0 || out.positions.back() >= out.length() ||
      out.logits.size() != out.positions.size() * vocab) {
    throw Error(ErrorCode::bad_file, path.string(), "logits_pos or logits that do not fit ids and the vocabulary",
                "ascending positions of ids, a row of logits for each");
  }
  return out;
}

// The model on whichever device.
class Pass {
 public:
  Pass(const ParityModel& model, device::Gpu* gpu, const forward::Capacity& capacity) {
    if (gpu != nullptr) {
      on_gpu_ = std::make_unique<forward::GpuModel>(*gpu, *model.shape, *model.weights, capacity,
                                                    forward::DrafterModel{}, forward::GpuModelOptions{.graphs = false});
    } else {
      on_cpu_ =
          std::make_unique<forward::TextModel>(*model.shape, *model.weights, *model.threads, capacity, model.mutation);
    }
  }
  std::span<const float> logits(const forward::Step& step) {
    if (on_gpu_) {
      on_gpu_->run(step);
      return on_gpu_->logits();
    }
    on_cpu_->run(step);
    return on_cpu_->logits();
  }

 private:
  std::unique_ptr<forward::GpuModel> on_gpu_;
  std::unique_ptr<forward::TextModel> on_cpu_;
};

Measure measure(const char* name, double error, double tolerance) {
  Measure m;
  m.name = name;
  m.error = m.late_error = error;
  m.tolerance = tolerance;
  m.ok = error <= tolerance;  // false for NaN
  return m;
}

}  // namespace

CaseReport run_rounded_case(const ParityModel& model, const std::filesystem::path& path, device::Gpu* gpu) {
  const auto vocab = static_cast<size_t>(model.shape->vocab_size);
  const Expected expected = read_expected(path, vocab);
  const int64_t length = expected.length();
  const auto pages = static_cast<int32_t>((length + page_rows - 1) / page_rows);
  forward::Capacity capacity;
  capacity.pages = 1 + pages;
  capacity.page_rows = page_rows;
  capacity.max_rows = static_cast<int32_t>(length);
  capacity.max_logit_rows = static_cast<int32_t>(expected.positions.size());
  capacity.cache_type = forward::CacheType::bf16;
  capacity.compute = forward::Compute::bf16;
  capacity.mtp = false;
  Pass pass(model, gpu, capacity);

  std::vector<double> distances;
  double divergence = 0;
  size_t done = 0;  // positions
  for (const auto& [from, to] : {std::pair{int64_t{0}, length / 3}, std::pair{length / 3, length}}) {
    if (from == to) continue;
    forward::Step step = forward::single_stream_step(
        std::span(expected.ids).subspan(static_cast<size_t>(from), static_cast<size_t>(to - from)), from, pages);
    const size_t first = done;
    for (; done < expected.positions.size() && expected.positions[done] < to; ++done)
      step.logit_rows.push_back(static_cast<int32_t>(expected.positions[done] - from));
    const std::span<const float> logits = pass.logits(step);
    for (size_t i = first; i < done; ++i) {
      const auto wanted = std::span(expected.logits).subspan(i * vocab, vocab);
      const auto got = logits.subspan((i - first) * vocab, vocab);
      distances.push_back(relative_l2(wanted, got));
      LogitRow teacher, student;
      const bool finite = normalise(wanted, teacher) && normalise(got, student);
      divergence += finite ? kl_divergence(teacher, student) : std::numeric_limits<double>::quiet_NaN();
    }
  }
  const double mean = divergence / static_cast<double>(distances.size());
  std::nth_element(distances.begin(), distances.begin() + std::ssize(distances) / 2, distances.end());
  CaseReport report;
  report.model = model.name;
  report.name = path.stem().string();
  const bool random = model.name.rfind("tiny", 0) == 0;
  report.measures.push_back(measure("logits_l2", distances[distances.size() / 2], random ? 0.2 : 0.02));
  if (!random) report.measures.push_back(measure("logits_kl", mean, 1e-4));
  return report;
}

}  // namespace tandem::eval
