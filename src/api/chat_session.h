// One reply in flight, in any dialect: engine events in, stream events or one JSON body out. Everything but the
// engine's sink runs on the io thread, so nothing here is locked.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_prompt.h"
#include "api/chat_reply.h"
#include "api/endpoint.h"
#include "api/errors.h"
#include "api/reply_dialect.h"
#include "api/reply_text.h"
#include "api/request_trace.h"
#include "api/served_model.h"

namespace tandem::api {

class ChatSession : public std::enable_shared_from_this<ChatSession> {
 public:
  using Clock = RequestTrace::Clock;

  // `model` and `executor` must outlive the session and every call of the engine's sink. `on_end` is called once, when
  // the reply is complete, failed or its client has gone.
  ChatSession(const ServedModel& model, Executor& executor, PreparedChat prepared, std::shared_ptr<Responder> responder,
              RequestTrace trace, std::function<void()> on_end);

  // Submits to the engine and opens the stream if one was asked for. Throws what submit throws; then nothing was sent.
  void start();
  // Ends the reply with an error: a stream error event, or an error reply.
  void abort(const ApiError& error, Outcome outcome);
  bool answers_to(std::string_view id, int64_t client) const { return dialect_->answers_to(id, client); }
  std::string as_it_stands() const { return dialect_->as_it_stands(); }
  // The engine may still compute for this request.
  bool in_engine() const { return !done_ && !finished_; }

 private:
  struct TimedToken {
    int32_t id;  // -1: a stop token that is not shown
    Clock::time_point time;
    std::shared_ptr<const engine::TokenLogprobs> logprobs;  // null: not asked for
  };

  void on_event(const engine::Event& event, Clock::time_point time,
                std::shared_ptr<const engine::TokenLogprobs> logprobs);
  void on_finished(const engine::Event& event, Clock::time_point time);
  void pump();
  void complete();
  Outcome outcome() const;
  void end(Outcome outcome);
  bool is_chunk_due() const;
  bool may_be_the_answer() const;
  void keep_ids();
  void send_pieces();
  Ending ending();
  Usage usage() const;
  Metrics metrics() const;  // of a reply that has ended
  bool ends_by_own_stop_id(int32_t id) const;

  const ServedModel& model_;
  Executor& executor_;
  std::shared_ptr<Responder> responder_;
  std::function<void()> on_end_;
  ChatRequest request_;
  engine::Request engine_request_;  // moved to the engine by start()
  RequestTrace trace_;
  std::shared_ptr<ReplyDialect> dialect_;
  ReplyText text_;
  uint64_t seed_ = 0;
  int64_t reasoning_hold_;
  std::shared_ptr<ReplyIds> kept_replies_;  // null: this one is not kept
  PromptKey prompt_key_;
  std::vector<int32_t> ids_;  // of the reply, if it is kept

  uint64_t number_ = 0;                   // of the engine's request
  std::deque<TimedToken> pending_;        // sampled, not yet turned into text
  std::vector<chat::ReplyPiece> pieces_;  // text not yet sent; a non-streaming reply collects all of it here
  int64_t tokens_sent_ = 0;               // of the reply, up to the last chunk with text
  std::optional<engine::Event> finished_;
  Ending ending_;
  bool done_ = false;
};

}  // namespace tandem::api
