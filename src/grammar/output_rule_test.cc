// Replies token by token: what the mask says, what step() takes and what drafts are worth must be one and the same.
#include "grammar/output_rule.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/schema.h"
#include "grammar/test_vocabulary.h"

namespace tandem::grammar::output_rule_test {
namespace {

constexpr int32_t think_end = test_added, call = test_added + 1, call_end = test_added + 2, key = test_added + 3,
                  key_end = test_added + 4, value = test_added + 5, value_end = test_added + 6, eos = test_added + 7,
                  user = test_added + 8;
constexpr MarkerTokens markers{think_end, call, call_end, key, key_end, value, value_end};

class Output : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_available()) GTEST_SKIP() << "built without xgrammar";
  }

  std::shared_ptr<const Compiled> schema(std::string_view text) {
    return translator_.compile({Language::json_schema, prepare_schema(text, {}).text});
  }
  OutputRule rule(OutputForm form) {
    form.ends = {eos, user};
    return {vocabulary_, markers, std::make_shared<const OutputForm>(std::move(form))};
  }
  std::vector<int32_t> mask_of(OutputRule& rule) const {
    std::vector<uint32_t> bits(vocabulary_->words(), ~uint32_t{0});
    if (rule.masks()) rule.mask(bits);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < vocabulary_->size(); ++id)
      if ((bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
    return ids;
  }
  // Every token: in the mask exactly if it would be a useful draft, and looking changes nothing.
  void check_mask(OutputRule& rule) const {
    const auto allowed = mask_of(rule);
    for (int32_t id = 0; id < vocabulary_->size(); ++id) {
      const bool is_allowed = std::binary_search(allowed.begin(), allowed.end(), id);
      ASSERT_EQ(rule.allowed_drafts(std::vector<int32_t>{id}), is_allowed ? 1 : 0) << "token " << id;
    }
    ASSERT_EQ(mask_of(rule), allowed);
  }
  // "<call>" and so on stand for the markers, the rest is text.
  std::vector<int32_t> tokens(std::string_view text) const {
    const std::vector<std::pair<std::string_view, int32_t>> names{
        {"<end>", think_end}, {"<call>", call},   {"</call>", call_end},   {"<key>", key},
        {"</key>", key_end},  {"<value>", value}, {"</value>", value_end}, {"<eos>", eos}};
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const auto marker =
          std::find_if(names.begin(), names.end(), [&](const auto& one) { return text.starts_with(one.first); });
      if (marker != names.end()) {
        ids.push_back(marker->second);
        text.remove_prefix(marker->first.size());
        continue;
      }
      size_t next = text.size();
      for (const auto& [name, id] : names) next = std::min(next, text.find(name));
      const auto plain = test_tokens(*vocabulary_, text.substr(0, next));
      ids.insert(ids.end(), plain.begin(), plain.end());
      text.remove_prefix(next);
    }
    return ids;
  }
  // How the reply ends: "complete" (by itself), "ended" (at <eos>), "open", or what was refused first.
  std::string run(OutputRule rule, std::string_view text) const {
    const auto ids = tokens(text);
    for (size_t i = 0; i < ids.size(); ++i) {
      check_mask(rule);
      const auto rest = std::span(ids).subspan(i);
      const auto allowed = mask_of(rule);
      const bool may_come = std::binary_search(allowed.begin(), allowed.end(), ids[i]);
      EXPECT_EQ(rule.allowed_drafts(rest) > 0, may_come);
      if (!may_come) return "refused at token " + std::to_string(i);
      if (ids[i] == eos) return "ended";
      rule.accept(ids[i]);
      if (rule.is_finished()) return i + 1 == ids.size() ? "complete" : "complete too early";
    }
    check_mask(rule);
    return "open";
  }

  std::shared_ptr<const Vocabulary> vocabulary_ = test_vocabulary();
  Translator translator_{*vocabulary_};
};

