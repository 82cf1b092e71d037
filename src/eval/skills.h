// The skill checks of a model: prompts whose greedy answer is known, each right or wrong as a whole
// (models/nano/skills.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace tandem::eval {

struct Skill {
  std::string name;
  std::string conversation;   // chat body: messages, tools, reasoning_effort
  std::string expected_text;  // whole reply up to the stop token, reasoning included
};

// A JSON list of {skill, reasoning_effort, tools?, messages, expected_text, …}. Throws Error(bad_file) naming the
// entry.
std::vector<Skill> parse_skills(std::string_view json, const std::string& where);
std::vector<Skill> read_skills(const std::filesystem::path& path);

struct SkillResult {
  std::string name;
  bool exact = false;
  std::string expected, text;  // text: what the model said
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

struct SkillsReport {
  std::vector<SkillResult> results;  // in the order of the file
  double seconds = 0;

  int64_t exact() const;
};

// Runs every prompt greedily through the engine; a reply is exact when it stopped by itself and its text, special
// tokens left out, is expected_text. `stop_ids`: the model's own. `progress` (may be empty) is called after each.
// Throws Error from the engine.
SkillsReport run_skills(engine::Engine& engine, const text::Tokenizer& tokenizer, const std::vector<int32_t>& stop_ids,
                        const std::vector<Skill>& skills,
                        const std::function<void(int64_t done, int64_t exact)>& progress);

// Another model's replies to the same prompts, beside those of a report.
struct ComparedSkills {
  std::string model;  // name, for people
  SkillsReport report;
};

// Prompts by who answered them exactly, and those with the same reply, exact or not.
struct SkillsComparison {
  int64_t both = 0, only_this = 0, only_other = 0, neither = 0, same_text = 0;
};
// Throws Error(internal) unless both are of the same prompts.
SkillsComparison compare_skills(const SkillsReport& report, const SkillsReport& other);

// A table by skill, then every miss with both texts; with `other`, its counts too and every prompt that one of them
// alone got right.
std::string skills_text(const SkillsReport& report, const ComparedSkills* other = nullptr);
// One object, first key "schema": "tandem.skills/1".
std::string skills_json(const SkillsReport& report, int64_t wanted, const ComparedSkills* other = nullptr);

}  // namespace tandem::eval
