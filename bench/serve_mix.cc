// What many streams and kept states are worth, on the CPU with the bundled model; figures are ratios within one run.
//   again      an identical prompt of 4,096 tokens a second time: first token sooner by …
//   streams    8 streams against one: the ratio of their token rates over the ratio of their floors; the same of bare
//   steps
//              on one thread in its own processor time, which a busy machine disturbs less
//   fill       gaps between the tokens of a stream beside a prompt of 16,384 tokens, against the slice budget
//   overhead   time of the engine's thread outside the model, for a step of 8 streams
//   idle       processor time of an engine without requests
//   pool       a decode step at 2,048 tokens in a pool of 1,024 pages against one in a pool of 10
// Floors as in cpu_generate: bytes over the read rate or multiply-adds over their rate, whichever is larger; the read
// rate is that of a set as large as the step's.
//   serve_mix [MODEL] [--threads N] [--rounds N] [--json]
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "common.h"
#include "device/threads.h"
#include "engine/batch_engine.h"
#include "engine/step_runner.h"
#include "forward/cost.h"
#include "forward/text_model.h"
#include "model/checkpoint.h"
#include "stream_steps.h"

namespace tandem {
namespace {

using bench::median;
using bench::quantile;
using Clock = std::chrono::steady_clock;

constexpr int64_t again_tokens = 4096, fill_tokens = 16384, streams = 8, stream_prompt = 64, stream_tokens = 160;
constexpr double slice_ms = 200;

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// The model, with the time that it takes.
class TimedModel : public engine::StepRunner {
 public:
  explicit TimedModel(forward::TextModel& text) : text_(text) {}
  void run(const forward::Step& step) override {
    const auto start = Clock::now();
    text_.run(step);
    inside_ += Clock::now() - start;
    ++steps_;
  }
  std::span<const float> logits() const override { return text_.logits(); }
  Clock::duration inside_{};  // read while the engine is idle
  int64_t steps_ = 0;