TEST_F(Output, AValueBeginsWhenReasoningHasClosed) {
  OutputForm form;
  form.reasoning_open = true;
  form.value = schema(R"({"type":"object","properties":{"name":{"type":"null"}},"required":["name"]})");
  form.blanks_before_value = true;
  EXPECT_EQ(run(rule(form), "abc {\"x<end>{\"name\":null}"), "complete");
  EXPECT_EQ(run(rule(form), "abc<end>\n\n{\"name\": null}"), "complete");
  EXPECT_EQ(run(rule(form), "<end>    {\"name\":null}"), "complete");
  EXPECT_EQ(run(rule(form), "<end>     {"), "refused at token 3") << "a fifth blank";
  EXPECT_EQ(run(rule(form), "abc<eos>"), "refused at token 1") << "the turn must not end unconstrained";
  EXPECT_EQ(run(rule(form), "abc<end><eos>"), "refused at token 2");
  EXPECT_EQ(run(rule(form), "abc<end>{\"name\":null<eos>"), "refused at token 6");
  EXPECT_EQ(run(rule(form), "abc<end>abc"), "refused at token 2");
  form.reasoning_open = false;
  EXPECT_EQ(run(rule(form), "{\"name\":null}"), "complete");
}

TEST_F(Output, ANumberMayEndOrGoOn) {
  OutputForm form;
  form.value = schema(R"({"type":"integer"})");
  EXPECT_EQ(run(rule(form), "12345<eos>"), "ended");
  EXPECT_EQ(run(rule(form), "-<eos>"), "refused at token 1");
  EXPECT_EQ(run(rule(form), "12345"), "open");
}

TEST_F(Output, DraftsRunOverTheEndOfReasoningAndStepBack) {
  OutputForm form;
  form.reasoning_open = true;
  form.value = schema(R"({"enum":["abc"]})");
  OutputRule one = rule(form);
  const auto ids = tokens("abc<end>\"abc\"");
  EXPECT_EQ(one.allowed_drafts(ids), 5);
  auto wrong = ids;
  wrong[3] = 'x';
  EXPECT_EQ(one.allowed_drafts(wrong), 3);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(one.allowed_drafts(std::span(ids).subspan(i)), std::ssize(ids) - static_cast<int64_t>(i))
        << "looking changes nothing";
    one.accept(ids[i]);
  }
  EXPECT_TRUE(one.is_finished());
  EXPECT_THROW(one.accept('x'), Error);
}

TEST_F(Output, ARequiredCall) {
  OutputForm form;
  form.calls = OutputForm::Calls::required;
  CallableTool weather{.name = "get_weather", .arguments = {}, .other_keys = false, .constrained = true};
  weather.arguments.push_back({.key = "name", .required = true, .literals = {}, .grammar = nullptr});
  weather.arguments.push_back(
      {.key = "n", .required = false, .literals = {}, .grammar = schema(R"({"type":"integer"})")});
  weather.arguments.push_back({.key = "unit", .required = false, .literals = {"C", "Fa"}, .grammar = nullptr});
  form.tools = {weather, {.name = "get_", .arguments = {}, .other_keys = false, .constrained = true}};
  const std::string name = "<call>get_weather<key>name</key><value>any {text}</value>";
  EXPECT_EQ(run(rule(form), name + "</call><eos>"), "ended");
  EXPECT_EQ(run(rule(form),
                name + "<key>n</key><value>-12</value><key>unit</key><value>Fa</value></call><call>get_</call><eos>"),
            "ended");
  EXPECT_EQ(run(rule(form), "\n" + name + "</call><eos>"), "ended") << "a blank before the call";
  EXPECT_EQ(run(rule(form), "abc"), "refused at token 0");
  EXPECT_EQ(run(rule(form), "<eos>"), "refused at token 0");
  EXPECT_EQ(run(rule(form), "<call>get_x"), "refused at token 2") << "a name that is not offered";
  EXPECT_EQ(run(rule(form), "<call>get_weather</call>"), "refused at token 3") << "a required key is missing";
  EXPECT_EQ(run(rule(form), "<call>get_weather<key>m"), "refused at token 4");
  EXPECT_EQ(run(rule(form), name + "<key>name"), "refused at token 19") << "a key comes once";
  EXPECT_EQ(run(rule(form), name + "<key>n</key><value>abc"), "refused at token 22");
  EXPECT_EQ(run(rule(form), name + "<key>unit</key><value>F</value>"), "refused at token 26") << "half a constant";
  EXPECT_EQ(run(rule(form), "<call>get_<key>"), "refused at token 2") << "a tool without arguments";
  form.one_call = true;
  EXPECT_EQ(run(rule(form), name + "</call>"), "complete");
}

