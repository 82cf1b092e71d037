// Reading the skill file and judging replies, over an engine that says what the test wants.
#include "eval/skills.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"

namespace tandem::eval::skills_test {
namespace {

const std::filesystem::path source = TANDEM_SOURCE_DIR;

// Answers every request with the next of its scripted replies.
class ScriptedEngine : public engine::Engine {
 public:
  struct Answer {
    std::vector<int32_t> ids;
    engine::FinishReason reason = engine::FinishReason::stop;
  };
  std::vector<Answer> answers;
  std::vector<engine::Request> requests;

  uint64_t submit(engine::Request request, Sink sink) override {
    const Answer answer = answers.at(requests.size());
    requests.push_back(std::move(request));
    engine::Event event;
    for (const int32_t id : answer.ids) {
      event.token = id;
      sink(event);
    }
    event.kind = engine::Event::Kind::finished;
    event.reason = answer.reason;
    event.stop_token = answer.reason == engine::FinishReason::stop ? 1995 : -1;
    event.error = answer.reason == engine::FinishReason::error ? "it broke" : "";
    sink(event);
    return requests.size();
  }
  void cancel(uint64_t) override {}
  engine::Status status() const override { return {}; }
};

std::vector<Skill> two_skills() {
  return parse_skills(R"([
    {"skill": "b", "reasoning_effort": "low", "expected_text": "</think>Oslo.", "messages": [{"role": "user", "content": "Where?"}]},
    {"skill": "a", "expected_text": "</think>é", "messages": [{"role": "user", "content": "What?"}]}])",
                      "file");
}

TEST(Skills, TheBundledFileReads) {
  const auto skills = read_skills(source / "models/nano/skills.json");
  EXPECT_EQ(skills.size(), 115u);
  std::set<std::string> names;
  for (const auto& skill : skills) names.insert(skill.name);
  EXPECT_EQ(names.size(), 11u);
}

TEST(Skills, ExactMeansStoppedWithThisText) {
  const auto tokenizer = text::Tokenizer::load(source / "models/nano");
  const auto ids = [&](const char* text) { return tokenizer.encode(text, text::AddedTokens::recognise); };
  const auto skills = two_skills();
  ScriptedEngine engine;
  engine.answers = {{ids("</think>Oslo."), engine::FinishReason::stop},
                    {ids("</think>é"), engine::FinishReason::stop},
                    {ids("</think>Oslo."), engine::FinishReason::length},
                    {ids("</think>e"), engine::FinishReason::stop}};
  std::vector<int64_t> progress;
  const auto good =
      run_skills(engine, tokenizer, {1995}, skills, [&](int64_t, int64_t exact) { progress.push_back(exact); });
  EXPECT_EQ(good.exact(), 2);
  EXPECT_EQ(progress, (std::vector<int64_t>{1, 2}));
  const auto bad = run_skills(engine, tokenizer, {1995}, {skills[0]}, {});
  EXPECT_EQ(bad.exact(), 0) << "cut off";
  const auto other = run_skills(engine, tokenizer, {1995}, {skills[1]}, {});
  EXPECT_EQ(other.exact(), 0) << "another text";
  EXPECT_EQ(other.results[0].text, "</think>e");
}

TEST(Skills, RequestsAreGreedyAndRenderedWithTheirEffort) {
  const auto tokenizer = text::Tokenizer::load(source / "models/nano");
  ScriptedEngine engine;
  engine.answers.resize(2);
  run_skills(engine, tokenizer, {1995, 1988}, two_skills(), {});
  for (const auto& request : engine.requests) {
    EXPECT_EQ(request.sampling.temperature, 0);
    EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{1995, 1988}));
  }
  const auto prompt = tokenizer.decode(engine.requests[0].prompt_ids);
  EXPECT_NE(prompt.find("<|user|>Where?<|assistant|><think>"), std::string::npos) << prompt;
}

