// One chat reply in flight: engine events in, stream chunks or one JSON body out. Everything but the engine's sink runs
// on the io thread, so nothing here is locked.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "api/chat_reply.h"
#include "api/endpoint.h"
#include "api/errors.h"
#include "api/reply_text.h"
#include "api/served_model.h"

namespace tandem::api {

class ChatSession : public std::enable_shared_from_this<ChatSession> {
 public:
  using Clock = std::chrono::steady_clock;

  // `model` and `executor` must outlive the session and every call of the engine's sink. `arrived`: when the request
  // had been read. `on_end` is called once, when the reply is complete, failed or its client has gone.
  ChatSession(const ServedModel& model, Executor& executor, PreparedChat prepared, std::shared_ptr<Responder> responder,
              Clock::time_point arrived, std::string request_id, std::function<void()> on_end);

  // Submits to the engine and opens the stream if one was asked for. Throws what submit throws; then nothing was sent.
  void start();
  // Ends the reply with an error: a stream error event, or an error reply.
  void abort(const ApiError& error);

 private:
  struct TimedToken {
    int32_t id;  // -1: a stop token that is not shown
    Clock::time_point time;
  };

  void on_event(const engine::Event& event, Clock::time_point time);
  void on_finished(const engine::Event& event, Clock::time_point time);
  void pump();
  void complete();
  void end(std::string_view outcome);
  void send_pieces();
  void count_token(Clock::time_point time);
  ChunkUsage chunk_usage();
  Usage usage() const;
  Metrics metrics() const;
  bool ends_by_own_stop_id(int32_t id) const;

  const ServedModel& model_;
  Executor& executor_;
  std::shared_ptr<Responder> responder_;
  std::function<void()> on_end_;
  ChatRequest request_;
  engine::Request engine_request_;  // moved to the engine by start()
  std::string request_id_;
  ReplyHead head_;
  ReplyText text_;
  uint64_t seed_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;  // taken from pending_, the stop token included

  uint64_t number_ = 0;                   // of the engine's request
  std::deque<TimedToken> pending_;        // sampled, not yet turned into text
  std::vector<chat::ReplyPiece> pieces_;  // text not yet sent; a non-streaming reply collects all of it here
  std::optional<engine::Event> finished_;
  Ending ending_;
  Usage running_usage_;  // what chunk_usage() points to
  bool done_ = false;

  Clock::time_point arrived_, submitted_;
  std::optional<Clock::time_point> admitted_, first_token_, last_token_;
};

}  // namespace tandem::api
