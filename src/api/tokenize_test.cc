// Both servers' forms of /tokenize and /detokenize, and the rendered prompt.
#include "api/tokenize.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "api/errors.h"
#include "api/fakes.h"

namespace tandem::api::tokenize_test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

class TokenizeTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new FakeModel(TANDEM_SOURCE_DIR "/models/nano"); }
  static void TearDownTestSuite() { delete model_; }
  static Json of(const Json& body) { return Json::parse(tokenize(body.dump(), model_->served, {})); }
  template <typename Call>
  static std::string refusal(Call call) {
    try {
      call();
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      return error.param();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.where();
    }
    return "nothing";
  }
  static inline FakeModel* model_ = nullptr;
};

TEST_F(TokenizeTest, Prompts) {
  const Ids plain = model_->ids("What is <think> 2?");
  Ids whole = model_->ids("[gMASK]<sop>What is <think> 2?");
  const Json reply = of({{"prompt", "What is <think> 2?"}});
  EXPECT_EQ(reply["tokens"], whole);
  EXPECT_EQ(reply["count"], whole.size());
  EXPECT_EQ(reply["max_model_len"], 1000);
  EXPECT_EQ(reply["token_strs"], nullptr);
  EXPECT_EQ(of({{"prompt", "[gMASK]<sop>What is <think> 2?"}})["tokens"], whole);  // not twice
  EXPECT_EQ(of({{"prompt", "What is <think> 2?"}, {"add_special_tokens", false}})["tokens"], plain);
  EXPECT_EQ(of({{"prompt", ""}, {"add_special_tokens", false}})["count"], 0);
  const Json strs =
      of({{"prompt", "a<think>"}, {"add_special_tokens", false}, {"return_token_strs", true}})["token_strs"];
  EXPECT_EQ(strs, Json({"a", "<think>"}));
}

TEST_F(TokenizeTest, Messages) {
  const Json messages = {{{"role", "user"}, {"content", "Say <think>"}}};
  const std::string text =
      Json::parse(apply_template(Json{{"messages", messages}}.dump(), model_->served, {}))["prompt"];
  EXPECT_EQ(text, "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Say <think><|assistant|><think>");
  const Json reply = of({{"messages", messages}});
  EXPECT_EQ(model_->tokenizer.decode(reply["tokens"].get<Ids>()), text);
  // A marker that the user wrote is no marker (B.6).
  EXPECT_GT(reply["count"], model_->ids(text).size());
  const Json open = of({{"messages", messages}, {"add_generation_prompt", false}});
  EXPECT_EQ(model_->tokenizer.decode(open["tokens"].get<Ids>()),
            "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Say <think>");
  const Json off = of({{"messages", messages}, {"model", "nano-nothink"}});
  EXPECT_EQ(model_->tokenizer.decode(off["tokens"].get<Ids>()),
            "[gMASK]<sop><|user|>Say <think><|assistant|><think></think>");
}

TEST_F(TokenizeTest, Contents) {
  EXPECT_EQ(of({{"content", "a<think>"}}), Json({{"tokens", model_->ids("a<think>")}}));
  EXPECT_EQ(of({{"content", "a"}, {"add_special", true}})["tokens"], model_->ids("[gMASK]<sop>a"));
  const Ids literal = model_->tokenizer.encode("<think>", text::AddedTokens::literal);
  EXPECT_EQ(of({{"content", "<think>"}, {"parse_special", false}})["tokens"], literal);
  const Json pieces = of({{"content", "a\xF0\x9F\xA6\x84"}, {"with_pieces", true}})["tokens"];
  ASSERT_GT(pieces.size(), 1u);
  EXPECT_EQ(pieces[0], Json({{"id", model_->ids("a")[0]}, {"piece", "a"}}));
  std::string bytes;
  for (const Json& entry : pieces) {
    if (entry["piece"].is_string())
      bytes += entry["piece"].get<std::string>();
    else
      for (const int byte : entry["piece"].get<std::vector<int>>()) bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(bytes, "a\xF0\x9F\xA6\x84");
}

TEST_F(TokenizeTest, Detokenize) {
  const std::string text = "[gMASK]<sop>What is 2?<|user|>";
  const Json reply = Json::parse(detokenize(Json{{"tokens", model_->ids(text)}}.dump(), model_->served, {}));
  EXPECT_EQ(reply, Json({{"prompt", text}, {"content", text}}));
  EXPECT_EQ(Json::parse(detokenize(R"({"tokens":[]})", model_->served, {}))["prompt"], "");
}

TEST_F(TokenizeTest, Refusals) {
  const auto tokenized = [](const std::string& body) {
    return refusal([&] { (void)tokenize(body, model_->served, {}); });
  };
  const auto detokenized = [](const std::string& body) {
    return refusal([&] { (void)detokenize(body, model_->served, {}); });
  };
  EXPECT_EQ(tokenized("{}"), "prompt");
  EXPECT_EQ(tokenized(R"({"prompt":5})"), "prompt");
  EXPECT_EQ(tokenized(R"({"prompt":"x","messages":[{"role":"user","content":"x"}]})"), "prompt");
  EXPECT_EQ(tokenized(R"({"messages":[]})"), "messages");
  EXPECT_EQ(tokenized(R"({"content":5})"), "content");
  EXPECT_EQ(tokenized(R"({"content":"x","with_pieces":1})"), "with_pieces");
  EXPECT_EQ(tokenized(R"({"prompt":"x","return_token_strs":"yes"})"), "return_token_strs");
  EXPECT_EQ(detokenized("{}"), "tokens");
  EXPECT_EQ(detokenized(R"({"tokens":"x"})"), "tokens");
  EXPECT_EQ(detokenized(R"({"tokens":[-1]})"), "tokens[0]");
  EXPECT_EQ(detokenized(fmt::format(R"({{"tokens":[{}]}})", model_->tokenizer.size())), "tokens[0]");
  EXPECT_EQ(refusal([] { (void)apply_template(R"({"messages":[{"role":"king"}]})", model_->served, {}); }),
            "messages[0].role");
  EXPECT_THROW((void)tokenize(R"({"prompt":"x","model":"gpt-9"})", model_->served, {true, false}), ApiError);
}

}  // namespace
}  // namespace tandem::api::tokenize_test