TEST(Skills, ReportsNameTheMisses) {
  SkillsReport report;
  report.results = {
      {"b", true, "x", "x", 1, 1}, {"a", false, "right", "wrong \"one\"", 1, 1}, {"b", true, "y", "y", 1, 1}};
  const auto text = skills_text(report);
  EXPECT_NE(text.find("entry 1 (a)"), std::string::npos);
  EXPECT_NE(text.find("right"), std::string::npos);
  const auto json = skills_json(report, 3);
  EXPECT_EQ(json.find("{\n  \"schema\": \"tandem.skills/1\""), 0u);
  EXPECT_NE(json.find("\"passed\": false"), std::string::npos);
  EXPECT_NE(json.find("\"wrong \\\"one\\\"\""), std::string::npos);
  EXPECT_NE(skills_json(report, 2).find("\"passed\": true"), std::string::npos);
}

TEST(Skills, TwoModelsAreCompared) {
  SkillsReport report;
  report.results = {{"a", true, "x", "x", 1, 1},
                    {"a", true, "y", "y", 1, 1},
                    {"b", false, "z", "-", 1, 1},
                    {"b", false, "u", "-", 1, 1},
                    {"c", false, "v", "-", 1, 1}};
  ComparedSkills other{"big", report};
  other.report.results[1] = {"a", false, "y", "?", 1, 1};
  other.report.results[2] = {"b", true, "z", "z", 1, 1};
  other.report.results[3].text = "+";
  const SkillsComparison counts = compare_skills(report, other.report);
  EXPECT_EQ(counts.both, 1);
  EXPECT_EQ(counts.only_this, 1);
  EXPECT_EQ(counts.only_other, 1);
  EXPECT_EQ(counts.neither, 2);
  EXPECT_EQ(counts.same_text, 2);
  const auto text = skills_text(report, &other);
  for (const char* part :
       {"the other: big", "both 1, only this model 1, only the other 1, neither 2; the same reply 2 of 5",
        "only this model: entry 1 (a)", "only the other: entry 2 (b)", "miss: entry 4 (c)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  EXPECT_EQ(text.find("entry 3 (b)\n  only"), std::string::npos);
  const auto json = nlohmann::json::parse(skills_json(report, 3, &other));
  EXPECT_EQ(json["exact"], 2);
  EXPECT_EQ(json["compared"]["model"], "big");
  EXPECT_EQ(json["compared"]["skills"]["b"]["exact"], 1);
  EXPECT_EQ(json["compared"]["only_other"], 1);
  EXPECT_EQ(json["compared"]["differences"].size(), 3u);
  EXPECT_EQ(json["compared"]["differences"][2]["other_text"], "+");
  EXPECT_TRUE(nlohmann::json::parse(skills_json(report, 3))["compared"].is_null());
  other.report.results.pop_back();
  EXPECT_THROW(compare_skills(report, other.report), Error);
  other.report.results.push_back({"c", false, "another", "-", 1, 1});
  EXPECT_THROW(compare_skills(report, other.report), Error);
}

TEST(Skills, EngineFailureIsAnError) {
  const auto tokenizer = text::Tokenizer::load(source / "models/nano");
  ScriptedEngine engine;
  engine.answers = {{{}, engine::FinishReason::error}};
  EXPECT_THROW(run_skills(engine, tokenizer, {1995}, two_skills(), {}), Error);
}

TEST(Skills, BadFilesNameTheEntry) {
  for (
      const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{
          {"", "JSON"},
          {"{}", "list"},
          {"[]", "list"},
          {"[5]", "file[0]"},
          {R"([{"skill": 3, "expected_text": "a", "messages": []}])", "file[0].skill"},
          {R"([{"skill": "a", "messages": []}])", "expected_text"},
          {R"([{"skill": "a", "expected_text": "b", "messages": [{"role": 5}]}])", "file[0].messages[0]"},
          {R"([{"skill": "a", "expected_text": "b", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": 5}])",
           "reasoning_effort"},
          {std::string(100000, '['), "nested"}}) {
    try {
      parse_skills(text, "file");
      ADD_FAILURE() << text.substr(0, 50);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tandem::eval::skills_test
