// The states of a call and the slips of the model that are repaired.
#include "chat/call_parser.h"

#include <algorithm>

#include "chat/foreign_calls.h"
#include "chat/white_space.h"

namespace tandem::chat {
namespace {

using Kind = ReplyPiece::Kind;

constexpr std::size_t kHeadWindow = 512;   // bytes in which a name has to be followed by markup
constexpr std::size_t kStrayWindow = 512;  // bytes of text after a value that belong to no argument
constexpr std::size_t kSpaceAfterSpelledEnd = 64;
constexpr std::string_view kValueEnd = "</arg_value>";

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

std::string valid_utf8(std::string_view bytes) {
  text::Utf8Stream utf8;
  std::string out = utf8.push(bytes);
  return out += utf8.finish();
}

std::string escaped(std::string_view text) {
  std::string quoted;
  print_python_json(text, quoted);
  return quoted.substr(1, quoted.size() - 2);
}

// Where a </arg_value> that was spelled by ordinary tokens ends the text, but for white space.
std::optional<std::size_t> spelled_end(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0 && text.size() - end <= kSpaceAfterSpelledEnd && is_space(text[end - 1])) --end;
  if (!text.substr(0, end).ends_with(kValueEnd)) return std::nullopt;
  return end - kValueEnd.size();
}

// The bytes at the end of `text` that a spelled </arg_value> could begin with, or has ended.
std::size_t undecided(std::string_view text) {
  if (const auto end = spelled_end(text)) return text.size() - *end;
  for (std::size_t size = std::min(text.size(), kValueEnd.size()); size > 0; --size) {
    if (text.ends_with(kValueEnd.substr(0, size))) return size;
  }
  return 0;
}

int32_t id_of(const text::Tokenizer& tokenizer, const char* content) {
  return tokenizer.added_token(content).value_or(-1);
}

void emit(std::vector<ReplyPiece>& out, Kind kind, std::string text) { out.push_back({kind, std::move(text)}); }

}  // namespace

CallMarkup::CallMarkup(const text::Tokenizer& tokenizer)
    : call(id_of(tokenizer, "<tool_call>")),
      call_end(id_of(tokenizer, "</tool_call>")),
      key(id_of(tokenizer, "<arg_key>")),
      key_end(id_of(tokenizer, "</arg_key>")),
      value(id_of(tokenizer, "<arg_value>")),
      value_end(id_of(tokenizer, "</arg_value>")) {}

CallParser::Step CallParser::push(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  const Step step = advance(id, bytes, out);
  if (step == Step::more || step == Step::complete) raw_ += bytes;
  return step;
}

CallParser::Step CallParser::advance(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  switch (state_) {
    case State::head: return head(id, bytes, out);
    case State::key: return key(id, bytes, out);
    case State::key_done: return key_done(id, bytes, out);
    case State::value: return value(id, bytes, out);
    case State::between: return between(id, bytes, out);
  }
  return Step::rejected;
}

// An offered name, or one that a client can answer with "unknown tool".
bool CallParser::acceptable(std::string_view name) const {
  if (name.empty()) return false;
  if (schemas_->offers(name)) return true;
  return name.size() <= 64 &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_name_character(c) && c != '.' && c != ':'; });
}

// part_ is "name", or "name key" where the model left out <arg_key>. Sets both; the key is empty in the first case.
bool CallParser::split_head() {
  const std::string_view text = trimmed(part_);
  const auto name_end = static_cast<std::size_t>(std::find_if(text.begin(), text.end(), is_space) - text.begin());
  name_ = text.substr(0, name_end);
  key_ = valid_utf8(trimmed(text.substr(name_end)));
  return acceptable(name_);
}

CallParser::Step CallParser::head(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  const bool foreign = !part_.empty() && may_be_foreign_call(part_);
  if (foreign && id == markup_->call_end) return foreign_call(out);
  if (!foreign && (id == markup_->key || id == markup_->key_end || id == markup_->call_end)) {
    const bool has_key = split_head() && !key_.empty();
    if (!acceptable(name_) || has_key != (id == markup_->key_end)) return Step::rejected;
    part_.clear();
    if (id == markup_->call_end) {
      end(out);
      return Step::complete;
    }
    state_ = id == markup_->key ? State::key : State::key_done;
    return Step::more;
  }
  part_ += bytes;
  if (may_be_foreign_call(part_)) return Step::more;
  if (id == markup_->call || id == markup_->value || id == markup_->value_end) return Step::rejected;
  const auto word = std::find_if_not(part_.begin(), part_.end(), is_space);
  const auto word_end = std::find_if(word, part_.end(), is_space);
  const bool plausible = std::all_of(word, word_end, is_name_character) && part_.size() <= kHeadWindow;
  return plausible ? Step::more : Step::rejected;
}

