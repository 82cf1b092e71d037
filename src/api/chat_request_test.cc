// Every field of D.2 that is read, its checks and defaults, and every field that is refused.
#include "api/chat_request.h"

#include <fmt/core.h>

#include <functional>

#include "api/errors.h"

namespace tandem::api::chat_request_test {
namespace {

ServedModel served() {
  ServedModel model;
  model.names = {"nano"};
  model.vocab_size = 2048;
  model.max_model_len = 1000;
  model.defaults.temperature = 0.7;
  model.defaults.top_p = 0.95;
  model.defaults.top_k = 40;
  model.defaults.min_p = 0.05;
  return model;
}

ChatRequest parse(const std::string& fields) {
  return parse_chat_request(JsonBody::parse(fmt::format("{{{}}}", fields)), served());
}

std::string refusal(const std::string& fields) {
  try {
    parse(fields);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.body();
  }
  ADD_FAILURE() << fields << " was accepted";
  return {};
}

void expect_refused(const std::string& fields, const std::string& param) {
  const std::string body = refusal(fields);
  EXPECT_NE(body.find(fmt::format(R"("param":"{}")", param)), std::string::npos) << fields << ": " << body;
  EXPECT_NE(body.find("\"type\":\"invalid_request_error\""), std::string::npos) << body;
}

void expect_not_supported(const std::string& fields, const std::string& param) {
  const std::string body = refusal(fields);
  EXPECT_NE(body.find("not supported yet"), std::string::npos) << fields << ": " << body;
  EXPECT_NE(body.find(fmt::format(R"("param":"{}","code":"unsupported_parameter")", param)), std::string::npos)
      << fields << ": " << body;
}

TEST(ChatRequest, DefaultsComeFromTheModel) {
  const ChatRequest request = parse("");
  EXPECT_EQ(request.model, "");
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_EQ(request.sampling.top_p, 0.95);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.05);
  EXPECT_FALSE(request.seed);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_EQ(request.min_tokens, 0);
  EXPECT_TRUE(request.stop.empty());
  EXPECT_TRUE(request.include_reasoning);
}

TEST(ChatRequest, ReadsEveryField) {
  const ChatRequest request =
      parse(R"("model":"m","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},)"
            R"("temperature":0,"top_p":0.5,"top_k":7,"min_p":0.1,"seed":-5,"max_tokens":9,"min_tokens":2.0,)"
            R"("stop":["a","b"],"stop_token_ids":[3,4],"include_stop_str_in_output":true,"ignore_eos":true,)"
            R"("include_reasoning":false)");
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage_stats);
  EXPECT_EQ(request.sampling.temperature, 0.0);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.seed, static_cast<uint64_t>(-5));
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 2);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_TRUE(request.include_stop_str_in_output && request.ignore_eos);
  EXPECT_FALSE(request.include_reasoning);
}

TEST(ChatRequest, Drafters) {
  using draft::Choice;
  EXPECT_FALSE(parse("").drafter);
  EXPECT_FALSE(parse(R"("drafter":null,"draft":null)").drafter);
  EXPECT_FALSE(parse(R"("draft":true)").drafter);  // the server's default
  EXPECT_EQ(parse(R"("draft":false)").drafter, Choice::none);
  const std::vector<std::pair<const char*, Choice>> names = {{"none", Choice::none},
                                                             {"copy", Choice::copy},
                                                             {"mtp", Choice::mtp},
                                                             {"dflash2", Choice::dflash2},
                                                             {"auto", Choice::automatic}};
  for (const auto& [name, choice] : names) {
    const std::string field = fmt::format(R"("drafter":"{}")", name);
    EXPECT_EQ(parse(field).drafter, choice) << name;
    const bool drafts = choice != Choice::none;
    EXPECT_EQ(parse(fmt::format(R"({},"draft":{})", field, drafts)).drafter, choice) << name;
    expect_refused(fmt::format(R"({},"draft":{})", field, !drafts), "draft");
  }
  for (const auto* value : {R"("eagle")", R"("")", R"("AUTO")", "true", "3", "[]", R"({"name":"mtp"})"})
    expect_refused(fmt::format(R"("drafter":{})", value), "drafter");
  EXPECT_NE(refusal(R"("drafter":"eagle")").find("none, copy, mtp, dflash2 or auto"), std::string::npos);
  for (const auto* value : {R"("false")", "0", "1", "{}"}) expect_refused(fmt::format(R"("draft":{})", value), "draft");
}

