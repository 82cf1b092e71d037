// Requests and receivers for the engine's tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "engine/fake_model.h"
#include "engine/scheduler_options.h"

namespace tandem::engine {

// The events of one request, to be awaited.
class Collector {
 public:
  Engine::Sink sink() {
    return [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      if (finished_) late_ = true;
      events_.push_back(event);
      finished_ = finished_ || event.kind == Event::Kind::finished;
      changed_.notify_all();
    };
  }
  // Waits for `finished` and returns it.
  Event wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [this] { return finished_; }))
      throw std::runtime_error("the request did not end within a minute");
    return events_.back();
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_locked().size() >= count; });
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_locked();
  }
  std::vector<Event> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  bool finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  bool late() const { return late_; }  // something came after `finished`

 private:
  std::vector<int32_t> tokens_locked() const {
    std::vector<int32_t> tokens;
    for (const Event& e : events_)
      if (e.kind == Event::Kind::token) tokens.push_back(e.token);
    return tokens;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  bool finished_ = false, late_ = false;
};

inline std::vector<int32_t> expected_reply(std::vector<int32_t> history, size_t count) {
  std::vector<int32_t> reply;
  while (reply.size() < count) {
    reply.push_back(FakeModel::next(history));
    history.push_back(reply.back());
  }
  return reply;
}

inline Request greedy(std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int32_t> stops = {}) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  request.stop_token_ids = std::move(stops);
  return request;
}

inline std::vector<int32_t> some_prompt(int length, int first = 3) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((i * 7 + first) % FakeModel::vocabulary);
  return prompt;
}

// The model and the options that fit together.
inline SchedulerOptions options_for(const FakeModelOptions& model, int32_t chunk = 8, int64_t max_model_len = 1000) {
  SchedulerOptions options;
  options.vocab_size = options.sampled_tokens = FakeModel::vocabulary;
  options.max_model_len = max_model_len;
  options.capacity.slots = model.slots;
  options.capacity.pages = model.pages;
  options.capacity.page_rows = model.page_rows;
  options.capacity.kept_states = model.records;
  options.capacity.max_rows = chunk;
  options.page_groups = model.groups;
  return options;
}

}  // namespace tandem::engine