CallParser::Step CallParser::foreign_call(std::vector<ReplyPiece>& out) {
  auto calls = foreign_calls(valid_utf8(part_), *schemas_);
  if (!calls) return Step::rejected;
  for (const ToolCall& call : *calls) {
    if (!acceptable(call.name)) return Step::rejected;
  }
  for (ToolCall& call : *calls) {
    emit(out, Kind::call, std::move(call.name));
    emit(out, Kind::arguments, std::move(call.arguments));
    emit(out, Kind::call_end, {});
  }
  begun_ = true;
  return Step::complete;
}

CallParser::Step CallParser::key(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  if (id == markup_->key_end || id == markup_->value) {
    key_ = valid_utf8(trimmed(part_));
    part_.clear();
    state_ = State::key_done;
    return id == markup_->value ? key_done(id, bytes, out) : Step::more;
  }
  if (id == markup_->call || id == markup_->call_end || id == markup_->key || id == markup_->value_end) {
    return Step::rejected;
  }
  part_ += bytes;
  return Step::more;
}

CallParser::Step CallParser::key_done(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  if (id == markup_->value) {
    begin_value(out);
    return Step::more;
  }
  // Some replies spell the line end as a backslash and an n, over one token or two.
  const bool ignored =
      std::all_of(bytes.begin(), bytes.end(), [](char c) { return is_space(c) || c == '\\' || c == 'n'; });
  return ignored ? Step::more : Step::rejected;
}

CallParser::Step CallParser::value(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  if (id == markup_->value_end) {
    end_value(std::nullopt, out);
    return Step::more;
  }
  // Markup inside a value is text, unless the value was closed in other tokens.
  if (id == markup_->key || id == markup_->call_end) {
    if (const auto end = spelled_end(part_)) {
      end_value(end, out);
      return between(id, bytes, out);
    }
  }
  add_to_value(utf8_.push(bytes), out);
  return Step::more;
}

CallParser::Step CallParser::between(int32_t id, std::string_view bytes, std::vector<ReplyPiece>& out) {
  if (id == markup_->call_end || id == markup_->call) {
    end(out);
    return id == markup_->call ? Step::complete_before : Step::complete;
  }
  if (id == markup_->key) {
    part_.clear();
    state_ = State::key;
    return Step::more;
  }
  if (id == markup_->key_end && !is_blank(part_)) {  // its <arg_key> was left out
    key_ = valid_utf8(trimmed(part_));
    part_.clear();
    state_ = State::key_done;
    return Step::more;
  }
  if (id == markup_->key_end || id == markup_->value || id == markup_->value_end) return Step::rejected;
  if (part_.size() + bytes.size() > kStrayWindow) return Step::rejected;
  part_ += bytes;
  return Step::more;
}

void CallParser::begin(std::vector<ReplyPiece>& out) {
  if (begun_) return;
  begun_ = true;
  emit(out, Kind::call, name_);
}

void CallParser::begin_value(std::vector<ReplyPiece>& out) {
  begin(out);
  types_ = schemas_->types_of(name_, key_);
  std::string text = arguments_ == 0 ? "{" : ", ";
  print_python_json(key_, text);
  text += types_.only_string() ? ": \"" : ": ";
  emit(out, Kind::arguments, std::move(text));
  part_.clear();
  utf8_ = {};
  state_ = State::value;
}

void CallParser::add_to_value(const std::string& text, std::vector<ReplyPiece>& out) {
  part_ += text;
  if (!types_.only_string()) return;
  const std::size_t decided = part_.size() - undecided(part_);
  if (decided == 0) return;
  emit(out, Kind::arguments, escaped(std::string_view(part_).substr(0, decided)));
  part_.erase(0, decided);
}

void CallParser::end_value(std::optional<std::size_t> spelled_end, std::vector<ReplyPiece>& out) {
  part_ += utf8_.finish();
  if (spelled_end) part_.resize(*spelled_end);
  emit(out, Kind::arguments, types_.only_string() ? escaped(part_) + '"' : typed_value(part_, types_));
  ++arguments_;
  part_.clear();
  state_ = State::between;
}

void CallParser::end(std::vector<ReplyPiece>& out) {
  begin(out);
  emit(out, Kind::arguments, arguments_ == 0 ? "{}" : "}");
  emit(out, Kind::call_end, {});
}

bool CallParser::finish(std::vector<ReplyPiece>& out) {
  if (state_ != State::between || !is_blank(part_)) return false;
  end(out);
  return true;
}

}  // namespace tandem::chat
