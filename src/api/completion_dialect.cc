// text_completion objects, whole and in chunks.
#include "api/completion_dialect.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/json_text.h"

namespace tandem::api {

namespace {

using chat::ReplyPiece;
using Json = nlohmann::ordered_json;

class CompletionDialect : public ReplyDialect {
 public:
  CompletionDialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals, int64_t index,
                    std::optional<EchoedPrompt> echo)
      : totals_(std::move(totals)),
        model_(request.model),
        format_{totals_->tokenizer, request.tokens_as_ids},
        index_(index),
        include_usage_(request.include_usage),
        continuous_usage_(request.continuous_usage_stats),
        shows_prompt_only_(request.max_tokens == 0),
        logprobs_(request.logprobs),
        prompt_logprobs_(request.prompt_logprobs),
        echo_(std::move(echo)) {
    if (echo_ && logprobs_ >= 0) reports_.push_back({echo_->first_id, {}, false, echo_->hidden_tokens == 0});
  }

  void report(TokenReport report) override {
    if (!shows_prompt_only_) reports_.push_back(report);
  }

  void report_prompt(PromptReport report) override {
    const auto cut = [](engine::TokenLogprobs logprobs, int32_t most) {
      logprobs.size = std::min(logprobs.size, most);
      return logprobs;
    };
    ++prompt_tokens_;
    if (echo_ && logprobs_ >= 0) {
      reports_.push_back({report.id, cut(report.logprobs, logprobs_), true, prompt_tokens_ > echo_->hidden_tokens});
    }
    if (prompt_logprobs_ >= 0) prompt_.push_back({report.id, cut(report.logprobs, prompt_logprobs_)});
  }

  void begin(Responder& /*responder*/, const Usage& /*usage*/) override {}  // the first chunk has text

  void piece(Responder& responder, const ReplyPiece& piece, const Usage& usage) override {
    const std::string text = shown(piece.text);
    if (text.empty()) return;
    Json json = head();
    json["choices"].push_back(choice(text));
    add_usage(json, usage);
    responder.send_event(text_of(json));
  }

  void end(Responder& responder, const Ending& ending, const Usage& usage, const Metrics& metrics) override {
    Json json = head();
    json["choices"].push_back(ended(choice(""), ending));
    add_usage(json, usage);
    json["metrics"] = metrics_json(metrics);
    responder.send_event(text_of(json));
    if (!totals_->add(counted(usage), index_)) return;  // other choices go on
    if (include_usage_) {
      Json last = head();
      last["usage"] = openai_usage_json(totals_->usage);
      responder.send_event(text_of(last));
    }
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
    totals_->add(counted(usage), index_);
    std::string text;
    for (const ReplyPiece& piece : pieces) text += piece.text;
    Json json = head();
    json["choices"].push_back(ended(choice(shown(text)), ending));
    if (prompt_logprobs_ >= 0) json["choices"][0]["prompt_logprobs"] = prompt_logprobs_json(format_, prompt_);
    json["usage"] = openai_usage_json(totals_->usage);
    json["system_fingerprint"] = nullptr;
    json["metrics"] = metrics_json(metrics);
    return text_of(json);
  }

  Reply refusal(const ApiError& error) const override { return error.reply(); }

 private:
  Json head() const {
    Json json;
    json["id"] = fmt::format("cmpl-{}", totals_->id);
    json["object"] = "text_completion";
    json["created"] = totals_->created;
    json["model"] = model_;
    json["choices"] = Json::array();
    return json;
  }

  // With the reports of the tokens since the choice before.
  Json choice(const std::string& text) {
    Json json;
    json["index"] = index_;
    json["text"] = text;
    json["logprobs"] = completion_logprobs(format_, reports_, offset_);
    json["finish_reason"] = nullptr;
    json["stop_reason"] = nullptr;
    reports_.clear();
    return json;
  }

  static Json ended(Json choice, const Ending& ending) {
    choice["finish_reason"] = ending.finish_reason;
    choice["stop_reason"] = stop_reason_json(ending.stop_reason);
    return choice;
  }

  void add_usage(Json& json, const Usage& usage) const {
    if (continuous_usage_) {
      json["usage"] = openai_usage_json(counted(usage));
    } else if (include_usage_) {
      json["usage"] = nullptr;
    }
  }

  // The text comes in order and begins with the echo.
  std::string shown(std::string_view text) {
    if (!shows_prompt_only_) return std::string(text);
    const size_t length = std::min(text.size(), echo_->text.size() - shown_);
    shown_ += length;
    return std::string(text.substr(0, length));
  }

  Usage counted(Usage usage) const {
    if (shows_prompt_only_) usage.completion_tokens = 0;
    return usage;
  }

  std::shared_ptr<ChoiceTotals> totals_;
  std::string model_;
  ReportFormat format_;
  int64_t index_;
  bool include_usage_, continuous_usage_, shows_prompt_only_;
  int32_t logprobs_, prompt_logprobs_;
  std::optional<EchoedPrompt> echo_;
  int64_t prompt_tokens_ = 1;  // reported, the first one included
  std::vector<PromptReport> prompt_;
  size_t shown_ = 0;  // bytes of the echo that have been shown
  int64_t offset_ = 0;
  std::vector<TokenReport> reports_;
};

}  // namespace

std::shared_ptr<ReplyDialect> make_completion_dialect(const ChatRequest& request, std::shared_ptr<ChoiceTotals> totals,
                                                      int64_t index, std::optional<EchoedPrompt> echo) {
  return std::make_shared<CompletionDialect>(request, std::move(totals), index, std::move(echo));
}

}  // namespace tandem::api
