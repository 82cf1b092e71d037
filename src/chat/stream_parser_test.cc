// Each rule of the reply format, and streams against the same reply in one piece.
#include "chat/stream_parser.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/error.h"

namespace tandem::chat::stream_parser_test {
namespace {

using Kind = ReplyPiece::Kind;

const text::Tokenizer& nano() {
  static const text::Tokenizer tokenizer =
      text::Tokenizer::load(std::filesystem::path(TANDEM_SOURCE_DIR) / "models/nano");
  return tokenizer;
}

std::vector<int32_t> ids_of(const std::string& text) { return nano().encode(text, text::AddedTokens::recognise); }

// The ids of single bytes: pieces of characters that a vocabulary may split anywhere.
int32_t byte_token(char byte) {
  for (int32_t id = 0; id < nano().size(); ++id) {
    if (!nano().is_added(id) && nano().token_bytes(id) == std::string_view(&byte, 1)) return id;
  }
  throw Error(ErrorCode::internal, "byte_token", "no such token");
}

struct Reply {
  std::string reasoning, content;
  int64_t reasoning_tokens = 0;
  bool in_reasoning = false, skipped = false;

  bool operator==(const Reply&) const = default;
};

void add(Reply& reply, const std::vector<ReplyPiece>& pieces) {
  for (const ReplyPiece& piece : pieces) {
    EXPECT_FALSE(piece.text.empty());
    (piece.kind == Kind::reasoning ? reply.reasoning : reply.content) += piece.text;
  }
}

Reply parse(const std::vector<int32_t>& ids, bool reasoning_open = true, bool stopped = true) {
  StreamParser parser(nano(), reasoning_open);
  Reply reply;
  for (const int32_t id : ids) add(reply, parser.push(id));
  add(reply, parser.finish(stopped));
  reply.reasoning_tokens = parser.reasoning_tokens();
  reply.in_reasoning = parser.in_reasoning();
  reply.skipped = parser.thinking_skipped();
  return reply;
}

Reply parse(const std::string& text, bool reasoning_open = true, bool stopped = true) {
  return parse(ids_of(text), reasoning_open, stopped);
}

TEST(StreamParser, CloserEndsReasoning) {
  const Reply reply = parse(" so\n\n</think>\n\nYes.");
  EXPECT_EQ(reply.reasoning, " so\n\n");  // verbatim
  EXPECT_EQ(reply.content, "Yes.");
  EXPECT_EQ(reply.reasoning_tokens, static_cast<int64_t>(ids_of(" so\n\n").size()) + 1);
  EXPECT_FALSE(reply.in_reasoning);
  EXPECT_FALSE(reply.skipped);
}

TEST(StreamParser, ContentWithoutReasoning) {
  const Reply reply = parse("Yes.", false);
  EXPECT_EQ(reply.reasoning, "");
  EXPECT_EQ(reply.content, "Yes.");
  EXPECT_EQ(reply.reasoning_tokens, 0);
  EXPECT_FALSE(reply.skipped);
}

TEST(StreamParser, SecondOpenerIsSwallowed) {
  EXPECT_EQ(parse("a<think>b</think>c").reasoning, "ab");
  EXPECT_EQ(parse("<think>a</think>c").reasoning, "a");
  EXPECT_EQ(parse("<think>a</think>c").reasoning_tokens, 3);
}

TEST(StreamParser, LoneClosersAreSwallowedInContent) {
  EXPECT_EQ(parse("a</think>b</think>\nc").content, "b\nc");
  EXPECT_EQ(parse("a</think></think>\n\nc").content, "c");
  EXPECT_EQ(parse("b</think>c", false).content, "bc");
}

TEST(StreamParser, OpenerRestartsReasoningOnlyAtTheBeginningOfContent) {
  EXPECT_EQ(parse("<think>a</think>b", false), (Reply{"a", "b", 3, false, false}));
  EXPECT_EQ(parse("a</think>\n<think>b</think>\nc"), (Reply{"ab", "c", 5, false, false}));
  EXPECT_EQ(parse("a</think>b<think>c</think>d"), (Reply{"a", "b<think>cd", 2, false, false}));
  EXPECT_EQ(parse(" <think>c", false).content, " <think>c");
}

TEST(StreamParser, NewlinesAreDroppedOnlyRightAfterACloser) {
  EXPECT_EQ(parse("a</think>\n\n\n x\n\n").content, " x\n\n");
  EXPECT_EQ(parse("a</think> \nx").content, " \nx");
  EXPECT_EQ(parse("a</think>\r\nx").content, "\r\nx");
  EXPECT_EQ(parse("\n\nx", false).content, "\n\nx");
  EXPECT_EQ(parse("a</think>\n\n").content, "");
}

TEST(StreamParser, SpelledMarkersAreText) {
  const std::vector<int32_t> ids = nano().encode("a</think>b<think>", text::AddedTokens::literal);
  EXPECT_EQ(parse(ids, true, false).reasoning, "a</think>b<think>");
  EXPECT_EQ(parse(ids, false).content, "a</think>b<think>");
}

TEST(StreamParser, SpecialTokensAreSkippedAndToolMarkupIsText) {
  const std::string call = "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>";
  EXPECT_EQ(parse("a</think>x<|assistant|>y<sop>" + call).content, "xy" + call);
  EXPECT_EQ(parse("a<|observation|>" + call + "</think>x").reasoning, "a" + call);
  EXPECT_EQ(parse("a</think>" + call).content, call);
}

TEST(StreamParser, SkippedThinkingIsSentAgainAsContent) {
  StreamParser parser(nano(), true);
  std::string streamed;
  for (const int32_t id : ids_of("The answer\n")) {
    for (const ReplyPiece& piece : parser.push(id)) {
      EXPECT_EQ(piece.kind, Kind::reasoning);
      streamed += piece.text;
    }
  }
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_GT(parser.reasoning_tokens(), 0);
  const std::vector<ReplyPiece> last = parser.finish(true);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0].kind, Kind::content);
  EXPECT_EQ(last[0].text, "The answer\n");
  EXPECT_EQ(streamed, "The answer\n");
  EXPECT_TRUE(parser.thinking_skipped());
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.reasoning_tokens(), 0);
}

