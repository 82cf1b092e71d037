// A queue between the engine's thread and the waiting one, so that hooks may be as slow as they like.
#include "engine/run_request.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace tandem::engine {
namespace {

struct EventQueue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;

  void push(const Event& event) {
    {
      const std::lock_guard lock(mutex);
      events.push_back(event);
    }
    changed.notify_one();
  }
  // False when nothing came within the time.
  bool pop(Event& event) {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, std::chrono::milliseconds(50), [this] { return !events.empty(); })) return false;
    event = std::move(events.front());
    events.pop_front();
    return true;
  }
};

Reply follow(EventQueue& queue, Engine& engine, uint64_t number, const RunHooks& hooks) {
  Reply reply;
  while (true) {
    if (hooks.is_cancelled && hooks.is_cancelled()) engine.cancel(number);
    Event event;
    if (!queue.pop(event)) continue;
    if (event.kind == Event::Kind::token) {
      reply.ids.push_back(event.token);
      if (hooks.on_token && !hooks.on_token(event.token)) {
        engine.cancel(number);
        reply.reason = FinishReason::cancelled;
        reply.timings = event.timings;
        break;
      }
    } else if (event.kind == Event::Kind::finished) {
      if (event.reason == FinishReason::error) throw Error(ErrorCode::internal, "engine", event.error);
      reply.reason = event.reason;
      reply.stop_token = event.stop_token;
      reply.timings = event.timings;
      reply.drafts = event.drafts;
      return reply;
    }
  }
  // Cancelled by on_token: tokens that were already on their way are dropped.
  for (Event event; event.kind != Event::Kind::finished;)
    if (queue.pop(event)) reply.timings = event.timings, reply.drafts = event.drafts;
  return reply;
}

}  // namespace

Reply run_request(Engine& engine, Request request, const RunHooks& hooks) {
  // The sink may outlive this call when a hook throws.
  const auto queue = std::make_shared<EventQueue>();
  const uint64_t number = engine.submit(std::move(request), [queue](const Event& event) { queue->push(event); });
  try {
    return follow(*queue, engine, number, hooks);
  } catch (...) {
    engine.cancel(number);
    throw;
  }
}

}  // namespace tandem::engine
