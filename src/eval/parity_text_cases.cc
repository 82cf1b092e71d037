// The golden cases that are ids and strings: greedy continuations, tokenizer, chat template.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "chat/render.h"
#include "eval/parity_case.h"
#include "forward/step.h"
#include "forward/text_model.h"
#include "text/tokenizer.h"

namespace tandem::eval {
namespace {

using Json = nlohmann::ordered_json;

Json read_json(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::bad_file, file.string(), "cannot be read");
  try {
    return Json::parse(in);
  } catch (const std::exception& e) {
    throw Error(ErrorCode::bad_file, file.string(), e.what(), "JSON");
  }
}

void tally(Count& count, bool equal, const std::string& where) {
  ++count.total;
  if (equal) {
    ++count.equal;
  } else if (count.first_difference.empty()) {
    count.first_difference = where;
  }
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Greedy ids after `prompt`, as many as `wanted` has.
std::vector<int32_t> greedy(forward::TextModel& text, const std::vector<int32_t>& prompt, size_t wanted,
                            int32_t pages) {
  forward::Step step = forward::single_stream_step(prompt, 0, pages);
  step.logit_rows = {static_cast<int32_t>(prompt.size()) - 1};
  text.run(step);
  std::vector<int32_t> out{argmax(text.logits())};
  while (out.size() < wanted) {
    step = forward::single_stream_step(std::span(&out.back(), 1), static_cast<int64_t>(prompt.size() + out.size()) - 1,
                                       pages);
    step.logit_rows = {0};
    text.run(step);
    out.push_back(argmax(text.logits()));
  }
  return out;
}

// Ids are compared up to the stop token, or up to the first step whose two best logits lie closer than 0.01.
size_t comparable_steps(const Json& entry) {
  const size_t steps = entry.at("output_ids").size();
  size_t end = entry.at("stop_index").is_null() ? steps : std::min(steps, entry.at("stop_index").get<size_t>() + 1);
  for (size_t i = 0; i < end; ++i) {
    if (entry.at("margins").at(i).get<double>() < 0.01) end = i;
  }
  return end;
}

template <typename Body>
CaseReport json_case(const std::string& model, const std::filesystem::path& file, const char* what, const Body& body) {
  CaseReport report;
  report.model = model;
  report.name = file.stem().string();
  Count count;
  count.name = what;
  const Json entries = read_json(file);
  try {
    for (size_t i = 0; i < entries.size(); ++i) body(entries[i], count, fmt::format("entry {}", i));
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::bad_file, file.string(), e.what());
  }
  report.counts.push_back(count);
  return report;
}

}  // namespace

CaseReport run_greedy(const ParityModel& model, const std::filesystem::path& file) {
  const int32_t pages = 8, max_rows = 1536;
  forward::TextModel text(*model.shape, *model.weights, *model.threads,
                          forward::Capacity{.pages = pages + 1, .max_rows = max_rows, .max_logit_rows = 1},
                          model.mutation);
  return json_case(model.name, file, "generated ids", [&](const Json& entry, Count& count, const std::string& where) {
    const auto prompt = entry.at("prompt_ids").get<std::vector<int32_t>>();
    const auto expected = entry.at("output_ids").get<std::vector<int32_t>>();
    const size_t end = comparable_steps(entry);
    if (prompt.empty() || end == 0 || prompt.size() + end > static_cast<size_t>(max_rows)) {
      throw Error(ErrorCode::bad_file, file.string() + ": " + where, "a prompt or reply of unsupported length");
    }
    const std::vector<int32_t> got = greedy(text, prompt, end, pages);
    for (size_t i = 0; i < end; ++i)
      tally(count, got[i] == expected[i], fmt::format("{}, step {}: {} for {}", where, i, got[i], expected[i]));
  });
}

CaseReport run_tokenizer_cases(const std::string& model, const std::filesystem::path& model_folder,
                               const std::filesystem::path& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(model_folder);
  return json_case(model, file, "tokenizer ids", [&](const Json& entry, Count& count, const std::string& where) {
    const auto ids = entry.at("ids").get<std::vector<int32_t>>();
    const bool encoded = tokenizer.encode(entry.at("text").get<std::string>(), text::AddedTokens::recognise) == ids;
    tally(count, encoded && tokenizer.decode(ids) == entry.at("decoded").get<std::string>(), where);
  });
}

CaseReport run_template_cases(const std::string& model, const std::filesystem::path& model_folder,
                              const std::filesystem::path& file) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(model_folder);
  return json_case(model, file, "template strings", [&](const Json& entry, Count& count, const std::string& where) {
    const chat::Prompt prompt = chat::render(chat::parse_conversation(entry.at("case").dump(), false));
    const bool same_ids = tokenizer.encode(prompt.segments) == entry.at("ids").get<std::vector<int32_t>>();
    tally(count, prompt.text() == entry.at("text").get<std::string>() && same_ids, where);
  });
}

}  // namespace tandem::eval
