// Runs and prints the skill checks.
#include "eval/skills.h"

#include <fmt/core.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "engine/run_request.h"

namespace tandem::eval {
namespace {

using Json = nlohmann::ordered_json;  // tool definitions keep their key order

// Depth-bounded: the parser's callback sees every container before it is entered.
Json parse_bounded(std::string_view text, const std::string& where) {
  const auto bound = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > 128) throw Error(ErrorCode::bad_file, where, "nested deeper than 128 levels");
    return true;
  };
  try {
    return Json::parse(text, bound);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::bad_file, where, "is not JSON", "a list of skills");
  }
}

std::string text_of(const Json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_string())
    throw Error(ErrorCode::bad_file, where + "." + key, found == entry.end() ? "missing" : "is no string", "a string");
  return found->get<std::string>();
}

Skill parse_skill(const Json& entry, const std::string& where) {
  if (!entry.is_object()) throw Error(ErrorCode::bad_file, where, "is no object", "a skill");
  Skill skill;
  skill.name = text_of(entry, "skill", where);
  skill.expected_text = text_of(entry, "expected_text", where);
  Json body = Json::object();
  for (const char* key : {"messages", "tools", "reasoning_effort"})
    if (const auto found = entry.find(key); found != entry.end()) body[key] = *found;
  skill.conversation = body.dump();
  try {
    (void)chat::parse_conversation(skill.conversation);
  } catch (const Error& e) {
    throw Error(ErrorCode::bad_file, where + "." + e.where(), e.found(), e.expected());
  }
  return skill;
}

SkillResult run_skill(engine::Engine& engine, const text::Tokenizer& tokenizer, const std::vector<int32_t>& stop_ids,
                      const Skill& skill) {
  const auto prompt = chat::render(chat::parse_conversation(skill.conversation));
  engine::Request request;
  request.id = skill.name;
  request.prompt_ids = tokenizer.encode(prompt.segments);
  request.sampling.temperature = 0;
  // Twice the expected length: a reply that goes on is wrong, and there is no need to see all of it.
  request.max_tokens = 2 * std::ssize(tokenizer.encode(skill.expected_text, text::AddedTokens::recognise)) + 16;
  request.stop_token_ids = stop_ids;

  SkillResult result;
  result.name = skill.name;
  result.expected = skill.expected_text;
  result.prompt_tokens = std::ssize(request.prompt_ids);
  const auto reply = engine::run_request(engine, std::move(request));
  result.completion_tokens = std::ssize(reply.ids) + (reply.stop_token >= 0 ? 1 : 0);
  result.text = tokenizer.decode(reply.ids, true);
  result.exact = reply.reason == engine::FinishReason::stop && result.text == skill.expected_text;
  return result;
}

struct SkillCount {
  int64_t exact = 0, all = 0;
};

std::map<std::string, SkillCount> by_skill(const SkillsReport& report) {
  std::map<std::string, SkillCount> counts;
  for (const auto& result : report.results) {
    auto& count = counts[result.name];
    count.exact += result.exact ? 1 : 0;
    ++count.all;
  }
  return counts;
}

std::string comparison_text(const SkillsReport& report, const ComparedSkills& other) {
  const SkillsComparison counts = compare_skills(report, other.report);
  std::string out = fmt::format(
      "exact: both {}, only this model {}, only the other {}, neither {}; the same reply {} of {}\n", counts.both,
      counts.only_this, counts.only_other, counts.neither, counts.same_text, report.results.size());
  for (size_t i = 0; i < report.results.size(); ++i) {
    const SkillResult &mine = report.results[i], &others = other.report.results[i];
    if (mine.exact == others.exact) continue;
    out += fmt::format("  {}: entry {} ({})\n", mine.exact ? "only this model" : "only the other", i, mine.name);
  }
  return out;
}

Json comparison_json(const SkillsReport& report, const ComparedSkills& other) {
  const SkillsComparison counts = compare_skills(report, other.report);
  Json json = {{"model", other.model},          {"exact", other.report.exact()},   {"both", counts.both},
               {"only_this", counts.only_this}, {"only_other", counts.only_other}, {"neither", counts.neither},
               {"same_text", counts.same_text}, {"seconds", other.report.seconds}};
  json["skills"] = Json::object();
  for (const auto& [name, count] : by_skill(other.report))
    json["skills"][name] = {{"exact", count.exact}, {"of", count.all}};
  json["differences"] = Json::array();
  for (size_t i = 0; i < report.results.size(); ++i) {
    const SkillResult &mine = report.results[i], &others = other.report.results[i];
    if (mine.text == others.text && mine.exact == others.exact) continue;
    json["differences"].push_back({{"entry", i},
                                   {"skill", mine.name},
                                   {"exact", mine.exact},
                                   {"text", mine.text},
                                   {"other_exact", others.exact},
                                   {"other_text", others.text}});
  }
  return json;
}

}  // namespace