TEST(ChatRequest, NullsCountAsAbsent) {
  const ChatRequest request = parse(
      R"("model":null,"stream":null,"stream_options":null,"temperature":null,"top_p":null,"top_k":null,"seed":null,)"
      R"("max_tokens":null,"max_completion_tokens":null,"stop":null,"n":null,"logprobs":null,"tools":null,)"
      R"("tool_choice":null,"response_format":null,"logit_bias":null,"presence_penalty":null,"prompt_logprobs":null)");
  EXPECT_EQ(request.sampling.temperature, 0.7);
  EXPECT_FALSE(request.max_tokens);
}

TEST(ChatRequest, Aliases) {
  EXPECT_EQ(parse(R"("max_tokens":5,"max_completion_tokens":3)").max_tokens, 3);
  EXPECT_EQ(parse(R"("n_predict":4)").max_tokens, 4);
  EXPECT_FALSE(parse(R"("n_predict":-1)").max_tokens);
  EXPECT_EQ(parse(R"("top_k":-1)").sampling.top_k, 0);
  EXPECT_FALSE(parse(R"("seed":-1)").seed);
  EXPECT_EQ(parse(R"("stop":"x")").stop, std::vector<std::string>{"x"});
  EXPECT_FALSE(parse(R"("reasoning":{"exclude":true})").include_reasoning);
}

TEST(ChatRequest, LowTemperaturesAreRaisedOrGreedy) {
  EXPECT_EQ(parse(R"("temperature":0.000001)").sampling.temperature, 0.000001);  // greedy
  EXPECT_EQ(parse(R"("temperature":0.00001)").sampling.temperature, 0.01);
  EXPECT_EQ(parse(R"("temperature":0.005)").sampling.temperature, 0.01);
  EXPECT_EQ(parse(R"("temperature":2)").sampling.temperature, 2);
}

TEST(ChatRequest, WrongTypesNameTheField) {
  expect_refused(R"("model":1)", "model");
  expect_refused(R"("stream":"true")", "stream");
  expect_refused(R"("stream":1)", "stream");
  expect_refused(R"("stream_options":[])", "stream_options");
  expect_refused(R"("stream_options":{"include_usage":"yes"})", "stream_options.include_usage");
  expect_refused(R"("temperature":"0.5")", "temperature");
  expect_refused(R"("temperature":true)", "temperature");
  expect_refused(R"("top_k":1.5)", "top_k");
  expect_refused(R"("max_tokens":"5")", "max_tokens");
  expect_refused(R"("max_tokens":true)", "max_tokens");
  expect_refused(R"("seed":"1")", "seed");
  expect_refused(R"("stop":5)", "stop");
  expect_refused(R"("stop":["a",5])", "stop[1]");
  expect_refused(R"("stop_token_ids":5)", "stop_token_ids");
  expect_refused(R"("stop_token_ids":[true])", "stop_token_ids[0]");
  expect_refused(R"("n":"1")", "n");
  expect_refused(R"("logprobs":5)", "logprobs");
  expect_refused(R"("tool_choice":5)", "tool_choice");
  expect_refused(R"("ignore_eos":0)", "ignore_eos");
}

TEST(ChatRequest, Ranges) {
  expect_refused(R"("temperature":-0.1)", "temperature");
  expect_refused(R"("temperature":2.1)", "temperature");
  expect_refused(R"("top_p":0)", "top_p");
  expect_refused(R"("top_p":1.1)", "top_p");
  expect_refused(R"("top_k":-2)", "top_k");
  expect_refused(R"("min_p":1.5)", "min_p");
  expect_refused(R"("max_tokens":0)", "max_tokens");
  expect_refused(R"("max_completion_tokens":-1)", "max_completion_tokens");
  expect_refused(R"("max_completion_tokens":2,"max_tokens":0)", "max_tokens");
  expect_refused(R"("min_tokens":-1)", "min_tokens");
  expect_refused(R"("min_tokens":6,"max_tokens":5)", "min_tokens");
  expect_refused(R"("seed":9223372036854775808)", "seed");
  expect_refused(R"("stop":[""])", "stop");
  expect_refused(R"("stop_token_ids":[2048])", "stop_token_ids[0]");
  expect_refused(R"("stop_token_ids":[-1])", "stop_token_ids[0]");
  expect_refused(R"("n":0)", "n");
  expect_refused(R"("tool_choice":"sometimes")", "tool_choice");
  expect_refused(R"("presence_penalty":2.5)", "presence_penalty");
  expect_refused(R"("repetition_penalty":0)", "repetition_penalty");
}

