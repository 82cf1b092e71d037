// The states of a reply and the rules of spec/frontend.md C.8 that move between them.
#include "chat/stream_parser.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace tandem::chat {
namespace {

// Where the next token stands.
//
//   reasoning ──</think>──▶ content_start ──any text──▶ content
//       ▲                        │
//       └────────<think>─────────┘
//
// A tool call will be states of its own between `content` states: <tool_call> enters them from content_start or content
// (and, held back, from reasoning), </tool_call> returns to content. Until then its markup is text like any other.
enum class Phase {
  reasoning,
  content_start,  // content has no text yet: an opener restarts reasoning, newlines after a closer are dropped
  content,
};

// Markup that belongs to the text of a reply even if a checkpoint flags it special.
constexpr std::array<std::string_view, 6> kStructure{"<tool_call>", "</tool_call>", "<arg_key>",
                                                     "</arg_key>",  "<arg_value>",  "</arg_value>"};

int32_t required_token(const text::Tokenizer& tokenizer, const char* content) {
  const auto id = tokenizer.added_token(content);
  if (!id) throw Error(ErrorCode::bad_file, "tokenizer.json: added_tokens", "missing", content);
  return *id;
}

}  // namespace

struct StreamParser::State {
  const text::Tokenizer& tokenizer;
  int32_t opener;
  int32_t closer;
  std::vector<int32_t> structure;

  Phase phase;
  bool drop_newlines = false;  // the last token was a closer, or newlines that followed one
  bool closed = false;         // a closer has been seen
  bool skipped = false;        // rule C.8 b
  int64_t reasoning_tokens = 0;
  text::Utf8Stream utf8;
  std::string reasoning;  // all reasoning sent so far; kept until it is closed, for rule C.8 b

  State(const text::Tokenizer& the_tokenizer, bool reasoning_open)
      : tokenizer(the_tokenizer),
        opener(required_token(the_tokenizer, "<think>")),
        closer(required_token(the_tokenizer, "</think>")),
        phase(reasoning_open ? Phase::reasoning : Phase::content_start) {
    for (const std::string_view content : kStructure) {
      if (const auto id = tokenizer.added_token(content)) structure.push_back(*id);
    }
  }

  std::string_view visible_bytes(int32_t id) const {
    const bool is_structure = std::find(structure.begin(), structure.end(), id) != structure.end();
    if (tokenizer.is_special(id) && !is_structure) return {};
    return tokenizer.token_bytes(id);
  }

  void emit(std::vector<ReplyPiece>& out, std::string text) {
    if (text.empty()) return;
    const bool is_reasoning = phase == Phase::reasoning;
    if (is_reasoning && !closed) reasoning += text;
    out.push_back({is_reasoning ? ReplyPiece::Kind::reasoning : ReplyPiece::Kind::content, std::move(text)});
  }

  // A character cut off by the end of its part of the reply can no longer be completed.
  void end_text(std::vector<ReplyPiece>& out) {
    emit(out, utf8.finish());
    utf8 = {};
  }

  void push_reasoning(int32_t id, std::vector<ReplyPiece>& out) {
    ++reasoning_tokens;
    if (id == opener) return;
    if (id != closer) {
      emit(out, utf8.push(visible_bytes(id)));
      return;
    }
    end_text(out);
    closed = true;
    reasoning = {};
    phase = Phase::content_start;
    drop_newlines = true;
  }

  void push_content(int32_t id, std::vector<ReplyPiece>& out) {
    if (id == closer) {
      closed = true;
      drop_newlines = phase == Phase::content_start;
      return;
    }
    if (id == opener && phase == Phase::content_start) {
      phase = Phase::reasoning;
      ++reasoning_tokens;
      return;
    }
    std::string_view bytes = visible_bytes(id);
    if (drop_newlines) bytes.remove_prefix(std::min(bytes.find_first_not_of('\n'), bytes.size()));
    if (bytes.empty()) return;
    phase = Phase::content;
    drop_newlines = false;
    emit(out, utf8.push(bytes));
  }
};

StreamParser::StreamParser(const text::Tokenizer& tokenizer, bool reasoning_open)
    : state_(std::make_unique<State>(tokenizer, reasoning_open)) {}
StreamParser::~StreamParser() = default;
StreamParser::StreamParser(StreamParser&&) noexcept = default;

std::vector<ReplyPiece> StreamParser::push(int32_t id) {
  std::vector<ReplyPiece> out;
  if (state_->phase == Phase::reasoning) {
    state_->push_reasoning(id, out);
  } else {
    state_->push_content(id, out);
  }
  return out;
}

std::vector<ReplyPiece> StreamParser::finish(bool stopped) {
  std::vector<ReplyPiece> out;
  State& state = *state_;
  state.end_text(out);
  if (stopped && state.phase == Phase::reasoning && !state.closed) {
    state.phase = Phase::content;
    state.skipped = true;
    state.reasoning_tokens = 0;
    state.emit(out, std::move(state.reasoning));
  }
  return out;
}

bool StreamParser::in_reasoning() const { return state_->phase == Phase::reasoning; }
int64_t StreamParser::reasoning_tokens() const { return state_->reasoning_tokens; }
bool StreamParser::thinking_skipped() const { return state_->skipped; }

}  // namespace tandem::chat
