// fuzz-room: chat
// Any sequence of tokens as a reply with tools: text is whole UTF-8, calls are in order, and the arguments of a
// completed call are a JSON object. Input: a byte of flags, then markup tokens by number, other bytes as byte tokens.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "chat/json.h"
#include "chat/stream_parser.h"

namespace {

using tandem::chat::ReplyPiece;
using Kind = ReplyPiece::Kind;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Model {
  Model() : tokenizer(tandem::text::Tokenizer::load(std::filesystem::path(TANDEM_SOURCE_DIR) / "models/nano")) {
    tokens.resize(256, 0);
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (!tokenizer.is_added(id) && bytes.size() == 1) tokens[static_cast<unsigned char>(bytes[0])] = id;
    }
    constexpr std::array markup{"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                "<arg_value>", "</arg_value>", "<think>",   "</think>"};
    for (size_t i = 0; i < markup.size(); ++i) tokens[i + 1] = *tokenizer.added_token(markup[i]);
  }
  tandem::text::Tokenizer tokenizer;
  std::vector<int32_t> tokens;  // of a byte of input
  std::shared_ptr<const tandem::chat::ToolSchemas> tools =
      std::make_shared<const tandem::chat::ToolSchemas>(std::vector<std::string>{
          R"({"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}})"});
};

struct Reader {
  Kind last = Kind::call_end;
  std::string arguments;

  void read(const std::vector<ReplyPiece>& pieces) {
    for (const ReplyPiece& piece : pieces) {
      require(piece.text.empty() == (piece.kind == Kind::call_end));
      std::string quoted;
      tandem::chat::print_python_json(piece.text, quoted);
      require(*tandem::chat::parse_json(quoted, "piece").string() == piece.text);  // throws unless it is UTF-8
      const bool inside = last == Kind::call || last == Kind::arguments;
      if (piece.kind == Kind::call) arguments.clear();
      if (piece.kind == Kind::arguments) {
        require(inside);
        arguments += piece.text;
      }
      if (piece.kind == Kind::call_end) {
        require(last == Kind::arguments);
        require(tandem::chat::parse_json(arguments, "arguments").object() != nullptr);
      }
      last = piece.kind;
    }
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Model model;
  const uint8_t flags = size > 0 ? data[0] : 0;
  tandem::chat::StreamParser parser(model.tokenizer, (flags & 1) != 0, (flags & 2) != 0 ? model.tools : nullptr);
  Reader reader;
  for (size_t i = 1; i < size; ++i) reader.read(parser.push(model.tokens[data[i]]));
  reader.read(parser.finish((flags & 4) != 0));
  require(parser.reasoning_tokens() >= 0 && parser.reasoning_tokens() <= static_cast<int64_t>(size));
  return 0;
}