TEST(StreamParser, CutOffReasoningStaysReasoning) {
  const Reply reply = parse("thinking", true, false);
  EXPECT_EQ(reply.reasoning, "thinking");
  EXPECT_EQ(reply.content, "");
  EXPECT_TRUE(reply.in_reasoning);
  EXPECT_FALSE(reply.skipped);
}

TEST(StreamParser, ReasoningThatWasClosedOnceIsNeverContent) {
  const Reply reply = parse("a</think><think>b");
  EXPECT_EQ(reply, (Reply{"ab", "", 4, true, false}));
}

TEST(StreamParser, SkippedThinkingWithoutTextSendsNothing) {
  EXPECT_EQ(parse(std::vector<int32_t>{}), (Reply{"", "", 0, false, true}));
}

TEST(StreamParser, CharactersSplitOverTokensArriveWhole) {
  StreamParser parser(nano(), false);
  EXPECT_TRUE(parser.push(byte_token('\xE4')).empty());
  EXPECT_TRUE(parser.push(byte_token('\xBD')).empty());
  const std::vector<ReplyPiece> whole = parser.push(byte_token('\xA0'));
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].text, "\u4f60");
}

TEST(StreamParser, BrokenCharactersEndWithTheirPart) {
  const int32_t first = byte_token('\xE4');
  std::vector<int32_t> ids{first};
  const std::vector<int32_t> rest = ids_of("</think>x");
  ids.insert(ids.end(), rest.begin(), rest.end());
  ids.push_back(first);
  const Reply reply = parse(ids);
  EXPECT_EQ(reply.reasoning, "\uFFFD");
  EXPECT_EQ(reply.content, "x\uFFFD");
  EXPECT_EQ(parse(std::vector<int32_t>{first}), (Reply{"\uFFFD", "\uFFFD", 0, false, true}));
  // A fragment is text: behind it an opener is no longer at the beginning.
  EXPECT_EQ(parse(std::vector<int32_t>{first, ids_of("<think>")[0]}, false).content, "\uFFFD<think>");
}

