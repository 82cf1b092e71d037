// The conversation loop: one line is one message, the whole conversation is rendered for every turn.
#include "cli/chat.h"

#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "api/chat_prompt.h"
#include "base/error.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "chat/stream_parser.h"
#include "cli/standard_io.h"
#include "engine/run_request.h"

namespace tandem::cli {
namespace {

constexpr const char* help_text =
    "/help           this list\n"
    "/reset          forget the conversation (the system message stays)\n"
    "/system TEXT    set the system message; without TEXT remove it; forgets the conversation\n"
    "/effort LEVEL   low, high or max: how much the model thinks before it answers\n"
    "/quit           leave (as Ctrl-D does)\n"
    "Ctrl-C ends a reply.\n";

constexpr const char* dim = "\x1b[2m";
constexpr const char* plain = "\x1b[0m";

chat::Effort parse_effort(const std::string& name) {
  if (name == "low") return chat::Effort::low;
  if (name == "high") return chat::Effort::high;
  if (name == "max") return chat::Effort::max;
  throw Error(ErrorCode::usage, "effort", "\"" + name + "\"", "low, high or max");
}

chat::Message message_of(chat::Role role, std::string text) {
  chat::Message message;
  message.role = role;
  message.content.push_back({chat::Part::Kind::text, std::move(text), {}});
  return message;
}

// Writes the pieces of one reply and remembers them for the next turn.
class ReplyWriter {
 public:
  ReplyWriter(bool terminal, bool show_reasoning) : terminal_(terminal), show_reasoning_(terminal || show_reasoning) {}
  ~ReplyWriter() { set_dim_quietly(); }
  ReplyWriter(const ReplyWriter&) = delete;
  ReplyWriter& operator=(const ReplyWriter&) = delete;

  void write(const std::vector<chat::ReplyPiece>& pieces) {
    for (const auto& piece : pieces) {
      const bool is_reasoning = piece.kind == chat::ReplyPiece::Kind::reasoning;
      (is_reasoning ? reasoning_ : content_) += piece.text;
      if (is_reasoning && !show_reasoning_) continue;
      if (!is_reasoning && shown_kind_ == chat::ReplyPiece::Kind::reasoning) write_out("\n");
      shown_kind_ = piece.kind;
      set_dim(is_reasoning);
      write_out(piece.text);
    }
  }
  void end_line() {
    set_dim(false);
    write_out("\n");
  }
  // thinking_skipped: what looked like reasoning was the answer (spec/frontend.md C.8 b).
  chat::Message message(bool thinking_skipped) const {
    auto message = message_of(chat::Role::assistant, content_);
    if (!thinking_skipped) message.reasoning_content = reasoning_;
    return message;
  }

 private:
  void set_dim(bool on) {
    if (!terminal_ || on == is_dim_) return;
    is_dim_ = on;
    write_out(on ? dim : plain);
  }
  void set_dim_quietly() {
    try {
      set_dim(false);
    } catch (const Error&) {  // the terminal has gone; there is nobody to tell
    }
  }

  bool terminal_, show_reasoning_;
  bool is_dim_ = false;
  std::optional<chat::ReplyPiece::Kind> shown_kind_;
  std::string reasoning_, content_;
};

class Chat {
 public:
  explicit Chat(const ChatOptions& options)
      : options_(options), effort_(parse_effort(options.effort)), system_(options.system), model_(options.load) {
    reset();
  }

  int run();

 private:
  void reset();
  bool command(std::string_view line);  // false: leave
  void turn(const std::string& text);
  engine::Request request_of(const chat::Prompt& prompt);
  void say(const std::string& text) const {
    if (input_terminal_) std::fputs(text.c_str(), stderr);
  }

  const ChatOptions options_;
  chat::Effort effort_;
  std::string system_;
  LoadedModel model_;
  std::vector<chat::Message> messages_;
  InterruptFlag interrupt_;
  const bool input_terminal_ = input_is_terminal();
  const bool output_terminal_ = output_is_terminal();
};

void Chat::reset() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back(message_of(chat::Role::system, system_));
}

bool Chat::command(std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  const std::string name(line.substr(0, space));
  const size_t first = std::min(line.find_first_not_of(' ', space), line.size());
  const std::string argument(line.substr(first));
  if (name == "/quit" || name == "/exit") return false;
  if (name == "/help") {
    write_out(help_text);
  } else if (name == "/reset") {
    reset();
    say("The conversation is forgotten.\n");
  } else if (name == "/system") {
    system_ = argument;
    reset();
    say(system_.empty() ? "No system message.\n" : "The system message is set.\n");
  } else if (name == "/effort") {
    effort_ = parse_effort(argument);
  } else {
    throw Error(ErrorCode::usage, name, "no such command", "one of those that /help lists");
  }
  return true;
}

engine::Request Chat::request_of(const chat::Prompt& prompt) {
  engine::Request request;
  request.id = "chat";
  request.prompt_ids = model_.tokenizer().encode(prompt.segments);
  request.sampling = apply(options_.sampling, default_sampling(model_.defaults()));
  request.max_tokens = options_.sampling.max_tokens.value_or(model_.max_model_len());
  request.stop_token_ids = api::turn_end_ids(model_.served());
  return request;
}

void Chat::turn(const std::string& text) {
  messages_.push_back(message_of(chat::Role::user, text));
  try {
    chat::Conversation conversation;
    conversation.messages = messages_;
    conversation.effort = effort_;
    const auto prompt = chat::render(conversation);
    chat::StreamParser parser(model_.tokenizer(), prompt.reasoning_open);
    ReplyWriter writer(output_terminal_, options_.show_reasoning);
    const auto reply = engine::run_request(model_.engine(), request_of(prompt),
                                           {.on_token =
                                                [&](int32_t id) {
                                                  if (interrupt_.is_set()) return false;
                                                  writer.write(parser.push(id));
                                                  return true;
                                                },
                                            .is_cancelled = [this] { return interrupt_.is_set(); }});
    writer.write(parser.finish(reply.reason == engine::FinishReason::stop));
    writer.end_line();
    if (reply.reason == engine::FinishReason::cancelled) say("(ended by Ctrl-C)\n");
    if (reply.reason == engine::FinishReason::length) say("(cut off: --max-tokens or the window is used up)\n");
    messages_.push_back(writer.message(parser.thinking_skipped()));
  } catch (...) {
    messages_.pop_back();  // the next message may be a shorter one
    throw;
  }
}

int Chat::run() {
  say("Chat with " + model_.name() + ". /help lists the commands, Ctrl-C ends a reply, Ctrl-D leaves.\n");
  LineReader reader;
  std::string line;
  while (true) {
    interrupt_.clear();
    say("> ");
    const auto result = reader.read(line, interrupt_.flag());
    if (result == LineReader::Result::end) break;
    if (result == LineReader::Result::interrupted) {
      say("\n(Ctrl-D or /quit leaves)\n");
      continue;
    }
    if (line.empty()) continue;
    try {
      if (line[0] != '/')
        turn(line);
      else if (!command(line))
        return 0;
    } catch (const Error& e) {
      if (!input_terminal_ || e.code() == ErrorCode::internal || e.code() == ErrorCode::resource) throw;
      say(std::string("tandem: error: ") + e.what() + "\n");
    }
  }
  say("\n");
  return 0;
}

}  // namespace

int run_chat(const ChatOptions& options) { return Chat(options).run(); }

}  // namespace tandem::cli
