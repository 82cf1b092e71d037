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

// A table by skill, then every miss with both texts.
std::string skills_text(const SkillsReport& report);
// One object, first key "schema": "tandem.skills/1".
std::string skills_json(const SkillsReport& report, int64_t wanted);

}  // namespace tandem::eval