TEST(ChatRequest, PenaltiesBiasesAndLists) {
  const ChatRequest request =
      parse(R"("presence_penalty":0.5,"frequency_penalty":-0.25,"repetition_penalty":1.1,)"
            R"("logit_bias":{"5":1.5,"7":-1000},"allowed_token_ids":[9,3,9],"bad_words":["a","b"])");
  EXPECT_EQ(request.sampling.presence_penalty, 0.5);
  EXPECT_EQ(request.sampling.frequency_penalty, -0.25);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  const std::vector<std::pair<int32_t, float>> biases{{5, 1.5f}, {7, -100.0f}};  // clamped
  EXPECT_EQ(request.sampling.logit_bias, biases);
  EXPECT_EQ(request.allowed_token_ids, (std::vector<int32_t>{3, 9}));
  EXPECT_EQ(request.bad_words, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(parse("").sampling.shapes_logits());
  expect_refused(R"("logit_bias":{"2048":1})", "logit_bias");
  expect_refused(R"("logit_bias":{"x":1})", "logit_bias");
  expect_refused(R"("logit_bias":{"5":"1"})", "logit_bias.5");
  expect_refused(R"("logit_bias":[1])", "logit_bias");
  expect_refused(R"("allowed_token_ids":[])", "allowed_token_ids");
  expect_refused(R"("allowed_token_ids":[2048])", "allowed_token_ids[0]");
  expect_refused(R"("bad_words":[""])", "bad_words");
  expect_refused(R"("bad_words":"a")", "bad_words");
  expect_refused(R"("frequency_penalty":-2.1)", "frequency_penalty");
  expect_refused(R"("repetition_penalty":1e-7)", "repetition_penalty");
  expect_refused(R"("presence_penalty":"1")", "presence_penalty");
}

TEST(ChatRequest, LogProbabilities) {
  EXPECT_EQ(parse("").logprobs, -1);
  EXPECT_EQ(parse(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(parse(R"("logprobs":true,"top_logprobs":20)").logprobs, 20);
  EXPECT_EQ(parse(R"("logprobs":false,"top_logprobs":0)").logprobs, -1);
  EXPECT_TRUE(parse(R"("return_tokens_as_token_ids":true)").tokens_as_ids);
  expect_refused(R"("top_logprobs":3)", "top_logprobs");
  expect_refused(R"("logprobs":false,"top_logprobs":3)", "top_logprobs");
  expect_refused(R"("logprobs":true,"top_logprobs":21)", "top_logprobs");
  expect_refused(R"("logprobs":true,"top_logprobs":-1)", "top_logprobs");
}

TEST(ChatRequest, ChoicesChunksAndPriority) {
  EXPECT_EQ(parse("").choices, 1);
  EXPECT_EQ(parse(R"("n":128)").choices, 128);
  expect_refused(R"("n":129)", "n");
  EXPECT_EQ(parse("").stream_interval, 1);
  EXPECT_EQ(parse(R"("stream_interval":5)").stream_interval, 5);
  expect_refused(R"("stream_interval":0)", "stream_interval");
  for (const auto* value : {"-3", "0", R"("background")", R"("batch")"}) parse(fmt::format(R"("priority":{})", value));
  for (const auto* value : {"1.5", "true", R"("high")", "[]"})
    expect_refused(fmt::format(R"("priority":{})", value), "priority");
  EXPECT_TRUE(parse(R"("echo":true)").echo);
  expect_refused(R"("echo":1)", "echo");
}

TEST(ChatRequest, UpTo64StopStrings) {
  std::string list = R"("0")";
  for (int i = 1; i < 64; ++i) list += fmt::format(R"(,"{}")", i);
  EXPECT_EQ(parse(fmt::format(R"("stop":[{}])", list)).stop.size(), 64u);
  expect_refused(fmt::format(R"("stop":[{},"64"])", list), "stop");
}

TEST(ChatRequest, WhatIsKeptOrRepeatedIsBounded) {
  expect_refused(fmt::format(R"("stop":["{:x>65537}"])", ""), "stop");
  EXPECT_EQ(parse(fmt::format(R"("stop":["{:x>65536}"])", "")).stop.size(), 1u);
  expect_refused(fmt::format(R"("model":"{:x>257}")", ""), "model");
  EXPECT_EQ(parse(R"("stop_token_ids":[9,3,9,3,3])").stop_token_ids, (std::vector<int32_t>{3, 9}));
}

TEST(ChatRequest, RefusesWhatWouldChangeTheReply) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"best_of", "2"},
      {"functions", R"([{"name":"f"}])"},
      {"use_beam_search", "true"},
      {"truncate_prompt_tokens", "5"},
      {"chat_template", R"("{{ x }}")"},
      {"skip_special_tokens", "false"},
      {"return_token_ids", "true"},
      {"modalities", R"(["text","audio"])"},
      {"mirostat", "2"},
      {"typical_p", "0.9"},
  };
  for (const auto& [name, value] : cases) expect_not_supported(fmt::format(R"("{}":{})", name, value), name);
}

