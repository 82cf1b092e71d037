// The life of one reply.
#include "api/chat_session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/rule_list.h"

namespace tandem::api {

using chat::ReplyPiece;

ChatSession::ChatSession(const ServedModel& model, Executor& executor, PreparedChat prepared,
                         std::shared_ptr<Responder> responder, RequestTrace trace, std::function<void()> on_end)
    : model_(model),
      executor_(executor),
      responder_(std::move(responder)),
      on_end_(std::move(on_end)),
      request_(std::move(prepared.request)),
      engine_request_(std::move(prepared.engine_request)),
      trace_(std::move(trace)),
      dialect_(std::move(prepared.dialect)),
      text_(prepared.is_raw
                ? ReplyText::raw(*model.tokenizer, request_)
                : ReplyText(*model.tokenizer, prepared.reasoning_open, request_, std::move(prepared.tools))),
      seed_(engine_request_.sampling.seed),
      reasoning_hold_(prepared.reasoning_hold),
      kept_replies_(std::move(prepared.reply_ids)),
      prompt_key_(prepared.prompt_key) {
  if (!prepared.echo.empty()) pieces_.push_back({ReplyPiece::Kind::content, std::move(prepared.echo)});
}

void ChatSession::start() {
  engine_request_.id = trace_.id();
  trace_.submitted(Clock::now(), static_cast<int64_t>(engine_request_.prompt_ids.size()), engine_request_.max_tokens);
  // The sink runs on the engine's thread: it takes the time and hands the event over.
  auto sink = [self = shared_from_this()](const engine::Event& event) {
    auto logprobs = event.logprobs ? std::make_shared<const engine::TokenLogprobs>(*event.logprobs) : nullptr;
    self->executor_.io(
        [self, event, time = Clock::now(), logprobs = std::move(logprobs)] { self->on_event(event, time, logprobs); });
  };
  number_ = model_.engine->submit(std::move(engine_request_), std::move(sink));
  if (request_.stream) responder_->open_stream();
  responder_->on_gone([self = shared_from_this()] {
    self->model_.engine->cancel(self->number_);
    self->end(Outcome::abort);
  });
}

void ChatSession::on_event(const engine::Event& event, Clock::time_point time,
                           std::shared_ptr<const engine::TokenLogprobs> logprobs) {
  if (done_) return;
  switch (event.kind) {
    case engine::Event::Kind::admitted:
      trace_.admitted(time, event.cached_tokens, event.miss);
      if (request_.stream) dialect_->begin(*responder_, usage());
      return;
    case engine::Event::Kind::prompt_token: return dialect_->report_prompt({event.token, *logprobs});
    case engine::Event::Kind::token: pending_.push_back({event.token, time, std::move(logprobs)}); return pump();
    case engine::Event::Kind::finished: return on_finished(event, time);
  }
}

void ChatSession::on_finished(const engine::Event& event, Clock::time_point time) {
  finished_ = event;
  if (text_.complete()) return pump();  // however the engine ended: the reply is complete
  switch (event.reason) {
    case engine::FinishReason::error:
      if (event.error == engine::no_token_left) return abort(no_token_left(trace_.tokens()), Outcome::error);
      log(LogLevel::error, "request {}: {}", trace_.id(), event.error);
      return abort({500, "server_error", "The generation failed."}, Outcome::error);
    case engine::FinishReason::deadline: return abort(deadline_exceeded(), Outcome::deadline);
    // Only the engine itself can cancel here: our own cancels come after end().
    case engine::FinishReason::cancelled: return abort(unavailable("The server is stopping."), Outcome::abort);
    case engine::FinishReason::stop:
    case engine::FinishReason::repetition:
    case engine::FinishReason::length: break;
  }
  if (event.stop_token >= 0) {
    // The text of a stop token that the request chose is kept unless the token is special (D.2).
    const bool keep = ends_by_own_stop_id(event.stop_token) && !model_.tokenizer->is_special(event.stop_token);
    pending_.push_back({keep ? event.stop_token : -1, time, nullptr});
  }
  pump();
}

bool ChatSession::ends_by_own_stop_id(int32_t id) const {
  const auto contains = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  return contains(request_.stop_token_ids) && !contains(turn_end_ids(model_));
}

void ChatSession::pump() {
  if (done_) return;
  if (request_.stream && responder_->congested()) {
    // Tokens wait here at a few bytes each and later share a chunk.
    responder_->on_drained([self = shared_from_this()] { self->pump(); });
    return;
  }
  while (!pending_.empty() && !text_.complete()) {
    const TimedToken token = pending_.front();
    pending_.pop_front();
    trace_.token(token.time);
    if (kept_replies_ && token.id >= 0) ids_.push_back(token.id);
    if (token.logprobs) dialect_->report({token.id, *token.logprobs});
    // The engine ends there by itself, unless its rule fell silent. Its last event has the figures of the drafts.
    if (token.id >= 0 && text_.push(token.id, pieces_)) model_.engine->cancel(number_);
  }
  if (text_.complete()) pending_.clear();
  if (finished_) {
    ending_ = ending();
    return complete();
  }
  if (request_.stream && is_chunk_due()) send_pieces();
}

// The first text goes out at once, the last when the reply ends.
bool ChatSession::is_chunk_due() const {
  if (may_be_the_answer()) return false;
  return tokens_sent_ == 0 || text_.tokens() - tokens_sent_ >= request_.stream_interval;
}

// C.8 b: should the model stop now, what looks like reasoning is the answer. While it is short it can wait, so that it
// need not be sent twice.
bool ChatSession::may_be_the_answer() const {
  return tokens_sent_ == 0 && text_.tokens() < reasoning_hold_ && !pieces_.empty() &&
         std::all_of(pieces_.begin(), pieces_.end(),
                     [](const ReplyPiece& piece) { return piece.kind == ReplyPiece::Kind::reasoning; });
}

// A reply that a stop string has cut is not what its ids say.
void ChatSession::keep_ids() {
  if (kept_replies_ && !text_.matched_stop()) kept_replies_->put(prompt_key_, std::move(ids_));
}

// Of a reply whose tokens have all been read.
Ending ChatSession::ending() {
  const bool stopped = finished_->reason == engine::FinishReason::stop;
  if (!text_.complete()) text_.finish(stopped, pieces_);
  Ending ending;
  if (text_.complete() || stopped) {
    ending.finish_reason = text_.calls() > 0 ? "tool_calls" : "stop";
  } else {
    ending.finish_reason = finished_->reason == engine::FinishReason::repetition ? "repetition" : "length";
  }
  if (text_.matched_stop()) {
    ending.stop_reason = *text_.matched_stop();
  } else if (!text_.complete() && stopped && ends_by_own_stop_id(finished_->stop_token)) {
    ending.stop_reason = finished_->stop_token;
  }
  ending.reasoning_closed_by_eos = text_.reasoning_closed_by_eos();
  ending.ended_in_reasoning = text_.ended_in_reasoning();
  return ending;
}

void ChatSession::send_pieces() {
  for (const ReplyPiece& piece : pieces_) dialect_->piece(*responder_, piece, usage());
  if (!pieces_.empty()) tokens_sent_ = text_.tokens();
  pieces_.clear();
}

void ChatSession::complete() {
  keep_ids();
  if (request_.stream) {
    if (tokens_sent_ == 0 && ending_.reasoning_closed_by_eos) {
      std::erase_if(pieces_, [](const ReplyPiece& piece) { return piece.kind == ReplyPiece::Kind::reasoning; });
    }
    send_pieces();
    dialect_->end(*responder_, ending_, usage(), metrics());
  } else {
    Reply reply;
    reply.body = dialect_->whole(pieces_, ending_, usage(), metrics());
    responder_->reply(std::move(reply));
  }
  end(outcome());
}

Outcome ChatSession::outcome() const {
  if (ending_.finish_reason == "length") return Outcome::length;
  return ending_.finish_reason == "repetition" ? Outcome::repetition : Outcome::stop;
}

void ChatSession::abort(const ApiError& error, Outcome outcome) {
  if (done_) return;
  if (!finished_) model_.engine->cancel(number_);
  if (request_.stream) {
    dialect_->fail(*responder_, error);
  } else {
    responder_->reply(dialect_->refusal(error));
  }
  end(outcome);
}

void ChatSession::end(Outcome outcome) {
  if (done_) return;
  done_ = true;
  if (finished_) trace_.drafts(finished_->drafts);
  trace_.ended(outcome);
  const auto self = shared_from_this();  // the callbacks below may hold the last references
  pending_.clear();
  responder_.reset();
  if (auto on_end = std::exchange(on_end_, nullptr)) on_end();
}

Usage ChatSession::usage() const {
  Usage usage{trace_.prompt_tokens(), trace_.tokens(), trace_.cached_tokens(), text_.reasoning_tokens(), {}};
  if (finished_) usage.drafts = finished_->drafts;
  return usage;
}

Metrics ChatSession::metrics() const {
  Metrics metrics = trace_.reply_metrics(seed_);
  metrics.drafts = finished_->drafts;
  return metrics;
}

}  // namespace tandem::api
