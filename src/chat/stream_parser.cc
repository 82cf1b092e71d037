// The states of a reply and the rules of spec/frontend.md C.8 that move between them.
#include "chat/stream_parser.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "chat/call_parser.h"
#include "chat/white_space.h"

namespace tandem::chat {
namespace {

// Where the next token stands.
//
//   reasoning ──</think>──▶ content_start ──any text──▶ content ◀──▶ after_call
//       ▲                        │
//       └────────<think>─────────┘
//
// A <tool_call> opens a CallParser from any of them; it returns to after_call, or to content if it was no call. One
// that opens inside reasoning is tried out first (Trial).
enum class Phase {
  reasoning,
  content_start,  // content has no text yet: an opener restarts reasoning, newlines after a closer are dropped
  content,
  after_call,  // white space here belongs to nothing unless text follows
};

// Markup that belongs to the text of a reply even if a checkpoint flags it special.
constexpr std::array<std::string_view, 6> kStructure{"<tool_call>", "</tool_call>", "<arg_key>",
                                                     "</arg_key>",  "<arg_value>",  "</arg_value>"};

// Bytes of a call inside open reasoning that are held back before it is believed.
constexpr std::size_t kTrialWindow = 1024;

int32_t required_token(const text::Tokenizer& tokenizer, const char* content) {
  const auto id = tokenizer.added_token(content);
  if (!id) throw Error(ErrorCode::bad_file, "tokenizer.json: added_tokens", "missing", content);
  return *id;
}

// Calls inside reasoning that has not been closed. They are the reply's calls, and end the reasoning, if nothing but
// calls follows to the end of the reply (or they grow long); else their markup was part of the reasoning.
struct Trial {
  std::vector<int32_t> ids;        // of the tokens taken, the first <tool_call> included
  std::size_t bytes = 0;           // of the same
  std::vector<ReplyPiece> pieces;  // of its calls
};

}  // namespace

struct StreamParser::State {
  const text::Tokenizer& tokenizer;
  std::shared_ptr<const ToolSchemas> tools;
  int32_t opener;
  int32_t closer;
  CallMarkup markup;
  std::vector<int32_t> structure;
  bool call_is_certain;

  Phase phase;
  bool drop_newlines = false;  // the last token was a closer, or newlines that followed one
  bool closed = false;         // a closer has been seen, or a call in its place
  bool skipped = false;        // rule C.8 b
  bool called = false;         // a call is complete
  int64_t reasoning_tokens = 0;
  text::Utf8Stream utf8;
  std::string reasoning;  // all reasoning sent so far; kept until it is closed, for rule C.8 b
  std::string blank;      // white space that is content only if text follows, with tools
  std::optional<CallParser> call;
  std::optional<Trial> trial;

  State(const text::Tokenizer& the_tokenizer, bool reasoning_open, std::shared_ptr<const ToolSchemas> the_tools,
        bool is_certain)
      : tokenizer(the_tokenizer),
        tools(std::move(the_tools)),
        opener(required_token(the_tokenizer, "<think>")),
        closer(required_token(the_tokenizer, "</think>")),
        markup(the_tokenizer),
        call_is_certain(is_certain),
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

  // A value may contain the markers of reasoning.
  std::string_view call_bytes(int32_t id) const {
    return id == opener || id == closer ? tokenizer.token_bytes(id) : visible_bytes(id);
  }

  bool opens_call(int32_t id) const { return tools != nullptr && id == markup.call; }

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

  void end_reasoning() {
    closed = true;
    reasoning = {};
  }

  void push(int32_t id, std::vector<ReplyPiece>& out) {
    if (trial) {
      push_trial(id, out);
    } else if (call) {
      push_call(id, out);
    } else if (phase == Phase::reasoning) {
      push_reasoning(id, out);
    } else {
      push_content(id, out);
    }
  }

  void push_reasoning(int32_t id, std::vector<ReplyPiece>& out) {
    if (opens_call(id)) {
      end_text(out);
      trial.emplace();
      return push_trial(id, out);
    }
    if (id != closer) return push_reasoning_text(id, out);
    ++reasoning_tokens;
    end_text(out);
    end_reasoning();
    phase = Phase::content_start;
    drop_newlines = true;
  }

  void push_reasoning_text(int32_t id, std::vector<ReplyPiece>& out) {
    ++reasoning_tokens;
    if (id != opener) emit(out, utf8.push(visible_bytes(id)));
  }

  void push_content(int32_t id, std::vector<ReplyPiece>& out) {
    if (id == closer) {
      closed = true;
      drop_newlines = phase == Phase::content_start;
      return;
    }
    if (id == opener && phase == Phase::content_start && blank.empty()) {
      phase = Phase::reasoning;
      ++reasoning_tokens;
      return;
    }
    if (opens_call(id)) {
      end_text(out);
      call.emplace(markup, *tools);
      return;
    }
    std::string_view bytes = visible_bytes(id);
    if (drop_newlines) bytes.remove_prefix(std::min(bytes.find_first_not_of('\n'), bytes.size()));
    if (bytes.empty()) return;
    drop_newlines = false;
    if (tools != nullptr && phase != Phase::content && is_blank(bytes)) {
      blank += bytes;
      return;
    }
    text(bytes, out);
  }

