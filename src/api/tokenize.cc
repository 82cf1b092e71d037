// Ids and texts as JSON.
#include "api/tokenize.h"

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "api/chat_prompt.h"
#include "api/errors.h"
#include "api/json_body.h"
#include "api/json_text.h"
#include "api/raw_prompt.h"
#include "chat/render.h"
#include "text/utf8.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

namespace {

std::string model_of(const JsonBody& body, const ServedModel& model, const ChatRules& rules) {
  GenerationFields fields;
  fields.model = body.string("model").value_or("");
  check_model_name(fields, model, rules);
  return fields.model;
}

chat::Prompt render_chat(const JsonBody& body, std::string_view text, const ServedModel& model,
                         const ChatRules& rules) {
  return chat::render(read_conversation(body, text, model_of(body, model, rules), model));
}

// A part of a character has no text of its own: llama-server gives its bytes.
Json piece(std::string_view bytes) {
  if (!text::first_invalid_utf8(bytes)) return std::string(bytes);
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
  return list;
}

std::string tokenize_content(const JsonBody& body, const text::Tokenizer& tokenizer) {
  const std::string content = *body.string("content");
  const bool add_special = body.boolean("add_special").value_or(false);
  const bool parse_special = body.boolean("parse_special").value_or(true);
  std::vector<int32_t> ids = encode_raw_prompt(tokenizer, parse_special ? content : "", add_special);
  if (!parse_special) {
    const auto literal = tokenizer.encode(content, text::AddedTokens::literal);
    ids.insert(ids.end(), literal.begin(), literal.end());
  }
  Json tokens = Json::array();
  const bool with_pieces = body.boolean("with_pieces").value_or(false);
  for (const int32_t id : ids) {
    if (with_pieces) {
      Json entry;
      entry["id"] = id;
      entry["piece"] = piece(tokenizer.token_bytes(id));
      tokens.push_back(std::move(entry));
    } else {
      tokens.push_back(id);
    }
  }
  Json json;
  json["tokens"] = std::move(tokens);
  return text_of(json);
}

std::vector<int32_t> ids_of(const JsonBody& body, std::string_view text, const ServedModel& model,
                            const ChatRules& rules) {
  const text::Tokenizer& tokenizer = *model.tokenizer;
  if (body.has("messages")) {
    if (body.has("prompt")) throw invalid_field("prompt", "excludes messages");
    (void)body.boolean("add_special_tokens");  // the template has them already
    return tokenizer.encode(render_chat(body, text, model, rules).segments);
  }
  (void)model_of(body, model, rules);
  const auto prompt = body.string("prompt");
  if (!prompt) throw invalid_field("prompt", "missing; expected prompt, messages or content");
  return encode_raw_prompt(tokenizer, *prompt, body.boolean("add_special_tokens").value_or(true));
}

}  // namespace

std::string tokenize(std::string_view text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(text);
  if (body.has("content")) return tokenize_content(body, *model.tokenizer);
  const bool with_texts = body.boolean("return_token_strs").value_or(false);
  const std::vector<int32_t> ids = ids_of(body, text, model, rules);
  Json json;
  json["count"] = ids.size();
  json["max_model_len"] = model.max_model_len;
  json["tokens"] = ids;
  json["token_strs"] = nullptr;
  if (with_texts) {
    json["token_strs"] = Json::array();
    for (const int32_t& id : ids) json["token_strs"].push_back(model.tokenizer->decode(std::span(&id, 1)));
  }
  return text_of(json);
}

std::string detokenize(std::string_view text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(text);
  (void)model_of(body, model, rules);
  const auto tokens = body.integers("tokens", 0, model.tokenizer->size() - 1);
  if (!tokens) throw invalid_field("tokens", "missing; expected a list of token ids");
  const std::vector<int32_t> ids(tokens->begin(), tokens->end());
  Json json;
  json["prompt"] = model.tokenizer->decode(ids);
  json["content"] = json["prompt"];
  return text_of(json);
}

std::string apply_template(std::string_view text, const ServedModel& model, const ChatRules& rules) {
  const JsonBody body = JsonBody::parse(text);
  Json json;
  json["prompt"] = render_chat(body, text, model, rules).text();
  return text_of(json);
}

}  // namespace tandem::api
