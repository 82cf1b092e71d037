// Grammars by their source: prepared once on threads of their own, with a time limit, and kept while they are used.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace tandem::grammar {

struct CompilerOptions {
  std::chrono::milliseconds deadline{10'000};   // processor time of one grammar's thread (spec/frontend.md E.2)
  std::chrono::milliseconds most_wait{30'000};  // for a thread and its work, by the clock
  size_t cache_bytes = size_t{256} << 20;       // of kept grammars; the least recently used leave first
  int threads = 2;
  size_t most_waiting = 64;  // grammars that wait for a thread
};

class Compiler {
 public:
  explicit Compiler(std::shared_ptr<const Vocabulary> vocabulary, const CompilerOptions& options = {});
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  // Waits for the grammar. Throws Error(usage) for a source that is wrong or whose thread has worked on it for longer
  // than the deadline (it goes on, and a later request finds the grammar), however busy the machine is; Error(resource)
  // when too many wait or it is not there at `until`, by default most_wait from now: then nothing is wrong with it.
  // Thread-safe.
  using TimePoint = std::chrono::steady_clock::time_point;
  std::shared_ptr<const Compiled> compile(const Source& source) const { return compile(source, wait_until()); }
  std::shared_ptr<const Compiled> compile(const Source& source, TimePoint until) const;
  // The same end for all grammars of one request.
  TimePoint wait_until() const;
  // Begins with a grammar that compile() will soon be asked for, if there is room. Thread-safe.
  void prepare(const Source& source) const;
  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }

  struct Counts {
    int64_t compiled = 0, reused = 0, kept = 0;
    size_t kept_bytes = 0;
  };
  Counts counts() const;

 private:
  struct State;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::grammar
