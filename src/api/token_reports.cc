// Tokens, their bytes and their log-probabilities as JSON.
#include "api/token_reports.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

constexpr double lowest_logprob = -9999.0;  // in place of minus infinity, which JSON has not (D.4)

double finite(float logprob) { return std::max(static_cast<double>(logprob), lowest_logprob); }

std::string printed(const ReportFormat& format, int32_t id) {
  if (format.tokens_as_ids) return fmt::format("token_id:{}", id);
  return format.tokenizer->decode(std::span(&id, 1));
}

Json entry(const ReportFormat& format, int32_t id, float logprob) {
  Json json;
  json["token"] = printed(format, id);
  json["logprob"] = finite(logprob);
  json["bytes"] = Json::array();
  for (const char byte : format.tokenizer->token_bytes(id)) {
    json["bytes"].push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  }
  return json;
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

Json chat_logprobs(const ReportFormat& format, std::span<const TokenReport> reports) {
  if (reports.empty()) return nullptr;
  Json content = Json::array();
  for (const TokenReport& report : reports) {
    Json json = entry(format, report.id, report.logprobs.chosen);
    json["top_logprobs"] = Json::array();
    for (int32_t i = 0; i < report.logprobs.size; ++i) {
      const auto& [id, logprob] = report.logprobs.best[static_cast<size_t>(i)];
      json["top_logprobs"].push_back(entry(format, id, logprob));
    }
    content.push_back(std::move(json));
  }
  Json json;
  json["content"] = std::move(content);
  return json;
}

Json completion_logprobs(const ReportFormat& format, std::span<const TokenReport> reports, int64_t& offset) {
  if (reports.empty()) return nullptr;
  Json json;
  for (const auto* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) json[name] = Json::array();
  for (const TokenReport& report : reports) {
    const std::string token = printed(format, report.id);
    json["tokens"].push_back(token);
    const auto move_offset = [&] {
      json["text_offset"].push_back(offset);
      if (report.is_shown) offset += characters(format.tokenizer->decode(std::span(&report.id, 1)));
    };
    if (!report.has_logprobs) {
      json["token_logprobs"].push_back(nullptr);
      json["top_logprobs"].push_back(nullptr);
      move_offset();
      continue;
    }
    json["token_logprobs"].push_back(finite(report.logprobs.chosen));
    Json best = Json::object();
    const auto add = [&best](const std::string& text, float logprob) {
      if (!best.contains(text)) best[text] = finite(logprob);  // they come in descending order
    };
    for (int32_t i = 0; i < report.logprobs.size; ++i) {
      const auto& [id, logprob] = report.logprobs.best[static_cast<size_t>(i)];
      add(printed(format, id), logprob);
    }
    add(token, report.logprobs.chosen);
    json["top_logprobs"].push_back(std::move(best));
    move_offset();
  }
  return json;
}

Json prompt_logprobs_json(const ReportFormat& format, std::span<const PromptReport> reports) {
  Json list = Json::array({nullptr});
  for (const PromptReport& report : reports) {
    Json tokens = Json::object();
    const auto add = [&](int32_t id, float logprob, int32_t rank) {
      Json& json = tokens[fmt::format("{}", id)];
      if (!json.is_null()) return;
      json["logprob"] = finite(logprob);
      json["rank"] = rank;
      json["decoded_token"] = printed(format, id);
    };
    add(report.id, report.logprobs.chosen, report.logprobs.rank);
    for (int32_t i = 0; i < report.logprobs.size; ++i) {
      const auto& [id, logprob] = report.logprobs.best[static_cast<size_t>(i)];
      add(id, logprob, i + 1);
    }
    list.push_back(std::move(tokens));
  }
  return list;
}

}  // namespace tandem::api