TEST(ChatRequest, ToolChoices) {
  for (const auto* choice : {R"("tool_choice":"required")", R"("tool_choice":"any")"}) {
    EXPECT_TRUE(parse(choice).tool_required);
    EXPECT_EQ(parse(choice).tool_named, "");
  }
  for (const auto* choice : {R"("tool_choice":{"type":"function","function":{"name":"f"}})",
                             R"("tool_choice":{"type":"function","name":"f"})", R"("function_call":{"name":"f"})"}) {
    EXPECT_TRUE(parse(choice).tool_required) << choice;
    EXPECT_EQ(parse(choice).tool_named, "f") << choice;
  }
  EXPECT_FALSE(parse(R"("tool_choice":"auto")").tool_required);
  expect_refused(R"("tool_choice":{"type":"function"})", "tool_choice.function.name");
  expect_refused(R"("tool_choice":{"type":"tool","name":"f"})", "tool_choice.type");
  expect_not_supported(R"("tool_choice":{"type":"allowed_tools"})", "tool_choice");
  expect_refused(R"("tool_choice":"required","function_call":"none")", "function_call");
}

TEST(ChatRequest, ThinkingBudgets) {
  EXPECT_EQ(parse("").thinking_budget, -1);
  for (const auto* name : {"thinking_token_budget", "thinking_budget", "reasoning_budget", "thinking_budget_tokens"}) {
    EXPECT_EQ(parse(fmt::format(R"("{}":100)", name)).thinking_budget, 100) << name;
    EXPECT_EQ(parse(fmt::format(R"("{}":-1)", name)).thinking_budget, -1) << name;
    expect_refused(fmt::format(R"("{}":-2)", name), name);
    expect_refused(fmt::format(R"("{}":true)", name), name);
  }
  EXPECT_EQ(parse(R"("reasoning":{"max_tokens":5})").thinking_budget, 5);
  EXPECT_EQ(parse(R"("thinking_budget":0,"reasoning":{"max_tokens":5})").thinking_budget, 0);
}

TEST(ChatRequest, RepetitionDetection) {
  EXPECT_FALSE(parse("").repetition.is_on());
  EXPECT_FALSE(parse(R"("repetition_detection":{"min_count":2})").repetition.is_on());
  const auto limit =
      parse(R"("repetition_detection":{"max_pattern_size":20,"min_pattern_size":3,"min_count":4})").repetition;
  EXPECT_TRUE(limit.is_on());
  EXPECT_EQ(limit.max_size, 20);
  EXPECT_EQ(limit.min_size, 3);
  EXPECT_EQ(limit.min_count, 4);
  expect_refused(R"("repetition_detection":{"max_pattern_size":2,"min_pattern_size":3})",
                 "repetition_detection.min_pattern_size");
  expect_refused(R"("repetition_detection":{"max_pattern_size":2,"min_count":1})", "repetition_detection.min_count");
  expect_refused(R"("repetition_detection":{"max_pattern_size":2000})", "repetition_detection.max_pattern_size");
}

TEST(ChatRequest, NeutralValuesOfRefusedFieldsPass) {
  parse(R"("n":1,"best_of":1,"logprobs":false,"top_logprobs":0,"logit_bias":{},"tool_choice":"auto","functions":[],)"
        R"("function_call":"none","response_format":{"type":"text"},"presence_penalty":0,"frequency_penalty":0.0,)"
        R"("repetition_penalty":1,"bad_words":[],"use_beam_search":false,"echo":false,"thinking_token_budget":-1,)"
        R"("skip_special_tokens":true,"modalities":["text"],"mirostat":0,"typical_p":1.0,"grammar":"")");
  parse(R"("tool_choice":"none")");
}

TEST(ChatRequest, UnknownFieldsAreIgnored) {
  parse(R"("no_such_field":{"deep":[1]},"user":"x","metadata":{"a":"b"},"priority":"background")");
}

}  // namespace
}  // namespace tandem::api::chat_request_test