 private:
  forward::TextModel& text_;
};

// A request and when its tokens came.
struct Reply {
  std::vector<Clock::time_point> times;
  Clock::time_point submitted;
  uint64_t number = 0;
  std::promise<void> end;
};

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : options_(options),
        threads_(options.threads),
        shape_(model::read_shape(options.model)),
        checkpoint_(model::Checkpoint::open(options.model)),
        weights_(model::load_text_weights(checkpoint_, shape_)),
        text_(shape_, weights_, threads_, capacity()),
        model_(text_),
        engine_(model_, engine_options()),
        machines_(shape_, weights_, stream_prompt + stream_tokens / 2, streams),
        steps_(shape_, weights_, streams, stream_prompt, stream_tokens) {}

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      machine();
      again(round);
      many_streams(round);
      steps_.round();
    }
    fill();
    idle();
    pools();
    print();
  }

 private:
  static forward::Capacity capacity() {
    return {.slots = streams,
            .pages = 161,
            .max_stream_pages = 80,
            .max_rows = 512,
            .max_logit_rows = streams,
            .kept_states = 32};
  }
  engine::BatchEngineOptions engine_options() const {
    engine::BatchEngineOptions o;
    o.scheduler.vocab_size = o.scheduler.sampled_tokens = static_cast<int32_t>(shape_.vocab_size);
    o.scheduler.capacity = capacity();
    o.scheduler.max_model_len = 80 * capacity().page_rows;
    o.scheduler.prefill_slice_ms = slice_ms;
    return o;
  }

  std::vector<int32_t> prompt(int64_t tokens, int64_t salt) const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i)
      ids.push_back(static_cast<int32_t>(((i + 1) * 7919 + salt * 104729) % (shape_.vocab_size * 9 / 10)));
    return ids;
  }

  std::shared_ptr<Reply> submit(std::vector<int32_t> ids, int64_t tokens) {
    auto reply = std::make_shared<Reply>();
    reply->times.reserve(static_cast<size_t>(tokens));
    engine::Request request;
    request.prompt_ids = std::move(ids);
    request.sampling.temperature = 0;
    request.max_tokens = tokens;
    reply->submitted = Clock::now();
    reply->number = engine_.submit(std::move(request), [reply](const engine::Event& event) {
      if (event.kind == engine::Event::Kind::token) reply->times.push_back(Clock::now());
      if (event.kind == engine::Event::Kind::finished) reply->end.set_value();
    });
    return reply;
  }
  static void wait(const std::vector<std::shared_ptr<Reply>>& replies) {
    for (const auto& reply : replies) reply->end.get_future().wait();
  }

  void machine() {
    device::Threads threads(options_.threads);  // its own: the engine may still be keeping a state with the model's
    machines_.measure(threads, bench::wall_ms);
  }

  void again(int round) {
    for (std::vector<double>* times : {&first_, &second_}) {
      const auto reply = submit(prompt(again_tokens, 1 + round), 1);
      wait({reply});
      times->push_back(seconds(reply->times.front() - reply->submitted));
    }
  }

  // Tokens a second of `count` streams that decode together, the time outside the model and the steps.
  double rate(int64_t count, int round) {
    std::vector<std::shared_ptr<Reply>> replies;
    for (int64_t i = 0; i < count; ++i)
      replies.push_back(submit(prompt(stream_prompt, 1000 + 100 * round + i), stream_tokens));
    wait(replies);
    Clock::time_point from{}, to = Clock::time_point::max();
    for (const auto& reply : replies) {  // while all of them decode
      from = std::max(from, reply->times.front());
      to = std::min(to, reply->times.back());
    }
    int64_t tokens = 0;
    for (const auto& reply : replies)
      tokens += std::count_if(reply->times.begin(), reply->times.end(), [&](auto t) { return t > from && t <= to; });
    return static_cast<double>(tokens) / seconds(to - from);
  }

  void many_streams(int round) {
    one_.push_back(rate(1, round));
    const auto inside = model_.inside_;
    const int64_t steps = model_.steps_;
    const auto start = Clock::now();
    many_.push_back(rate(streams, 50 + round));
    overhead_.push_back(seconds(Clock::now() - start - (model_.inside_ - inside)) /
                        static_cast<double>(model_.steps_ - steps));
  }

  void fill() {
    const auto stream = submit(prompt(stream_prompt, 5000), 15000);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const auto long_prompt = submit(prompt(fill_tokens, 6000), 1);
    wait({long_prompt});
    const auto end = Clock::now();
    fill_seconds_ = seconds(long_prompt->times.front() - long_prompt->submitted);
    engine_.cancel(stream->number);
    wait({stream});
    for (size_t i = 1; i < stream->times.size(); ++i) {
      if (stream->times[i] > long_prompt->submitted && stream->times[i - 1] < end)
        gaps_.push_back(seconds(stream->times[i] - stream->times[i - 1]));
    }
  }

  void idle() {
    const auto used = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      const auto s = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
      };
      return s(usage.ru_utime) + s(usage.ru_stime);
    };
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const double before = used();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    idle_ = (used() - before) / 2;
  }

  void pools() {
    constexpr int32_t stream_pages = 9, prompt_rows = 2048, rows = 64;
    forward::Capacity small{.pages = stream_pages + 1, .max_stream_pages = stream_pages, .max_logit_rows = 1};
    forward::Capacity large = small;
    large.pages = 1024;
    const std::vector<int32_t> ids = prompt(prompt_rows + rows, 7000);
    forward::TextModel in_small(shape_, weights_, threads_, small), in_large(shape_, weights_, threads_, large);
    const auto run = [&](forward::TextModel& text, int64_t position, int64_t count) {
      text.run(forward::single_stream_step(
          std::span(ids).subspan(static_cast<size_t>(position), static_cast<size_t>(count)), position, stream_pages));
    };
    for (forward::TextModel* text : {&in_small, &in_large}) {
      for (int64_t position = 0; position < prompt_rows; position += small.max_rows)
        run(*text, position, small.max_rows);
    }
    for (int64_t position = prompt_rows; position < prompt_rows + rows; ++position) {
      for (const bool is_large : {false, true}) {
        const auto start = Clock::now();
        run(is_large ? in_large : in_small, position, 1);
        (is_large ? in_large_ : in_small_).push_back(seconds(Clock::now() - start));
      }
    }
  }

  void print() const {
    const double again = median(first_) / median(second_), measured = median(many_) / median(one_),
                 floors = machines_.floors(streams), step_measured = steps_.measured(), step_floors = steps_.floors();
    if (options_.json) {
      const nlohmann::ordered_json out{{"schema", "tandem.bench.serve_mix/1"},
                                       {"threads", threads_.count()},
                                       {"fma_per_second", machines_.one.fma_per_second},
                                       {"read_bytes_per_second", machines_.one.bytes_per_second},
                                       {"eight_streams_read_bytes_per_second", machines_.many.bytes_per_second},
                                       {"again_first_s", first_},
                                       {"again_second_s", second_},
                                       {"again_ratio", again},
                                       {"one_stream_tokens_per_second", one_},
                                       {"eight_streams_tokens_per_second", many_},
                                       {"streams_ratio", measured},
                                       {"streams_ratio_of_floors", floors},
                                       {"streams_fraction", measured / floors},
                                       {"one_thread_cpu_one_stream_ms", steps_.one_ms},
                                       {"one_thread_cpu_eight_streams_ms", steps_.many_ms},
                                       {"one_thread_cpu_ratio", step_measured},
                                       {"one_thread_cpu_ratio_of_floors", step_floors},
                                       {"one_thread_cpu_fraction", step_measured / step_floors},
                                       {"fill_s", fill_seconds_},
                                       {"fill_gaps_s", gaps_},
                                       {"fill_slice_s", slice_ms / 1000},
                                       {"overhead_s_a_step", overhead_},
                                       {"idle_cpu", idle_},
                                       {"small_pool_step_s", in_small_},
                                       {"large_pool_step_s", in_large_}};
      fmt::print("{}\n", out.dump(1));
      return;
    }
    fmt::print("machine, {} threads: {:.1f} G multiply-adds/s, reading {:.1f} MB {:.1f} GB/s, {:.1f} MB {:.1f} GB/s\n",
               threads_.count(), median(machines_.one.fma_per_second) / 1e9,
               static_cast<double>(machines_.one_cost.bytes()) / 1e6, median(machines_.one.bytes_per_second) / 1e9,
               static_cast<double>(machines_.many_cost.bytes()) / 1e6, median(machines_.many.bytes_per_second) / 1e9);
    fmt::print("again: {} tokens answered after {:.1f} ms, the second time after {:.2f} ms: {:.0f} times sooner\n",
               again_tokens, 1e3 * median(first_), 1e3 * median(second_), again);
    fmt::print("streams: one {:.0f}, eight {:.0f} tokens/s: {:.2f} times; floors {:.2f} times; {:.0f} % of that\n",
               median(one_), median(many_), measured, floors, 100 * measured / floors);
    fmt::print(
        "streams, steps in processor time of one thread: one {:.3f}, eight {:.3f} ms: {:.2f} times; floors {:.2f} "
        "times; "
        "{:.0f} % of that\n",
        median(steps_.one_ms), median(steps_.many_ms), step_measured, step_floors, 100 * step_measured / step_floors);
    fmt::print("fill of {}: {:.1f} s; gaps p50 {:.1f}, p99 {:.1f}, most {:.1f} ms; slice {:.0f} ms\n", fill_tokens,
               fill_seconds_, 1e3 * median(gaps_), 1e3 * quantile(gaps_, 0.99), 1e3 * quantile(gaps_, 1.0), slice_ms);
    fmt::print("overhead: {:.1f} us a step of {} streams; idle: {:.2f} % of a core\n", 1e6 * median(overhead_), streams,
               100 * idle_);
    fmt::print("pool: a step in a pool of 1,024 pages takes {:.2f} times one in a pool of 10\n",
               median(in_large_) / median(in_small_));
  }

  bench::Options options_;
  device::Threads threads_;
  model::Shape shape_;
  model::Checkpoint checkpoint_;
  model::TextWeights weights_;
  forward::TextModel text_;
  TimedModel model_;
  engine::BatchEngine engine_;
  bench::StreamMachines machines_;
  bench::StreamSteps steps_;
  std::vector<double> first_, second_, one_, many_, overhead_, gaps_, in_small_, in_large_;
  double fill_seconds_ = 0, idle_ = 0;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::set_log_level(tandem::LogLevel::warning);
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 5);
  return tandem::bench::run("serve_mix", [&] { tandem::Bench(options).run(); });
}
