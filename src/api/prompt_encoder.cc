// Segments between two borders are encoded by themselves, which gives the ids of the whole (chat/render.h).
#include "api/prompt_encoder.h"

#include <algorithm>
#include <span>
#include <utility>

#include "chat/stream_parser.h"

namespace tandem::api {

PromptEncoder::PromptEncoder(const text::Tokenizer& tokenizer, const chat::Prompt& prompt, ReplyIds* replies,
                             std::string_view cache_salt, Tools tools)
    : tokenizer_(&tokenizer), prompt_(&prompt), replies_(replies), tools_(std::move(tools)), hash_(cache_salt) {}

int64_t PromptEncoder::encode_until(size_t border) {
  while (replies_ != nullptr && next_reply_ < prompt_->replies.size() && prompt_->replies[next_reply_].begin < border) {
    const chat::Prompt::Span& reply = prompt_->replies[next_reply_++];
    encode(reply.begin);
    if (repeat(reply)) encoded_ = reply.end;
  }
  encode(border);
  return static_cast<int64_t>(ids_.size());
}

void PromptEncoder::append(const std::vector<int32_t>& ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  hash_.push(ids);
}

void PromptEncoder::encode(size_t end) {
  if (end <= encoded_) return;
  append(tokenizer_->encode(std::span(prompt_->segments).subspan(encoded_, end - encoded_)));
  encoded_ = end;
}

// A reply follows <think>, or <think></think> where thinking was off.
bool PromptEncoder::repeat(const chat::Prompt::Span& reply) {
  if (repeat_after({}, reply)) return true;
  const auto closer = tokenizer_->added_token("</think>");
  return closer && prompt_->segments[reply.begin].text.starts_with("</think>") && repeat_after({*closer}, reply);
}

bool PromptEncoder::repeat_after(const std::vector<int32_t>& closer, const chat::Prompt::Span& reply) {
  for (const ReplyIds::Ids& ids : replies_->find(hash_.key(closer))) {
    if (!says(*ids, closer.empty(), reply)) continue;
    append(closer);
    append(*ids);
    ++repeated_;
    return true;
  }
  return false;
}

// Rendered, the reply is what the prompt has there, added tokens and spelled ones told apart.
bool PromptEncoder::says(const std::vector<int32_t>& ids, bool reasoning_open, const chat::Prompt::Span& reply) const {
  chat::StreamParser parser(*tokenizer_, reasoning_open, tools_);
  std::vector<chat::ReplyPiece> pieces;
  const auto add = [&pieces](std::vector<chat::ReplyPiece> more) {
    pieces.insert(pieces.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  for (const int32_t id : ids) add(parser.push(id));
  add(parser.finish(true));
  if (parser.thinking_skipped()) return false;  // it was never closed; the prompt has closed it since
  WholeReply said = whole_reply(pieces);
  chat::Message message;
  message.role = chat::Role::assistant;
  message.reasoning_content = std::move(said.reasoning);
  message.content.push_back({chat::Part::Kind::text, std::move(said.content), {}});
  message.tool_calls = std::move(said.calls);
  const std::vector<text::TextSegment> rendered = chat::render_reply(message);
  return std::equal(rendered.begin(), rendered.end(), prompt_->segments.begin() + static_cast<ptrdiff_t>(reply.begin),
                    prompt_->segments.begin() + static_cast<ptrdiff_t>(reply.end),
                    [](const text::TextSegment& a, const text::TextSegment& b) {
                      return a.added_tokens == b.added_tokens && a.text == b.text;
                    });
}

}  // namespace tandem::api
