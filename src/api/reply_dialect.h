// One API's way to spell a reply. A session knows the life of a reply (engine, stops, slow and vanished clients) and
// calls its dialect for every byte that the client gets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_reply.h"
#include "api/endpoint.h"
#include "api/errors.h"
#include "api/token_reports.h"
#include "chat/reply_piece.h"

namespace tandem::api {

// A dialect belongs to one reply and may count what it has sent. All calls come from the io thread.
class ReplyDialect {
 public:
  virtual ~ReplyDialect() = default;

  // The log-probabilities of a token, if they were asked for: before the piece that its text is in, streamed or not.
  virtual void report(TokenReport /*report*/) {}

  // The same of each token of the prompt but the first, in order, before all else but begin().
  virtual void report_prompt(PromptReport /*report*/) {}

  // A stream: begin() once the prompt is admitted, piece() for each piece, then end() or fail(), which close it. The
  // usage is that of the moment.
  virtual void begin(Responder& responder, const Usage& usage) = 0;
  virtual void piece(Responder& responder, const chat::ReplyPiece& piece, const Usage& usage) = 0;
  virtual void end(Responder& responder, const Ending& ending, const Usage& usage, const Metrics& metrics) = 0;
  virtual void fail(Responder& responder, const ApiError& error) = 0;

  // The whole reply as JSON, of all its pieces.
  virtual std::string whole(const std::vector<chat::ReplyPiece>& pieces, const Ending& ending, const Usage& usage,
                            const Metrics& metrics) = 0;
  // An error before anything was sent.
  virtual Reply refusal(const ApiError& error) const = 0;

  // This is the reply with the id `id` of the client `client` (HttpRequest::client), which may be cancelled by it.
  virtual bool answers_to(std::string_view /*id*/, int64_t /*client*/) const { return false; }
  // Of a reply that answers to an id: its object while it is being written.
  virtual std::string as_it_stands() const { return {}; }
};

}  // namespace tandem::api
