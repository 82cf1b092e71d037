// The order of chunks (spec/frontend.md D.4) and which of them carry usage.
#include "api/chat_dialect.h"

#include <fmt/core.h>

#include <optional>
#include <utility>

#include "api/random.h"
#include "api/reply_text.h"

namespace tandem::api {

namespace {

using chat::ReplyPiece;

constexpr int call_id_bytes = 12;  // 24 hexadecimal digits (C.8)

class ChatDialect : public ReplyDialect {
 public:
  ChatDialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals, int64_t index)
      : head_{fmt::format("chatcmpl-{}", totals->id),
              totals->created,
              request.model,
              {totals->tokenizer, request.tokens_as_ids},
              index},
        totals_(std::move(totals)),
        reports_prompt_(request.prompt_logprobs >= 0),
        include_usage_(request.include_usage),
        continuous_usage_(request.continuous_usage_stats) {}

  void report(TokenReport report) override { reports_.push_back(report); }
  void report_prompt(PromptReport report) override { totals_->prompt_reports.push_back(report); }

  void begin(Responder& responder, const Usage& usage) override {
    responder.send_event(first_chunk(head_, chunk_usage(usage)));
  }

  void piece(Responder& responder, const ReplyPiece& piece, const Usage& usage) override {
    switch (piece.kind) {
      case ReplyPiece::Kind::reasoning:
      case ReplyPiece::Kind::content:
        return responder.send_event(delta_chunk(head_, piece.kind, piece.text, chunk_usage(usage),
                                                std::exchange(reports_, std::vector<TokenReport>())));
      case ReplyPiece::Kind::call:
        return responder.send_event(call_chunk(head_, ++call_index_, new_call_id(), piece.text, chunk_usage(usage)));
      case ReplyPiece::Kind::arguments:
        return responder.send_event(arguments_chunk(head_, call_index_, piece.text, chunk_usage(usage)));
      case ReplyPiece::Kind::call_end: return;
    }
  }

  void end(Responder& responder, const Ending& ending, const Usage& usage, const Metrics& metrics) override {
    responder.send_event(final_chunk(head_, ending, metrics, chunk_usage(usage), reports_));
    if (!totals_->add(usage, head_.index)) return;  // other choices go on
    if (include_usage_) responder.send_event(usage_chunk(head_, totals_->usage));
    responder.send_event("[DONE]");
    responder.close_stream();
  }

  void fail(Responder& responder, const ApiError& error) override {
    responder.send_event(error.body());
    responder.send_event("[DONE]");
    responder.close_stream();
  }

  std::string whole(const std::vector<ReplyPiece>& pieces, const Ending& ending, const Usage& usage,
                    const Metrics& metrics) override {
    totals_->add(usage, head_.index);
    WholeReply reply = whole_reply(pieces);
    if (ending.reasoning_closed_by_eos) reply.reasoning.clear();
    for (chat::ToolCall& call : reply.calls) call.id = new_call_id();
    const auto null_if = [](bool condition, std::string& text) {
      return condition ? std::nullopt : std::optional<std::string>(std::move(text));
    };
    const bool no_content = reply.content.empty() && (ending.ended_in_reasoning || !reply.calls.empty());
    const auto content = null_if(no_content, reply.content);
    return full_reply(head_, {content, null_if(reply.reasoning.empty(), reply.reasoning), std::move(reply.calls)},
                      ending, totals_->usage, metrics, reports_, reports_prompt_ ? &totals_->prompt_reports : nullptr);
  }

  Reply refusal(const ApiError& error) const override { return error.reply(); }

 private:
  static std::string new_call_id() { return "call_" + random_hex(call_id_bytes); }

  ChunkUsage chunk_usage(const Usage& usage) const {
    if (continuous_usage_) return {&usage, false};
    return {nullptr, include_usage_};
  }

  ReplyHead head_;
  std::shared_ptr<ChoiceTotals> totals_;
  std::vector<TokenReport> reports_;  // of tokens since the last chunk
  bool reports_prompt_, include_usage_, continuous_usage_;
  int64_t call_index_ = -1;
};

}  // namespace

std::shared_ptr<ReplyDialect> make_chat_dialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals,
                                                int64_t index) {
  return std::make_shared<ChatDialect>(request, std::move(totals), index);
}

}  // namespace tandem::api
