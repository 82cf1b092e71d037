// The queue of grammars and the cache of finished ones.
#include "grammar/compiler.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
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

using std::chrono::nanoseconds;

// Processor time of a thread that exists.
nanoseconds processor_time(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

struct Entry {
  Source source;
  bool has_begun = false, is_done = false;
  clockid_t clock{};     // of the thread that works on it, once it has begun
  nanoseconds before{};  // what the clock showed then
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
  std::condition_variable has_work, has_changed;  // changed: an entry has begun or is done
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
    clockid_t clock{};
    pthread_getcpuclockid(pthread_self(), &clock);
    std::unique_lock lock(mutex);
    while (true) {
      has_work.wait(lock, [this] { return stops || !queue.empty(); });
      if (stops) return;
      const std::shared_ptr<Entry> entry = queue.front();
      queue.pop_front();
      entry->clock = clock;
      entry->before = processor_time(clock);
      entry->has_begun = true;
      has_changed.notify_all();
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
      has_changed.notify_all();
    }
  }

  // The entry of a grammar that is not kept; null: the queue is longer than `most`.
  std::shared_ptr<Entry> entry_of(const Source& source, const std::string& key, size_t most) {
    if (const auto found = running.find(key); found != running.end()) return found->second;
    if (queue.size() >= most) return nullptr;
    auto entry = std::make_shared<Entry>();
    entry->source = source;
    running.emplace(key, entry);
    queue.push_back(entry);
    has_work.notify_one();
    return entry;
  }

  // A thread's processor time cannot run ahead of the clock, so what is left of the first says when to look again.
  void wait_for(const Entry& entry, TimePoint end, std::unique_lock<std::mutex>& lock) {
    while (!entry.is_done) {
      auto next = end;
      if (entry.has_begun) {
        const nanoseconds left = options.deadline - (processor_time(entry.clock) - entry.before);
        if (left <= nanoseconds(0)) {
          throw Error(ErrorCode::usage, "grammar",
                      fmt::format("a grammar that takes longer than {} ms to compile", options.deadline.count()),
                      "a simpler one");
        }
        next = std::min(end, std::chrono::steady_clock::now() + left);
      }
      has_changed.wait_until(lock, next);
      if (entry.is_done || std::chrono::steady_clock::now() < end) continue;
      throw Error(ErrorCode::resource, "grammar",
                  fmt::format("{} after {} ms", entry.has_begun ? "not compiled" : "waiting to be compiled",
                              options.most_wait.count()),
                  "a request that comes later");
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

Compiler::TimePoint Compiler::wait_until() const {
  return std::chrono::steady_clock::now() + state_->options.most_wait;
}

std::shared_ptr<const Compiled> Compiler::compile(const Source& source, TimePoint until) const {
  State& state = *state_;
  const std::string key = key_of(source);
  std::unique_lock lock(state.mutex);
  if (auto found = state.find(key)) return found;
  const std::shared_ptr<Entry> entry = state.entry_of(source, key, state.options.most_waiting);
  if (!entry) {
    throw Error(ErrorCode::resource, "grammar", fmt::format("{} grammars waiting to be compiled", state.queue.size()),
                "a request that comes later");
  }
  state.wait_for(*entry, until, lock);
  if (entry->error) std::rethrow_exception(entry->error);
  return entry->compiled;
}

void Compiler::prepare(const Source& source) const {
  State& state = *state_;
  const std::string key = key_of(source);
  const std::lock_guard lock(state.mutex);
  // Half of the queue is left to others.
  if (!state.by_key.contains(key)) (void)state.entry_of(source, key, state.options.most_waiting / 2);
}

Compiler::Counts Compiler::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace tandem::grammar