  void text(std::string_view bytes, std::vector<ReplyPiece>& out) {
    phase = Phase::content;
    if (!blank.empty()) emit(out, utf8.push(std::exchange(blank, {})));
    emit(out, utf8.push(bytes));
  }

  void push_call(int32_t id, std::vector<ReplyPiece>& out) {
    if (id == closer && !call->in_value()) return;  // a lone one, as in content
    const CallParser::Step step = call->push(id, call_bytes(id), out);
    if (step == CallParser::Step::more) return;
    if (step == CallParser::Step::rejected) {
      call_was_text(out);
    } else {
      call_is_complete();
    }
    if (step != CallParser::Step::complete) push(id, out);
  }

  void call_was_text(std::vector<ReplyPiece>& out) {
    text(std::string(tokenizer.token_bytes(markup.call)) + call->raw(), out);
    call.reset();
  }

  void call_is_complete() {
    called = true;
    blank.clear();
    call.reset();
    phase = Phase::after_call;
  }

  void push_trial(int32_t id, std::vector<ReplyPiece>& out) {
    const std::string_view bytes = call_bytes(id);
    const bool in_value = call && call->in_value();
    if ((id == closer || id == opener) && !in_value) return reject_trial(id, out);
    if (call) {
      const CallParser::Step step = call->push(id, bytes, trial->pieces);
      if (step == CallParser::Step::rejected) return reject_trial(id, out);
      if (step != CallParser::Step::more) call.reset();
      if (step == CallParser::Step::complete_before) call.emplace(markup, *tools);  // only an opener ends a call so
    } else if (opens_call(id)) {
      call.emplace(markup, *tools);
    } else if (!is_blank(bytes)) {
      return reject_trial(id, out);
    }
    trial->ids.push_back(id);
    trial->bytes += bytes.size();
    if (trial->bytes <= kTrialWindow) return;
    if (trial->pieces.empty()) return trial_was_reasoning(out);
    believe_trial(out);
  }

  void believe_trial(std::vector<ReplyPiece>& out) {
    end_reasoning();
    for (ReplyPiece& piece : trial->pieces) {
      called = called || piece.kind == ReplyPiece::Kind::call_end;
      out.push_back(std::move(piece));
    }
    trial.reset();
    phase = Phase::after_call;
  }

  // Its first <tool_call> was text; the tokens after it are read again and may hold what it hid.
  void trial_was_reasoning(std::vector<ReplyPiece>& out) {
    const std::vector<int32_t> ids = std::move(trial->ids);
    trial.reset();
    call.reset();
    push_reasoning_text(ids.front(), out);
    for (std::size_t i = 1; i < ids.size(); ++i) push(ids[i], out);
  }

  void reject_trial(int32_t id, std::vector<ReplyPiece>& out) {
    trial_was_reasoning(out);
    push(id, out);
  }

  void finish(bool stopped, std::vector<ReplyPiece>& out) {
    while (trial) {
      if (stopped && (!call || call->finish(trial->pieces))) {
        call.reset();
        believe_trial(out);
      } else {
        trial_was_reasoning(out);
      }
    }
    if (call) {
      if (stopped && call->finish(out)) {
        call_is_complete();
      } else if (stopped || !(call_is_certain || call->begun())) {
        call_was_text(out);
      }
    }
    end_text(out);
    if (!called && !call && !blank.empty()) text(std::exchange(blank, {}), out);
    if (stopped && phase == Phase::reasoning && !closed) {
      phase = Phase::content;
      skipped = true;
      reasoning_tokens = 0;
      emit(out, std::move(reasoning));
    }
  }
};

StreamParser::StreamParser(const text::Tokenizer& tokenizer, bool reasoning_open,
                           std::shared_ptr<const ToolSchemas> tools, bool call_is_certain)
    : state_(std::make_unique<State>(tokenizer, reasoning_open, std::move(tools), call_is_certain)) {}
StreamParser::~StreamParser() = default;
StreamParser::StreamParser(StreamParser&&) noexcept = default;

std::vector<ReplyPiece> StreamParser::push(int32_t id) {
  std::vector<ReplyPiece> out;
  state_->push(id, out);
  return out;
}

std::vector<ReplyPiece> StreamParser::finish(bool stopped) {
  std::vector<ReplyPiece> out;
  state_->finish(stopped, out);
  return out;
}

bool StreamParser::in_reasoning() const { return state_->phase == Phase::reasoning; }
int64_t StreamParser::reasoning_tokens() const { return state_->reasoning_tokens; }
bool StreamParser::thinking_skipped() const { return state_->skipped; }

}  // namespace tandem::chat