// The rules once more, on the reply as a whole: cut it into spans of reasoning and content, decode each at once.
class WholeReply {
 public:
  WholeReply(std::vector<int32_t> ids, bool stopped) : ids_(std::move(ids)), stopped_(stopped) {}

  Reply read(bool reasoning_open) {
    bool reasoning = reasoning_open;
    while (reasoning ? read_reasoning() : read_content()) reasoning = !reasoning;
    return reply_;
  }

 private:
  // Each returns whether the other kind follows.
  bool read_reasoning() {
    std::vector<int32_t> part;
    for (; at_ < ids_.size() && ids_[at_] != closer_; ++at_, ++reply_.reasoning_tokens) {
      if (ids_[at_] != opener_) part.push_back(ids_[at_]);
    }
    reply_.reasoning += nano().decode(part, true);
    if (at_ < ids_.size()) {
      ++at_;
      ++reply_.reasoning_tokens;
      closed_ = after_closer_ = true;
      return true;
    }
    reply_.skipped = stopped_ && !closed_;
    reply_.in_reasoning = !reply_.skipped;
    if (reply_.skipped) {
      reply_.content = reply_.reasoning;
      reply_.reasoning_tokens = 0;
    }
    return false;
  }

  bool read_content() {
    for (; at_ < ids_.size(); ++at_) {  // what stands before the text
      if (ids_[at_] == closer_) {
        closed_ = after_closer_ = true;
      } else if (ids_[at_] == opener_) {
        ++at_;
        ++reply_.reasoning_tokens;
        return true;
      } else if (!nano().is_special(ids_[at_]) &&
                 !(after_closer_ && nano().token_bytes(ids_[at_]).find_first_not_of('\n') == std::string::npos)) {
        break;
      }
    }
    std::vector<int32_t> part;
    std::copy_if(ids_.begin() + static_cast<std::ptrdiff_t>(at_), ids_.end(), std::back_inserter(part),
                 [this](int32_t id) { return id != closer_; });
    std::string text = nano().decode(part, true);
    if (after_closer_) text.erase(0, text.find_first_not_of('\n'));
    reply_.content = text;
    return false;
  }

  const int32_t opener_ = *nano().added_token("<think>"), closer_ = *nano().added_token("</think>");
  std::vector<int32_t> ids_;
  bool stopped_;
  Reply reply_;
  std::size_t at_ = 0;
  bool closed_ = false, after_closer_ = false;
};

TEST(StreamParser, StreamedPiecesAddUpToTheWholeReply) {
  std::mt19937 random(3);
  std::vector<int32_t> common = ids_of("<think></think>\n\n\n<tool_call><|assistant|>x<think></think>");
  for (const char byte : {'\xE4', '\xBD', '\xA0', '\xF0', '\x80', '\xFF'}) common.push_back(byte_token(byte));
  for (int round = 0; round < 4000; ++round) {
    std::vector<int32_t> ids(random() % 14);
    for (int32_t& id : ids) {
      id = random() % 3 == 0 ? static_cast<int32_t>(random() % static_cast<uint32_t>(nano().size()))
                             : common[random() % common.size()];
    }
    const bool reasoning_open = random() % 2 == 0, stopped = random() % 2 == 0;
    ASSERT_EQ(parse(ids, reasoning_open, stopped), WholeReply(ids, stopped).read(reasoning_open))
        << testing::PrintToString(ids);
  }
}

}  // namespace
}  // namespace tandem::chat::stream_parser_test