TEST_F(Output, ACallOrAValue) {
  OutputForm form;
  form.calls = OutputForm::Calls::allowed;
  form.value = schema(R"({"enum":["abc"]})");
  form.tools = {{.name = "get_", .arguments = {}, .other_keys = true, .constrained = true}};
  EXPECT_EQ(run(rule(form), "\"abc\""), "complete");
  EXPECT_EQ(run(rule(form), "<call>get_</call><eos>"), "ended");
  EXPECT_EQ(run(rule(form), "<call>get_<key>abc</key><value>12</value></call><eos>"), "ended");
  EXPECT_EQ(run(rule(form), "abc"), "refused at token 0");
  EXPECT_EQ(run(rule(form), "<call>get_</call>\"abc\""), "refused at token 3");
}

// spec/frontend.md E.6: a mention of the marker stays text; a strict tool is constrained from its head on.
TEST_F(Output, FreeTextWithStrictTools) {
  OutputForm form;
  form.calls = OutputForm::Calls::allowed;
  CallableTool strict{.name = "weather", .arguments = {}, .other_keys = false, .constrained = true};
  strict.arguments.push_back(
      {.key = "n", .required = true, .literals = {}, .grammar = schema(R"({"type":"integer"})")});
  form.tools = {strict, {.name = "abc", .arguments = {}, .other_keys = true, .constrained = false}};
  EXPECT_EQ(run(rule(form), "abc<call>name of 12 things<eos>"), "ended");
  EXPECT_EQ(run(rule(form), "abc<call>weather<key>n</key><value>12</value></call>abc<eos>"), "ended");
  EXPECT_EQ(run(rule(form), "<call>weather<key>m"), "refused at token 3");
  EXPECT_EQ(run(rule(form), "<call>weather</call>"), "refused at token 2") << "a required key is missing";
  EXPECT_EQ(run(rule(form), "<call>weather abc<eos>"), "ended");
  EXPECT_EQ(run(rule(form), "<call>abc<key>x</key><value>y</value></call><eos>"), "ended");
}

TEST_F(Output, AReplyThatGoesOnAfterItsBeginning) {
  OutputForm form;
  form.value = schema(R"({"enum":["abc"]})");
  form.blanks_before_value = true;
  OutputRule fits = rule(form);
  EXPECT_TRUE(fits.begin_with(" \"ab"));
  EXPECT_EQ(run(fits, "c\""), "complete");
  OutputRule other = rule(form);
  EXPECT_FALSE(other.begin_with("\"b"));
  EXPECT_TRUE(other.begin_with(""));
}

TEST_F(Output, TextThatMayBeEmptyMayEndAtOnce) {
  OutputForm form;
  form.value = translator_.compile({Language::regex, "(abc)*"});
  EXPECT_EQ(run(rule(form), "<eos>"), "ended");
  EXPECT_EQ(run(rule(form), "abcabc<eos>"), "ended");
  EXPECT_EQ(run(rule(form), " "), "refused at token 0") << "a regular expression has no blanks before it";
}

}  // namespace
}  // namespace tandem::grammar::output_rule_test
