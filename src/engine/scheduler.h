// Which rows run next: admission, growth, prompts in slices, rounds, delivery (spec/runtime.md c). Single-threaded and
// without a clock of its own, so that a simulation drives it as the engine's thread does:
//
//   schedule(now) -> run the step -> complete(logits, now) -> schedule(now) …
//
// A stream's rows in a step are its pending token and, behind it, drafts (spec/speculation.md 3). Commit is "set
// length": the rows whose tokens turned out right stay, and the next step runs over the others. Every row has one
// arithmetic (design.md 1), so no decision made here changes a token.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "draft/drafter.h"
#include "draft/policy.h"
#include "engine/engine.h"
#include "engine/logit_shaper.h"
#include "engine/page_book.h"
#include "engine/prefill_pacer.h"
#include "engine/row_results.h"
#include "engine/sampler.h"
#include "engine/scheduler_options.h"
#include "engine/snapshot.h"
#include "engine/stream.h"
#include "forward/step.h"

namespace tandem::engine {

class Scheduler {
 public:
  // Everything that a round needs is allocated here. `drafter`: null, or what makes drafts; it must outlive the
  // scheduler and is called from complete() and schedule(). Throws Error(usage) naming a setting out of its range.
  explicit Scheduler(const SchedulerOptions& options, draft::Drafter* drafter = nullptr);

  // A request as a job: checked, stop ids sorted, max_tokens cut to the room left. Throws Error(usage) naming the field
  // of a request that can never run. Reads the options only: any thread may call it.
  std::unique_ptr<Job> make_job(Request request, Engine::Sink sink, Time now) const;
  // Requests that have not ended are at most slots + max_waiting. Throws QueueFull beyond. Any thread.
  void check_queue(int64_t not_ended) const;

  // Puts a job at the queue's end. Its number must be larger than those before.
  void enqueue(std::unique_ptr<Job> job);
  // The three above for one thread; returns the number.
  uint64_t submit(Request request, Engine::Sink sink, Time now);
  // Ends the request with `cancelled`, queued or running, before the next step. Unknown numbers are ignored.
  void cancel(uint64_t number, Time now);

  // The next step; null: nothing to do until a request comes. Must be followed by complete() or fail().
  const forward::Step* schedule(Time now);
  // The step was run: `logits` is [logit_rows + head_slots − samples, vocab_size], `sampled` [samples]. Tokens are
  // delivered; then the drafter is told, which may run the model.
  void complete(std::span<const float> logits, std::span<const ops::Sampled> sampled, Time now);
  void complete(std::span<const float> logits, Time now) { complete(logits, {}, now); }
  // Ends every request: with `error` after a failed step (nothing may be scheduled afterwards), with `cancelled` at a
  // stop.
  void end_all(FinishReason reason, const std::string& error, Time now);

  // Requests in slots and in the queue. They are counted before a sink hears of a change. Any thread.
  int64_t running() const { return running_; }
  int64_t waiting() const { return waiting_; }
  // All but ready, broken, reason and seconds_since_last_step.
  Status status() const;
  void describe(Snapshot& snapshot, Time now) const;  // keeps the snapshot's memory
  // Throws Error(internal) unless pages, kept states and streams agree. For tests.
  void check() const;

 private:
  // scheduler.cc: the life of requests
  void send(Job& job, const Event& event);
  void finish(Job& job, FinishReason reason, Time now, int32_t stop_token = -1, const std::string& error = {});
  void finish(Stream& stream, FinishReason reason, Time now, int32_t stop_token = -1, const std::string& error = {});
  void end_overdue(Time now);
  void end_lost_receivers(Time now);
  void change_phase(Stream& stream, Stream::Phase phase);

