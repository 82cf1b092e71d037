// The life of one chat reply.
#include "api/chat_session.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "api/random.h"
#include "base/log.h"

namespace tandem::api {

using chat::ReplyPiece;

namespace {

double milliseconds(ChatSession::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

constexpr int id_bytes = 16;  // 32 hexadecimal digits (D.4)

}  // namespace

ChatSession::ChatSession(const ServedModel& model, Executor& executor, PreparedChat prepared,
                         std::shared_ptr<Responder> responder, Clock::time_point arrived, std::string request_id,
                         std::function<void()> on_end)
    : model_(model),
      executor_(executor),
      responder_(std::move(responder)),
      on_end_(std::move(on_end)),
      request_(std::move(prepared.request)),
      engine_request_(std::move(prepared.engine_request)),
      request_id_(std::move(request_id)),
      head_{"chatcmpl-" + random_hex(id_bytes), std::time(nullptr), request_.model},
      text_(*model.tokenizer, prepared.reasoning_open, request_),
      seed_(engine_request_.sampling.seed),
      prompt_tokens_(static_cast<int64_t>(engine_request_.prompt_ids.size())),
      arrived_(arrived) {}

void ChatSession::start() {
  engine_request_.id = request_id_;
  submitted_ = Clock::now();
  // The sink runs on the engine's thread: it takes the time and hands the event over.
  auto sink = [self = shared_from_this()](const engine::Event& event) {
    self->executor_.io([self, event, time = Clock::now()] { self->on_event(event, time); });
  };
  number_ = model_.engine->submit(std::move(engine_request_), std::move(sink));
  if (request_.stream) responder_->open_stream();
  responder_->on_gone([self = shared_from_this()] {
    self->model_.engine->cancel(self->number_);
    self->end("client gone");
  });
}

void ChatSession::on_event(const engine::Event& event, Clock::time_point time) {
  if (done_) return;
  switch (event.kind) {
    case engine::Event::Kind::admitted:
      admitted_ = time;
      if (request_.stream) responder_->send_event(first_chunk(head_, chunk_usage()));
      return;
    case engine::Event::Kind::token: pending_.push_back({event.token, time}); return pump();
    case engine::Event::Kind::finished: return on_finished(event, time);
  }
}

void ChatSession::on_finished(const engine::Event& event, Clock::time_point time) {
  if (event.reason == engine::FinishReason::error) {
    log(LogLevel::error, "request {}: {}", request_id_, event.error);
    return abort({500, "server_error", "The generation failed."});
  }
  // Only the engine itself can cancel here: our own cancels come after end().
  if (event.reason == engine::FinishReason::cancelled) return abort(unavailable("The server is stopping."));
  finished_ = event;
  if (event.stop_token >= 0) {
    // The text of a stop token that the request chose is kept unless the token is special (D.2).
    const bool keep = ends_by_own_stop_id(event.stop_token) && !model_.tokenizer->is_special(event.stop_token);
    pending_.push_back({keep ? event.stop_token : -1, time});
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
  bool matched = false;
  while (!pending_.empty() && !matched) {
    const TimedToken token = pending_.front();
    pending_.pop_front();
    count_token(token.time);
    if (token.id >= 0) matched = text_.push(token.id, pieces_);
  }
  if (matched) {
    model_.engine->cancel(number_);
    ending_ = {"stop", *text_.matched_stop(), false};
    return complete();
  }
  if (finished_ && pending_.empty()) {
    const bool stopped = finished_->reason == engine::FinishReason::stop;
    text_.finish(stopped, pieces_);
    ending_.finish_reason = stopped ? "stop" : "length";
    if (text_.matched_stop()) {
      ending_ = {"stop", *text_.matched_stop(), false};
    } else if (stopped && ends_by_own_stop_id(finished_->stop_token)) {
      ending_.stop_reason = finished_->stop_token;
    }
    ending_.reasoning_closed_by_eos = text_.reasoning_closed_by_eos();
    return complete();
  }
  if (request_.stream) send_pieces();
}

void ChatSession::count_token(Clock::time_point time) {
  if (!first_token_) first_token_ = time;
  last_token_ = time;
  ++completion_tokens_;
}

void ChatSession::send_pieces() {
  for (const ReplyPiece& piece : pieces_) {
    responder_->send_event(delta_chunk(head_, piece.kind, piece.text, chunk_usage()));
  }
  pieces_.clear();
}

void ChatSession::complete() {
  if (request_.stream) {
    send_pieces();
    responder_->send_event(final_chunk(head_, ending_, metrics(), chunk_usage()));
    if (request_.include_usage) responder_->send_event(usage_chunk(head_, usage()));
    responder_->send_event("[DONE]");
    responder_->close_stream();
    return end(ending_.finish_reason);
  }
  std::string content, reasoning;
  for (const ReplyPiece& piece : pieces_) {
    (piece.kind == ReplyPiece::Kind::content ? content : reasoning) += piece.text;
  }
  if (ending_.reasoning_closed_by_eos) reasoning.clear();
  const auto null_if = [](bool condition, std::string& text) {
    return condition ? std::nullopt : std::optional<std::string>(std::move(text));
  };
  const bool reasoning_only = content.empty() && text_.ended_in_reasoning();
  Reply reply;
  reply.body = full_reply(head_, null_if(reasoning_only, content), null_if(reasoning.empty(), reasoning), ending_,
                          usage(), metrics());
  responder_->reply(std::move(reply));
  end(ending_.finish_reason);
}

void ChatSession::abort(const ApiError& error) {
  if (done_) return;
  model_.engine->cancel(number_);
  if (request_.stream) {
    responder_->send_event(error.body());
    responder_->send_event("[DONE]");
    responder_->close_stream();
  } else {
    responder_->reply(error.reply());
  }
  end("error");
}

void ChatSession::end(std::string_view outcome) {
  if (done_) return;
  done_ = true;
  log(LogLevel::info, "request {}: {}, {} prompt tokens, {} completion tokens, {:.0f} ms", request_id_, outcome,
      prompt_tokens_, usage().completion_tokens, milliseconds(Clock::now() - arrived_));
  const auto self = shared_from_this();  // the callbacks below may hold the last references
  pending_.clear();
  responder_.reset();
  if (auto on_end = std::exchange(on_end_, nullptr)) on_end();
}

ChunkUsage ChatSession::chunk_usage() {
  if (request_.continuous_usage_stats) {
    running_usage_ = usage();
    return {&running_usage_, false};
  }
  return {nullptr, request_.include_usage};
}

Usage ChatSession::usage() const {
  // There is no prefix cache, so no prompt token is ever taken from one.
  return {prompt_tokens_, completion_tokens_, 0, text_.reasoning_tokens()};
}

Metrics ChatSession::metrics() const {
  Metrics metrics;
  metrics.seed = seed_;
  if (admitted_) metrics.queue_time_ms = milliseconds(*admitted_ - submitted_);
  if (!first_token_) return metrics;
  metrics.time_to_first_token_ms = milliseconds(*first_token_ - arrived_);
  metrics.generation_time_ms = milliseconds(*last_token_ - *first_token_);
  const auto gaps = static_cast<double>(usage().completion_tokens - 1);
  if (gaps >= 1) metrics.mean_itl_ms = *metrics.generation_time_ms / gaps;
  if (gaps >= 1 && *metrics.generation_time_ms > 0) {
    metrics.tokens_per_second = gaps * 1000 / *metrics.generation_time_ms;
  }
  return metrics;
}

}  // namespace tandem::api
