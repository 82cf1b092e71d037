// The queue of grammars and the cache of finished ones.
#include "grammar/compiler.h"

#include <fmt/core.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tandem::grammar {

namespace {

struct Entry {
  Source source;
  bool is_done = false;
  std::shared_ptr<const Compiled> compiled;
  std::exception_ptr error;
};

// The whole source, so that no two grammars share a key.
std::string key_of(const Source& source) {
  return fmt::format("{}:{}", static_cast<int>(source.language), source.text);
}

}  // namespace

struct Compiler::State {
  State(const Vocabulary& vocabulary_, const CompilerOptions& options_) : vocabulary(vocabulary_), options(options_) {}

  const Vocabulary& vocabulary;
  const CompilerOptions options;

  std::mutex mutex;
  std::condition_variable has_work, is_done;
  bool stops = false;
  std::deque<std::shared_ptr<Entry>> queue;
  std::unordered_map<std::string, std::shared_ptr<Entry>> running;  // queued or being compiled
  using Kept = std::pair<std::string, std::shared_ptr<const Compiled>>;
  std::list<Kept> kept;  // most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_key;
  Counts counts;
  std::vector<std::thread> threads;

  void work() {
    std::unique_ptr<Translator> translator;  // made by its first grammar: the vocabulary has to be sorted
    std::unique_lock lock(mutex);
    while (true) {
      has_work.wait(lock, [this] { return stops || !queue.empty(); });
      if (stops) return;
      const std::shared_ptr<Entry> entry = queue.front();
      queue.pop_front();
      lock.unlock();
      std::shared_ptr<const Compiled> compiled;
      std::exception_ptr error;
      try {
        if (!translator) translator = std::make_unique<Translator>(vocabulary);
        compiled = translator->compile(entry->source);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      entry->compiled = compiled;
      entry->error = error;
      entry->is_done = true;
      std::string key = key_of(entry->source);
      running.erase(key);
      if (compiled) keep(std::move(key), compiled);
      is_done.notify_all();
    }
  }

  void keep(std::string key, const std::shared_ptr<const Compiled>& compiled) {
    ++counts.compiled;
    counts.kept_bytes += compiled->bytes() + key.size();
    kept.emplace_front(std::move(key), compiled);
    by_key[kept.front().first] = kept.begin();
    while (counts.kept_bytes > options.cache_bytes && kept.size() > 1) {
      counts.kept_bytes -= kept.back().second->bytes() + kept.back().first.size();
      by_key.erase(kept.back().first);
      kept.pop_back();
    }
    counts.kept = std::ssize(kept);
  }

  std::shared_ptr<const Compiled> find(const std::string& key) {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return nullptr;
    kept.splice(kept.begin(), kept, found->second);
    ++counts.reused;
    return found->second->second;
  }
};

Compiler::Compiler(std::shared_ptr<const Vocabulary> vocabulary, const CompilerOptions& options)
    : vocabulary_(std::move(vocabulary)), state_(std::make_unique<State>(*vocabulary_, options)) {
  for (int i = 0; i < options.threads; ++i) state_->threads.emplace_back([state = state_.get()] { state->work(); });
}

Compiler::~Compiler() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stops = true;
  }
  state_->has_work.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

std::shared_ptr<const Compiled> Compiler::compile(const Source& source) const {
  State& state = *state_;
  const std::string key = key_of(source);
  std::unique_lock lock(state.mutex);
  if (auto found = state.find(key)) return found;
  auto& entry = state.running[key];
  if (!entry) {
    if (state.queue.size() >= state.options.most_waiting) {
      state.running.erase(key);
      throw Error(ErrorCode::resource, "grammar", fmt::format("{} grammars waiting to be compiled", state.queue.size()),
                  "a request that comes later");
    }
    entry = std::make_shared<Entry>();
    entry->source = source;
    state.queue.push_back(entry);
    state.has_work.notify_one();
  }
  const std::shared_ptr<Entry> mine = entry;
  if (!state.is_done.wait_for(lock, state.options.deadline, [&] { return mine->is_done; })) {
    throw Error(ErrorCode::usage, "grammar",
                fmt::format("a grammar that takes longer than {} ms to compile", state.options.deadline.count()),
                "a simpler one");
  }
  if (mine->error) std::rethrow_exception(mine->error);
  return mine->compiled;
}

Compiler::Counts Compiler::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace tandem::grammar
