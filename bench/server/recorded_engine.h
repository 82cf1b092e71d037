// An engine without a model: says the same tokens again and again at a given pace, in steps like the real one.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace tandem::bench {

using Clock = std::chrono::steady_clock;

// Steps begin at multiples of `step` after the epoch of the clock, which all processes of a machine share; each gives
// every stream its next token. A request of one token is answered at once.
class RecordedEngine : public engine::Engine {
 public:
  RecordedEngine(std::vector<int32_t> tokens, std::chrono::microseconds step)
      : tokens_(std::move(tokens)), step_(step), thread_([this] { run(); }) {}
  ~RecordedEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  uint64_t submit(engine::Request request, Sink sink) override {
    const std::lock_guard lock(mutex_);
    streams_.emplace(++last_, Stream{std::move(request), std::move(sink)});
    changed_.notify_all();
    return last_;
  }
  void cancel(uint64_t number) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = streams_.find(number); found != streams_.end()) found->second.cancelled = true;
  }
  engine::Status status() const override {
    engine::Status status;
    status.ready = true;
    return status;
  }

 private:
  struct Stream {
    engine::Request request;
    Sink sink;
    int64_t said = 0;
    bool cancelled = false;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const bool any_long = std::any_of(streams_.begin(), streams_.end(),
                                        [](const auto& entry) { return entry.second.request.max_tokens > 1; });
      if (any_long) {
        const auto since = Clock::now().time_since_epoch();
        const Clock::time_point next{(since / step_ + 1) * step_};
        lock.unlock();
        std::this_thread::sleep_until(next);
        lock.lock();
      } else {
        changed_.wait(lock, [this] { return stopping_ || !streams_.empty(); });
      }
      for (auto it = streams_.begin(); it != streams_.end();) it = say(it->second) ? std::next(it) : streams_.erase(it);
    }
  }

  // False at the end of the reply.
  bool say(Stream& stream) {
    engine::Event event;
    if (stream.said == 0) {
      event.kind = engine::Event::Kind::admitted;
      stream.sink(event);
    }
    event = {};
    if (!stream.cancelled) {
      event.begins_step = true;
      event.token = tokens_[static_cast<size_t>(stream.said++) % tokens_.size()];
      stream.sink(event);
      if (stream.said < stream.request.max_tokens) return true;
    }
    event = {};
    event.kind = engine::Event::Kind::finished;
    event.reason = stream.cancelled ? engine::FinishReason::cancelled : engine::FinishReason::length;
    stream.sink(event);
    return false;
  }

  const std::vector<int32_t> tokens_;
  const std::chrono::microseconds step_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Stream> streams_;
  uint64_t last_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tandem::bench
