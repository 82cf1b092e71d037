// Tool calls in replies, as token sequences: what is delivered, what is text, and streams against whole replies.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "chat/stop_strings.h"
#include "chat/stream_parser.h"

namespace tandem::chat::tool_calls_test {
namespace {

using Kind = ReplyPiece::Kind;

const text::Tokenizer& nano() {
  static const text::Tokenizer tokenizer =
      text::Tokenizer::load(std::filesystem::path(TANDEM_SOURCE_DIR) / "models/nano");
  return tokenizer;
}

std::shared_ptr<const ToolSchemas> tools() {
  static const auto schemas = std::make_shared<const ToolSchemas>(std::vector<std::string>{
      R"({"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},
          "days":{"type":"integer"},"opt":{"type":["object","null"]},"any":{}}}})",
      R"({"name":"noop"})",
      R"({"name":"web.search:v1","parameters":{"properties":{"q":{"type":"string"}}}})",
  });
  return schemas;
}

// The ids of single bytes: pieces of characters that a vocabulary may split anywhere.
int32_t byte_token(char byte) {
  for (int32_t id = 0; id < nano().size(); ++id) {
    if (!nano().is_added(id) && nano().token_bytes(id) == std::string_view(&byte, 1)) return id;
  }
  return -1;
}

struct Call {
  std::string name, arguments;
  bool complete = false;
  bool operator==(const Call&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.name << " " << call.arguments << (call.complete ? "" : " (open)");
}

struct Reply {
  std::string reasoning, content;
  std::vector<Call> calls;
  int64_t reasoning_tokens = 0;

