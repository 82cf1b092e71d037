// The engine that runs one stream at a time: one thread, one queue, first come first served.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/step_runner.h"
#include "forward/step.h"

namespace tandem::engine {

struct SerialEngineOptions {
  int32_t vocab_size = 0;              // rows of the embedding and of the head
  int32_t sampled_tokens = 0;          // ids from here on have no text and are never sampled (the tokenizer's size)
  int64_t max_model_len = 0;           // tokens of prompt and reply together
  int32_t max_num_batched_tokens = 0;  // rows of one prefill chunk
};

class SerialEngine : public Engine {
 public:
  // `runner` must outlive the engine; it is called on the engine's thread only.
  SerialEngine(StepRunner& runner, const SerialEngineOptions& options);
  // Every request that has not ended gets `finished` with reason cancelled.
  ~SerialEngine() override;

  uint64_t submit(Request request, Sink sink) override;
  void cancel(uint64_t number) override;
  Status status() const override;

 private:
  using Clock = std::chrono::steady_clock;

  // A request from submit() to `finished`. The engine's thread owns everything but `cancelled`.
  struct Job {
    uint64_t number = 0;
    Request request;
    Sink sink;
    std::atomic<bool> cancelled{false};
    Clock::time_point submitted, admitted, first_token;
    int64_t position = 0;  // rows run: the position of the next row
    int64_t emitted = 0;   // tokens sampled
    int32_t pending = -1;  // sampled last, run in the next step (spec/speculation.md 3.1)
  };
  // What one step brought.
  struct Result {
    bool sampled = false;  // false: a prefill chunk that was not the last
    int32_t token = -1;
  };

  void loop();
  // Ends cancelled requests, admits the next one and builds step_. Waits while there is nothing to do; false: stop.
  bool schedule();
  Result run_step();
  void deliver(const Result& result);

  void check(const Request& request) const;
  bool wait_for_work();
  std::vector<std::shared_ptr<Job>> take_cancelled();
  void admit_next();
  void build_step();
  void send(Job& job, const Event& event);
  void finish(const std::shared_ptr<Job>& job, FinishReason reason, int32_t stop_token = -1,
              const std::string& error = {});
  void finish_running(FinishReason reason, int32_t stop_token = -1);
  void finish_all(FinishReason reason, const std::string& error);
  void break_down(const std::string& reason);

  StepRunner& runner_;
  const SerialEngineOptions options_;
  Sampler sampler_;
  forward::Step step_;  // engine thread only, as is running_
  std::shared_ptr<Job> running_;

  mutable std::mutex mutex_;  // guards everything below; never held while a sink or the model runs
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::unordered_map<uint64_t, std::shared_ptr<Job>> jobs_;  // every request that has not ended
  uint64_t next_number_ = 1;
  bool cancel_requested_ = false;  // some job has been cancelled since the engine last looked
  bool is_running_ = false;
  bool stopping_ = false;
  std::string broken_;  // why; empty: not broken
  int64_t steps_ = 0;
  Clock::time_point last_step_;

  std::thread thread_;  // last: starts when all else is ready
};

}  // namespace tandem::engine
