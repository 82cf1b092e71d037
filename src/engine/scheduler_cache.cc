// Kept states along the way, pages for the next rows, and giving a stream back when there are none (spec/runtime.md
// b.3.6, b.4, b.5).
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/scheduler.h"

namespace tandem::engine {

void Scheduler::find_next_keep(Stream& stream) {
  const Job& job = *stream.job;
  stream.next_keep = next_keep_point(
      options_.keep, {.length = stream.fill_end, .fork = stream.fork, .positions = job.request.keep_positions},
      stream.length);
}

// States that the last step reached are copied before this one moves on. A stream that has ended is kept at its end
// (the stop token was never run, so the next turn finds the state) and leaves its slot.
void Scheduler::keep_due_states() {
  for (Stream& stream : streams_) {
    if (stream.phase == Stream::Phase::ended) {
      if (stream.length > stream.kept) keep(stream, false);
      release(stream);
    } else if (stream.is_running() && stream.next_keep.length != 0 && stream.length == stream.next_keep.length) {
      keep(stream, stream.next_keep.fork || stream.length == stream.job->request.shared_prefix);
      find_next_keep(stream);
    }
  }
}

void Scheduler::keep(Stream& stream, bool fork) {
  const auto ids = std::span<const int32_t>(stream.job->ids).first(static_cast<size_t>(stream.length));
  const cache::Kept kept = book_.index().keep(ids, stream.job->request.cache_salt, stream.page_table, fork);
  stream.kept = stream.length;
  if (kept.record < 0) return;  // every record is in use: nothing is lost but the reuse
  book_.pin_for_step(kept.record);
  admission_waits_ = false;
  if (kept.is_new) step_.keeps.push_back({.slot = stream.slot, .record = kept.record, .length = stream.length});
}

void Scheduler::release(Stream& stream) {
  book_.release(stream.page_table);
  stream.job.reset();
  change_phase(stream, Stream::Phase::free);
  admission_waits_ = false;
}

// In the order of admission, so that what is left goes to those who come first.
void Scheduler::grow_decoding_streams() {
  by_age_.clear();
  for (Stream& stream : streams_) {
    if (stream.is_running()) by_age_.push_back(&stream);
  }
  std::sort(by_age_.begin(), by_age_.end(),
            [](const Stream* a, const Stream* b) { return goes_before(*a->job, *b->job); });
  for (Stream* stream : by_age_) {
    if (stream->phase != Stream::Phase::decoding) continue;
    const int64_t entries = book_.entries_of(stream->length + 1);
    stream->waits = false;
    while (!stream->waits && std::ssize(stream->page_table) < entries) {
      const int32_t page = book_.take(std::ssize(stream->page_table));
      if (page == 0)
        stream->waits = true;
      else
        stream->page_table.push_back(page);
    }
  }
}

void Scheduler::give_back_youngest() {
  Stream& stream = *by_age_.back();
  by_age_.pop_back();
  return_to_queue(stream);
}

// It later runs its own tokens as its prompt: the rows have the same bits, so it goes on where it was.
void Scheduler::return_to_queue(Stream& stream) {
  log(LogLevel::info, "request {}: given back at {} tokens, {} of them sent", stream.job->request.id, stream.length,
      stream.job->emitted);
  ++counts_.preemptions;
  ++waiting_;
  const uint64_t number = stream.job->number;
  const auto place =
      std::find_if(queue_.begin(), queue_.end(), [number](const auto& job) { return job->number > number; });
  queue_.insert(place, std::move(stream.job));
  release(stream);
}

}  // namespace tandem::engine
