// Test doubles for the dialects: an engine that says what the test tells it to, an executor that the test steps, and a
// responder that records. Included by tests only.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/endpoint.h"
#include "api/served_model.h"
#include "base/error.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::api {

class FakeEngine : public engine::Engine {
 public:
  struct Submitted {
    engine::Request request;
    Sink sink;
    bool cancelled = false;
    bool is_finished = false;  // by its own rule
  };

  uint64_t submit(engine::Request request, Sink sink) override {
    const std::lock_guard lock(mutex_);
    if (refuse) throw Error(ErrorCode::resource, "engine", "broken");
    if (request.drafter.value_or(draft::Choice::none) != draft::Choice::none)
      throw Error(ErrorCode::usage, "drafter", std::string(draft::name_of(*request.drafter)), "none");
    if (static_cast<int64_t>(submitted_.size()) >= places) throw engine::QueueFull(places);
    submitted_.push_back({std::move(request), std::move(sink)});
    return submitted_.size();
  }
  void cancel(uint64_t number) override {
    const std::lock_guard lock(mutex_);
    submitted_.at(number - 1).cancelled = true;
  }
  engine::Status status() const override {
    const std::lock_guard lock(mutex_);
    return state;
  }

  size_t count() const {
    const std::lock_guard lock(mutex_);
    return submitted_.size();
  }
  engine::Request request(size_t i = 0) const {
    const std::lock_guard lock(mutex_);
    return submitted_.at(i).request;
  }
  bool cancelled(size_t i = 0) const {
    const std::lock_guard lock(mutex_);
    return submitted_.at(i).cancelled;
  }

  void admit(size_t i = 0, int64_t cached_tokens = 0, engine::PrefixMiss miss = engine::PrefixMiss::new_prefix) {
    engine::Event admitted = event(engine::Event::Kind::admitted);
    admitted.cached_tokens = cached_tokens;
    admitted.miss = miss;
    send(i, admitted);
  }
  void prompt_token(int32_t id, const engine::TokenLogprobs& logprobs, size_t i = 0) {
    engine::Event event = FakeEngine::event(engine::Event::Kind::prompt_token);
    event.token = id;
    event.logprobs = &logprobs;
    send(i, event);
  }
  // Ends the request when its rule says so, unless keeps_going.
  void token(int32_t id, size_t i = 0, const engine::TokenLogprobs* logprobs = nullptr) {
    const auto ends_after = request(i).ends_after;
    const bool ends = !keeps_going && ends_after && ends_after(id);
    engine::Event token = event(engine::Event::Kind::token);
    token.token = id;
    token.logprobs = logprobs;
    send(i, token);
    if (!ends) return;
    finish(engine::FinishReason::stop, -1, {}, i);
    const std::lock_guard lock(mutex_);
    submitted_.at(i).is_finished = true;
  }
  void tokens(const std::vector<int32_t>& ids, size_t i = 0) {
    for (const int32_t id : ids) token(id, i);
  }
  void finish(engine::FinishReason reason, int32_t stop_token = -1, const std::string& error = {}, size_t i = 0) {
    engine::Event finished = event(engine::Event::Kind::finished);
    finished.reason = reason;
    finished.stop_token = stop_token;
    finished.error = error;
    finished.drafts = drafts;
    send(i, finished);
  }

  engine::Status state;       // set before use by other threads
  engine::DraftStats drafts;  // of every reply
  bool refuse = false;
  bool keeps_going = false;    // whatever a request's ends_after says
  int64_t places = 1'000'000;  // requests that are taken, all in all

 private:
  static engine::Event event(engine::Event::Kind kind) {
    engine::Event event;
    event.kind = kind;
    return event;
  }
  void send(size_t i, const engine::Event& event) {
    Sink sink;
    {
      const std::lock_guard lock(mutex_);
      if (submitted_.at(i).is_finished) return;
      sink = submitted_.at(i).sink;
    }
    sink(event);
  }

  mutable std::mutex mutex_;
  std::deque<Submitted> submitted_;
};

// Runs tasks when the test says so, in the order in which they came.
class ManualExecutor : public Executor {
 public:
  void io(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  void work(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  void run() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

class RecordingResponder : public Responder {
 public:
  void reply(Reply reply) override { replies.push_back(std::move(reply)); }
  void open_stream() override { opened = true; }
  void send_event(std::string_view data) override { send_named_event({}, data); }
  void send_named_event(std::string_view name, std::string_view data) override {
    names.emplace_back(name);
    events.emplace_back(data);
  }
  void close_stream() override { closed = true; }
  bool congested() const override { return is_congested; }
  void on_drained(std::function<void()> callback) override { drained_ = std::move(callback); }
  bool gone() const override { return is_gone; }
  void on_gone(std::function<void()> callback) override { gone_ = std::move(callback); }

  void drain() {
    is_congested = false;
    if (auto callback = std::exchange(drained_, nullptr)) callback();
  }
  void leave() {
    is_gone = true;
    if (auto callback = std::exchange(gone_, nullptr)) callback();
  }

  std::vector<Reply> replies;
  std::vector<std::string> events, names;
  bool opened = false, closed = false, is_congested = false, is_gone = false;

 private:
  std::function<void()> drained_, gone_;
};

// The bundled model's tokenizer over a fake engine.
struct FakeModel {
  explicit FakeModel(const std::string& folder) : tokenizer(text::Tokenizer::load(folder)) {
    engine.state.ready = true;
    served.names = {"nano"};
    served.engine = &engine;
    served.tokenizer = &tokenizer;
    served.defaults.top_p = 0.95;
    served.defaults.eos_token_ids = {id("<|endoftext|>"), id("<|user|>"), id("<|observation|>")};
    served.vocab_size = 2048;
    served.max_model_len = 1000;
    if (!grammar::is_available()) return;
    grammars = std::make_unique<grammar::Compiler>(std::make_shared<const grammar::Vocabulary>(tokenizer, 2048));
    served.grammars = grammars.get();
  }
  int32_t id(const char* marker) const { return *tokenizer.added_token(marker); }
  std::vector<int32_t> ids(const std::string& text) const {
    return tokenizer.encode(text, text::AddedTokens::recognise);
  }

  text::Tokenizer tokenizer;
  std::unique_ptr<grammar::Compiler> grammars;
  FakeEngine engine;
  ServedModel served;
};

}  // namespace tandem::api