  // scheduler_admission.cc
  void admit(Time now);
  bool admit_next(Time now);
  size_t next_in_queue() const;
  bool yield_place();
  void count_passes(uint64_t number);
  void return_to_queue(Stream& stream);
  struct Admission {
    cache::Match match;
    PrefixMiss miss = PrefixMiss::none;
  };
  Admission look_up(const Job& job, int64_t limit) const;
  bool has_room_for(const Job& job, const cache::Match& match);
  void start_stream(Stream& stream, std::unique_ptr<Job> job, const Admission& admission, Time now);
  int64_t shared_pages(int64_t length) const;
  void resume(Stream& stream, const cache::Match& match);
  Stream* free_stream();

  // scheduler_cache.cc: kept states, growth, giving back
  void keep_due_states();
  void keep(Stream& stream, bool fork);
  void release(Stream& stream);
  void grow_decoding_streams();
  void give_back_youngest();
  void find_next_keep(Stream& stream);

  // scheduler_step.cc
  void unpin();
  bool build_rows(Time now);
  void add_segment(Stream& stream, int64_t rows, int32_t drafts);
  int64_t context_from(const Stream& stream, int64_t rows) const;
  void add_decode_rows();
  void choose_depths();
  int32_t usable_drafts(const Stream& stream) const;
  void add_prompt_rows(Time now);
  void add_head_slots();

  // scheduler_delivery.cc
  void score(Stream& stream, std::span<const float> logits);
  void verify(Stream& stream, RowResults rows, Time now);
  std::optional<RatioChoice> choose(Stream& stream, const RowResults::Row& row, int32_t draft, Time now);
  AllowedTokens allowed_at(const Job& job, int64_t position) const;
  void deliver(Stream& stream, int32_t token, std::span<const float> logits, bool begins_step, Time now);

  // scheduler_samples.cc: the last logit row or head slot of a step gets a sample; false: its logits are needed
  bool add_sample(const Job& job, int64_t position, forward::Step& step) const;
  bool add_text_sample(const Job& job, int64_t position, std::span<const int32_t> drafts, bool verifies);
  bool finish_sample(const Job& job, int64_t position, int32_t first, forward::Step& step) const;
  std::optional<int32_t> token_of(const ops::Sampled& sampled, const Job& job, bool is_masked) const;

  // scheduler_drafts.cc
  class Picker;
  draft::Choice choice_of(const Job& job) const;
  int32_t room_for_drafts(Stream& stream);
  draft::StreamView view_of(Stream& stream, bool ran);
  void propose();
  void check_proposal(Stream& stream);

  const SchedulerOptions options_;
  const int64_t max_stream_rows_;  // rows that one stream can have alone
  PageBook book_;
  Sampler sampler_;
  LogitShaper shaper_;
  draft::Drafter* const drafter_;
  PrefillPacer pacer_;

  std::deque<std::unique_ptr<Job>> queue_;  // in the order of their numbers
  std::vector<Stream> streams_;             // one for each slot
  std::vector<Stream*> by_age_;  // running ones, those first that keep their place longest; scratch of one schedule()
  uint64_t next_number_ = 1;
  Time next_deadline_ = never;
  bool admission_waits_ = false;  // the queue's head found no room, and nothing has changed since
  bool receiver_failed_ = false;

  // The step that runs.
  forward::Step step_;
  struct Wanted {
    Stream* stream;
    int64_t scored;  // rows of the prompt, from job->scored on, whose log-probabilities are wanted
    bool samples;    // behind them: 1 + tried rows that choose tokens
  };
  std::vector<Wanted> wanted_;  // of the logits' rows, in their order
  struct Running {
    Stream* stream;
    int64_t rows;  // the certain ones
  };
  std::vector<Running> ran_;
  std::vector<Fill> fills_;
  std::vector<Stream*> filling_;  // of fills_
  PageBook::Need need_;
  PrefillPacer::Measured measured_;

  // Scratch of drafting.
  std::vector<draft::StreamView> views_;
  std::vector<draft::Wish> wishes_;
  std::vector<Stream*> wishing_;
  std::vector<int32_t> takes_;
  TokenLogprobs logprobs_;

  std::atomic<int64_t> running_{0}, waiting_{0};
  Status counts_;  // counters since the start
};

}  // namespace tandem::engine