  void add(const std::vector<ReplyPiece>& pieces) {
    for (const ReplyPiece& piece : pieces) {
      EXPECT_EQ(piece.text.empty(), piece.kind == Kind::call_end);
      const bool inside = !calls.empty() && !calls.back().complete && was_call;
      switch (piece.kind) {
        case Kind::reasoning: reasoning += piece.text; break;
        case Kind::content: content += piece.text; break;
        case Kind::call: calls.push_back({piece.text, "", false}); break;
        case Kind::arguments:
          EXPECT_TRUE(inside);
          calls.back().arguments += piece.text;
          break;
        case Kind::call_end:
          EXPECT_TRUE(inside);
          calls.back().complete = true;
          break;
      }
      was_call = piece.kind == Kind::call || piece.kind == Kind::arguments;
    }
  }
  bool was_call = false;
};

std::vector<int32_t> ids_of(const std::string& text) { return nano().encode(text, text::AddedTokens::recognise); }

Reply parse(const std::vector<int32_t>& ids, bool reasoning_open, bool stopped, bool call_is_certain = false) {
  StreamParser parser(nano(), reasoning_open, tools(), call_is_certain);
  Reply reply;
  for (const int32_t id : ids) reply.add(parser.push(id));
  reply.add(parser.finish(stopped));
  reply.reasoning_tokens = parser.reasoning_tokens();
  return reply;
}

Reply parse(const std::string& text, bool reasoning_open = false, bool stopped = true) {
  return parse(ids_of(text), reasoning_open, stopped);
}

std::string argument(const std::string& key, const std::string& value) {
  return fmt::format("<arg_key>{}</arg_key><arg_value>{}</arg_value>", key, value);
}
std::string call(const std::string& name, const std::string& arguments = "") {
  return fmt::format("<tool_call>{}{}</tool_call>", name, arguments);
}
const std::string kWeather = call("get_weather", argument("city", "Oslo") + argument("days", "3"));
const Call kWeatherCall{"get_weather", R"({"city": "Oslo", "days": 3})", true};

void expect_calls(const std::string& text, const std::vector<Call>& calls, const std::string& content = "",
                  bool stopped = true) {
  const Reply reply = parse(text, false, stopped);
  EXPECT_EQ(reply.calls, calls) << text;
  EXPECT_EQ(reply.content, content) << text;
}
void expect_text(const std::string& text, bool stopped = true) { expect_calls(text, {}, text, stopped); }

TEST(ToolCalls, TypedArguments) {
  expect_calls(kWeather, {kWeatherCall});
  expect_calls(call("get_weather", argument("city", "12") + argument("opt", R"({"x":[1,2.5]})") + argument("any", "x")),
               {{"get_weather", R"({"city": "12", "opt": {"x": [1, 2.5]}, "any": "x"})", true}});
  expect_calls(call("noop"), {{"noop", "{}", true}});
  expect_calls(call("web.search:v1", argument("q", " \"a\"\n<b> ")),
               {{"web.search:v1", R"({"q": " \"a\"\n<b> "})", true}});
  expect_calls(call("\n noop \n"), {{"noop", "{}", true}});
  expect_calls(call("GET_weather", argument("city", "1")), {{"GET_weather", R"({"city": "1"})", true}});
}

TEST(ToolCalls, WhiteSpaceBetweenMarkupIsIgnored) {
  expect_calls(
      "<tool_call>\nget_weather\n<arg_key> city </arg_key>\n<arg_value> Oslo </arg_value>\n"
      "<arg_key>days</arg_key>\\n<arg_value>3\n</arg_value>\n</tool_call>\n",
      {{"get_weather", R"({"city": " Oslo ", "days": 3})", true}});
}

TEST(ToolCalls, TextAroundCalls) {
  expect_calls("Let me see.\n" + kWeather, {kWeatherCall}, "Let me see.\n");
  expect_calls(" \n" + kWeather + "\n\n" + call("noop") + "\n", {kWeatherCall, {"noop", "{}", true}});
  expect_calls(kWeather + "\nDone.", {kWeatherCall}, "\nDone.");
  EXPECT_EQ(parse(" \n").content, " \n");
  EXPECT_EQ(parse("why</think>\n\n" + kWeather, true).content, "");
  EXPECT_EQ(parse("why</think>\n\n" + kWeather, true).reasoning, "why");
}

TEST(ToolCalls, UnofferedNamesAreForwardedIfAClientCanAnswerThem) {
  expect_calls(call("no_such-tool", argument("n", "1")), {{"no_such-tool", R"({"n": 1})", true}});
  expect_text(call("no.such.tool"));
  expect_text(call(std::string(65, 'x')));
  expect_text(call("zwei Worte"));
  expect_text(call(""));
}

TEST(ToolCalls, MentionsAreText) {
  expect_text("Write <tool_call> and then the name.");
  expect_text("`<tool_call>`");
  expect_text(fmt::format("<tool_call>{:x<600}", ""));
  expect_text("</tool_call><arg_key>k</arg_key>");
  expect_calls("<tool_call>or " + kWeather, {kWeatherCall}, "<tool_call>or ");
  const std::vector<int32_t> spelled = nano().encode(kWeather, text::AddedTokens::literal);
  EXPECT_EQ(parse(spelled, false, true).content, kWeather);
  StreamParser without(nano(), false);
  Reply reply;
  for (const int32_t id : ids_of(kWeather)) reply.add(without.push(id));
  EXPECT_EQ(reply.content, kWeather);
}

TEST(ToolCalls, ValuesMayContainMarkup) {
  const std::string markup = "<tool_call>x<arg_key></tool_call><think></think><arg_value>";
  expect_calls(call("get_weather", argument("city", markup)),
               {{"get_weather", fmt::format(R"({{"city": "{}"}})", markup), true}});
}

TEST(ToolCalls, ValueClosedByOrdinaryTokens) {
  std::vector<int32_t> ids = ids_of("<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</b>");
  const auto append = [&ids](const std::vector<int32_t>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  append(nano().encode("</arg_value>\n", text::AddedTokens::literal));
  append(ids_of("<arg_key>days</arg_key><arg_value>2"));
  append(nano().encode("</arg_value>", text::AddedTokens::literal));
  append(ids_of("</tool_call>"));
  EXPECT_EQ(parse(ids, false, true).calls,
            (std::vector<Call>{{"get_weather", R"({"city": "a</b>", "days": 2})", true}}));
}

TEST(ToolCalls, SlipsAreRepaired) {
  expect_calls(
      "<tool_call>get_weather\ncity</arg_key><arg_value>Oslo</arg_value>\ndays</arg_key><arg_value>3</arg_value>"
      "</tool_call>",
      {kWeatherCall});
  expect_calls("<tool_call>get_weather<arg_key>city<arg_value>Oslo</arg_value></tool_call>",
               {{"get_weather", R"({"city": "Oslo"})", true}});
  const std::string open = kWeather.substr(0, kWeather.size() - std::string("</tool_call>").size());
  expect_calls(open, {kWeatherCall});                           // stopped without the end
  expect_calls(open + kWeather, {kWeatherCall, kWeatherCall});  // or went on with the next
}

TEST(ToolCalls, FormatsOfOtherModels) {
  expect_calls(call(R"({"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}})"), {kWeatherCall});
  expect_calls(call("\n[{\"name\":\"noop\",\"arguments\":\"{}\"},{\"name\":\"noop\",\"parameters\":{}}]\n"),
               {{"noop", "{}", true}, {"noop", "{}", true}});
  expect_calls(
      call("\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
           "</function>\n"),
      {kWeatherCall});
  for (const auto* text :
       {"{}", "[]", "{\"name\": \"noop\"}", "<function=>", "<function=noop", "[1", "{\"name\": 5}"}) {
    expect_text(call(text));
  }
}

TEST(ToolCalls, CutOffCalls) {
  const std::string head = "<tool_call>get_weather";
  const std::string key = head + "<arg_key>city</arg_key>";
  const std::string value = key + "<arg_value>Os";
  for (const auto& text : {head, key}) expect_text(text);
  expect_text(head, false);  // it may be a mention of the marker
  expect_calls(key, {}, "", false);
  expect_calls("Well. " + key, {}, "Well. ", false);
  // A stream has shown the beginning; the end of the reply shows the text once more.
  expect_calls(value, {{"get_weather", R"({"city": "Os)", false}}, value);
  expect_calls(value, {{"get_weather", R"({"city": "Os)", false}}, "", false);
  expect_calls(kWeather + value, {kWeatherCall, {"get_weather", R"({"city": "Os)", false}}, "", false);
}

// Where nothing but a call may come, what a limit cuts off is none of the content, wherever it cuts.
TEST(ToolCalls, CutOffCallsThatWereRequired) {
  const std::vector<int32_t> ids = ids_of("why</think>" + kWeather + kWeather);
  const auto begin = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids_of("<tool_call>")[0]) - ids.begin());
  for (size_t size = begin; size <= ids.size(); ++size) {
    const Reply reply =
        parse(std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(size)), true, false, true);
    EXPECT_EQ(reply.content, "") << size;
    EXPECT_EQ(reply.reasoning, "why") << size;
    for (const Call& made : reply.calls) {
      if (!made.complete) continue;
      EXPECT_EQ(made, kWeatherCall) << size;
    }
  }
  // What the model itself ends is shown.
  EXPECT_EQ(parse(ids_of("<tool_call>get_w"), false, true, true).content, "<tool_call>get_w");
}

TEST(ToolCalls, MalformedCallsAreText) {
  expect_text("<tool_call>noop<arg_key>k</tool_call>");
  expect_text("<tool_call>noop<arg_key>k</arg_key></tool_call>");
  expect_text("<tool_call>noop<arg_value>1</arg_value></tool_call>");
  expect_text("<tool_call>noop<arg_key>k</arg_key>1</arg_value></tool_call>");
  const std::string late = fmt::format("<tool_call>noop{}<arg_key>x</tool_call>", argument("k", "1"));
  expect_calls(late, {{"noop", R"({"k": 1)", false}}, late);
}

TEST(ToolCalls, InsideOpenReasoning) {
  Reply reply = parse("I will look.\n" + kWeather + "\n" + call("noop"), true);
  EXPECT_EQ(reply.reasoning, "I will look.\n");
  EXPECT_EQ(reply.content, "");
  EXPECT_EQ(reply.calls, (std::vector<Call>{kWeatherCall, {"noop", "{}", true}}));
  EXPECT_EQ(reply.reasoning_tokens, static_cast<int64_t>(ids_of("I will look.\n").size()));

  for (const std::string after : {" but no", "</think>"}) {
    reply = parse("a" + kWeather + after, true, false);
    EXPECT_EQ(reply.calls, std::vector<Call>{}) << after;
    EXPECT_EQ(reply.reasoning, "a" + kWeather + (after == " but no" ? after : "")) << after;
    EXPECT_EQ(reply.reasoning_tokens, static_cast<int64_t>(ids_of("a" + kWeather + after).size()));
  }
  EXPECT_EQ(parse("a" + kWeather + "</think>b" + call("noop"), true).calls, (std::vector<Call>{{"noop", "{}", true}}));
  EXPECT_EQ(parse("a <tool_call> is a tag</think>b", true).reasoning, "a <tool_call> is a tag");
  EXPECT_EQ(parse("a" + kWeather, true, false).calls, std::vector<Call>{});              // cut: who knows
  EXPECT_EQ(parse("a<tool_call>get_weather", true).content, "a<tool_call>get_weather");  // rule C.8 b
}

TEST(ToolCalls, LongCallsInsideReasoningAreBelieved) {
  const std::string city(1200, 'x');
  const Reply reply = parse(fmt::format("a{}b", call("get_weather", argument("city", city))), true);
  EXPECT_EQ(reply.reasoning, "a");
  EXPECT_EQ(reply.calls, (std::vector<Call>{{"get_weather", fmt::format(R"({{"city": "{}"}})", city), true}}));
  EXPECT_EQ(reply.content, "b");
}

TEST(ToolCalls, StringsStreamAsTheyCome) {
  StreamParser parser(nano(), false, tools());
  for (const int32_t id : ids_of("<tool_call>get_weather<arg_key>city</arg_key><arg_value>")) parser.push(id);
  const std::vector<ReplyPiece> pieces = parser.push(ids_of("x")[0]);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].kind, Kind::arguments);
  EXPECT_EQ(pieces[0].text, "x");
}

TEST(ToolCalls, StopStringsMeanNothingInCalls) {
  StreamParser parser(nano(), false, tools());
  StopStrings stop({"Oslo"});
  Reply reply;
  for (const int32_t id : ids_of("Os" + kWeather)) reply.add(stop.push(parser.push(id)));
  reply.add(stop.push(parser.finish(true)));
  EXPECT_EQ(reply.content, "Os");
  EXPECT_EQ(reply.calls, std::vector<Call>{kWeatherCall});
  EXPECT_FALSE(stop.matched());
}

// Whatever tokens come: completed calls have an acceptable name and arguments that are a JSON object, nothing is lost
// that is not a call, and a reply without calls has the text that a parser without tools gives, but for the beginning
// of a call that was cut off.
TEST(ToolCalls, RandomReplies) {
  std::mt19937 random(7);
  const std::vector<std::string> words{"<tool_call>", "</tool_call>",
                                       "<arg_key>",   "</arg_key>",
                                       "<arg_value>", "</arg_value>",
                                       "<think>",     "</think>",
                                       "get_weather", "noop",
                                       "city",        "days",
                                       "3",           "\n",
                                       " x",          "{",
                                       "\"name\"",    kWeather,
                                       "\xC3\xA9",    "<|assistant|>",
                                       "</arg_value", argument("city", "Oslo"),
                                       call("noop"),  "<tool_call>get_weather",
                                       "a</think>"};
  int with_calls = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += words[random() % words.size()];
    std::vector<int32_t> ids = ids_of(text);
    if (random() % 4 == 0 && !ids.empty()) {
      ids[random() % ids.size()] = static_cast<int32_t>(random() % static_cast<uint32_t>(nano().size()));
    }
    const bool reasoning_open = random() % 2 == 0, stopped = random() % 2 == 0;
    const Reply reply = parse(ids, reasoning_open, stopped);
    for (const Call& delivered : reply.calls) {
      if (!delivered.complete) continue;
      ++with_calls;
      EXPECT_FALSE(delivered.name.empty());
      EXPECT_TRUE(nlohmann::json::parse(delivered.arguments).is_object()) << text;
    }
    if (!reply.calls.empty()) continue;
    StreamParser plain(nano(), reasoning_open);
    Reply expected;
    for (const int32_t id : ids) expected.add(plain.push(id));
    expected.add(plain.finish(stopped));
    ASSERT_EQ(reply.reasoning, expected.reasoning) << text;
    if (!stopped && expected.content.starts_with(reply.content + "<tool_call>")) expected.content = reply.content;
    ASSERT_EQ(reply.content, expected.content) << text;
    ASSERT_EQ(reply.reasoning_tokens, plain.reasoning_tokens()) << text;
  }
  EXPECT_GT(with_calls, 500);
}

// A call's arguments against the same arguments written down by hand, with values cut into tokens at random.
TEST(ToolCalls, StreamedFragmentsAreTheWholeString) {
  std::mt19937 random(11);
  const std::string alphabet = "ab\"\\\n\t </>{}[]:,1\x01";
  for (int round = 0; round < 2000; ++round) {
    std::string city, days = std::to_string(random() % 1000);
    for (size_t i = random() % 20; i > 0; --i) {
      city += random() % 8 == 0 ? std::string(random() % 2 == 0 ? "\u00e9" : "\U0001F600")
                                : std::string(1, alphabet[random() % alphabet.size()]);
    }
    std::vector<int32_t> ids = ids_of("<tool_call>get_weather<arg_key>city</arg_key><arg_value>");
    for (size_t at = 0; at < city.size();) {  // pieces of any length; characters beyond ASCII byte by byte
      size_t size = 1;
      const bool is_ascii = static_cast<unsigned char>(city[at]) < 0x80;
      while (is_ascii && at + size < city.size() && static_cast<unsigned char>(city[at + size]) < 0x80 &&
             random() % 3 != 0) {
        ++size;
      }
      const std::vector<int32_t> piece = is_ascii ? nano().encode(city.substr(at, size), text::AddedTokens::literal)
                                                  : std::vector<int32_t>{byte_token(city[at])};
      ids.insert(ids.end(), piece.begin(), piece.end());
      at += size;
    }
    const std::vector<int32_t> rest = ids_of(fmt::format("</arg_value>{}</tool_call>", argument("days", days)));
    ids.insert(ids.end(), rest.begin(), rest.end());
    std::string quoted;
    print_python_json(city, quoted);
    ASSERT_EQ(parse(ids, false, true).calls,
              (std::vector<Call>{{"get_weather", fmt::format(R"({{"city": {}, "days": {}}})", quoted, days), true}}));
  }
}

}  // namespace
}  // namespace tandem::chat::tool_calls_test