std::vector<Skill> parse_skills(std::string_view json, const std::string& where) {
  const Json list = parse_bounded(json, where);
  if (!list.is_array() || list.empty())
    throw Error(ErrorCode::bad_file, where, "is no list or empty", "a list of skills");
  std::vector<Skill> skills;
  for (size_t i = 0; i < list.size(); ++i) skills.push_back(parse_skill(list[i], fmt::format("{}[{}]", where, i)));
  return skills;
}

std::vector<Skill> read_skills(const std::filesystem::path& path) {
  return parse_skills(MappedFile::open(path).text(), path.string());
}

int64_t SkillsReport::exact() const {
  int64_t count = 0;
  for (const auto& result : results) count += result.exact ? 1 : 0;
  return count;
}

SkillsReport run_skills(engine::Engine& engine, const text::Tokenizer& tokenizer, const std::vector<int32_t>& stop_ids,
                        const std::vector<Skill>& skills, const std::function<void(int64_t, int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  SkillsReport report;
  int64_t exact = 0;
  for (const auto& skill : skills) {
    report.results.push_back(run_skill(engine, tokenizer, stop_ids, skill));
    exact += report.results.back().exact ? 1 : 0;
    if (progress) progress(std::ssize(report.results), exact);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

SkillsComparison compare_skills(const SkillsReport& report, const SkillsReport& other) {
  SkillsComparison comparison;
  if (report.results.size() != other.results.size())
    throw Error(ErrorCode::internal, "skills", "reports of other prompts are compared");
  for (size_t i = 0; i < report.results.size(); ++i) {
    const SkillResult &mine = report.results[i], &others = other.results[i];
    if (mine.name != others.name || mine.expected != others.expected)
      throw Error(ErrorCode::internal, "skills", "reports of other prompts are compared");
    int64_t& count = mine.exact ? (others.exact ? comparison.both : comparison.only_this)
                                : (others.exact ? comparison.only_other : comparison.neither);
    ++count;
    comparison.same_text += mine.text == others.text ? 1 : 0;
  }
  return comparison;
}

std::string skills_text(const SkillsReport& report, const ComparedSkills* other) {
  const auto others = other != nullptr ? by_skill(other->report) : std::map<std::string, SkillCount>();
  const auto line = [other](const std::string& name, int64_t exact, int64_t of, int64_t others_exact) {
    const std::string beside = other != nullptr ? fmt::format(" {:>9}", others_exact) : "";
    return fmt::format("{:<24} {:>5} {:>5}{}", name, exact, of, beside);
  };
  std::string out = fmt::format("{:<24} {:>5} {:>5}{}\n", "skill", "exact", "of",
                                other != nullptr ? "   the other: " + other->model : "");
  for (const auto& [name, count] : by_skill(report))
    out += line(name, count.exact, count.all, other != nullptr ? others.at(name).exact : 0) + "\n";
  out += line("all", report.exact(), std::ssize(report.results), other != nullptr ? other->report.exact() : 0);
  out += fmt::format("   {:.1f} s\n", report.seconds + (other != nullptr ? other->report.seconds : 0));
  if (other != nullptr) out += comparison_text(report, *other);
  for (size_t i = 0; i < report.results.size(); ++i) {
    const auto& result = report.results[i];
    if (result.exact) continue;
    out += fmt::format("\nmiss: entry {} ({})\n  expected  {}\n  got       {}\n", i, result.name, result.expected,
                       result.text);
  }
  return out;
}

std::string skills_json(const SkillsReport& report, int64_t wanted, const ComparedSkills* other) {
  Json json;
  json["schema"] = "tandem.skills/1";
  json["exact"] = report.exact();
  json["of"] = report.results.size();
  json["wanted"] = wanted;
  json["passed"] = report.exact() >= wanted;
  json["seconds"] = report.seconds;
  json["skills"] = Json::object();
  for (const auto& [name, count] : by_skill(report)) json["skills"][name] = {{"exact", count.exact}, {"of", count.all}};
  json["misses"] = Json::array();
  for (size_t i = 0; i < report.results.size(); ++i) {
    const auto& result = report.results[i];
    if (!result.exact)
      json["misses"].push_back(
          {{"entry", i}, {"skill", result.name}, {"expected", result.expected}, {"text", result.text}});
  }
  json["compared"] = other != nullptr ? comparison_json(report, *other) : Json();
  return json.dump(2) + "\n";
}

}  // namespace tandem::eval
