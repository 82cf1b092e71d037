// The bundled model through the whole engine against the reference's greedy replies, and what a folder may say about
// sampling.
#include "cli/loaded_model.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/run_request.h"

namespace tandem::cli::loaded_model_test {
namespace {

const std::filesystem::path source = TANDEM_SOURCE_DIR;

LoadOptions nano(int32_t chunk = 0, int threads = 0) {
  LoadOptions options;
  options.model = source / "models/nano";
  options.kv_cache_memory = 16 << 20;
  options.max_num_batched_tokens = chunk;
  options.threads = threads;
  return options;
}

nlohmann::json golden_cases() {
  std::ifstream file(source / "tests/golden/nano/greedy.json");
  return nlohmann::json::parse(file);
}

engine::Request request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  engine::Request request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

TEST(LoadedModel, TheArithmeticIsPartOfTheKeyAndChoosesTheCache) {
  LoadOptions options = nano();
  LoadedModel exact(options);
  options.compute = "bf16";
  LoadedModel rounded(options);
  EXPECT_EQ(exact.plan().capacity.compute, forward::Compute::f32);
  EXPECT_EQ(exact.plan().capacity.cache_type, forward::CacheType::f32);
  EXPECT_EQ(rounded.plan().capacity.compute, forward::Compute::bf16);
  EXPECT_EQ(rounded.plan().capacity.cache_type, forward::CacheType::bf16);
  EXPECT_NE(exact.calibration_key().find("; compute f32; cache f32;"), std::string::npos) << exact.calibration_key();
  EXPECT_NE(rounded.calibration_key().find("; compute bf16; cache bf16;"), std::string::npos);
  EXPECT_EQ(cache_type("f32", forward::Compute::bf16), forward::CacheType::f32);
  options.compute = "fp16";
  EXPECT_THROW(check_load(options), Error);
  EXPECT_THROW(LoadedModel{options}, Error);
}

TEST(LoadedModel, GreedyRepliesAreTheReferences) {
  LoadedModel model(nano());
  const auto cases = golden_cases();
  ASSERT_EQ(cases.size(), 14u);
  int64_t compared = 0;
  for (const auto& golden : cases) {
    const auto expected = golden.at("output_ids").get<std::vector<int32_t>>();
    const auto margins = golden.at("margins").get<std::vector<double>>();
    ASSERT_EQ(expected.size(), 64u);
    // tests/golden/README.md: past the stop token, or after a step with a margin below 0.01, another path is
    // legitimate.
    const size_t stop = golden.at("stop_index").is_null() ? 63 : golden.at("stop_index").get<size_t>();
    const auto ids = engine::run_request(model.engine(), request_of(golden.at("prompt_ids").get<std::vector<int32_t>>(),
                                                                    static_cast<int64_t>(stop) + 1))
                         .ids;
    ASSERT_EQ(ids.size(), stop + 1);
    for (size_t i = 0; i <= stop && margins.at(i) >= 0.01; ++i, ++compared)
      ASSERT_EQ(ids[i], expected[i]) << golden.at("prompt") << " token " << i << " margin " << margins[i];
    if (golden.at("stop_index").is_null()) continue;
    EXPECT_EQ(model.tokenizer().decode(std::span(ids).first(stop), true), golden.at("output_text").get<std::string>());
  }
  EXPECT_GT(compared, 200);
}

TEST(LoadedModel, ChunksAndThreadsDoNotChangeASampledReply) {
  const auto prompt = golden_cases().at(2).at("prompt_ids").get<std::vector<int32_t>>();
  auto request = request_of(prompt, 24);
  request.sampling = {.temperature = 1.3, .top_k = 0, .top_p = 0.98, .min_p = 0.0, .seed = 5};
  std::vector<std::vector<int32_t>> replies;
  for (const auto& [chunk, threads] : {std::pair{512, 1}, {512, 2}, {20, 2}, {7, 1}}) {
    LoadedModel model(nano(chunk, threads));
    EXPECT_EQ(model.threads(), threads);
    for (int again = 0; again < (chunk == 20 ? 2 : 1); ++again)
      replies.push_back(engine::run_request(model.engine(), request).ids);
  }
  for (const auto& reply : replies) EXPECT_EQ(reply, replies[0]);
}

TEST(LoadedModel, KnowsItsNameDefaultsAndPlan) {
  LoadedModel model(nano());
  EXPECT_EQ(model.name(), "nano");
  const auto served = model.served();
  EXPECT_EQ(served.names, std::vector<std::string>{"nano"});
  EXPECT_EQ(model.served({"a", "b"}).names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(served.defaults.temperature, 1.0);
  EXPECT_EQ(served.defaults.top_p, 0.95);
  EXPECT_EQ(served.defaults.top_k, 0);
  EXPECT_EQ(served.defaults.eos_token_ids, (std::vector<int32_t>{1988, 1995, 1997}));
  EXPECT_EQ(served.vocab_size, 2048);
  EXPECT_EQ(served.max_model_len, model.plan().max_model_len);
  EXPECT_LE(model.plan().capacity.pages * model.plan().page_bytes, 16 << 20);
  EXPECT_GT((model.plan().capacity.pages + 1) * model.plan().page_bytes, 16 << 20);
}

// A folder with one generation_config.json.
class GenerationConfig : public testing::Test {
 protected:
  GenerationConfig() : folder_(std::filesystem::temp_directory_path() / ("tandem-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    shape_.vocab_size = 100;
    shape_.eos_token_ids = {7, 8};
  }
  ~GenerationConfig() override { std::filesystem::remove_all(folder_); }
  api::GenerationDefaults read(const std::string& text) {
    std::ofstream(folder_ / "generation_config.json") << text;
    return read_generation_defaults(folder_, shape_);
  }
  std::filesystem::path folder_;
  model::Shape shape_;
};

TEST_F(GenerationConfig, ValuesAndDefaults) {
  const auto absent = read_generation_defaults(folder_, shape_);
  EXPECT_EQ(absent.temperature, 1.0);
  EXPECT_EQ(absent.top_p, 1.0);
  EXPECT_EQ(absent.eos_token_ids, (std::vector<int32_t>{7, 8}));
  const auto all =
      read(R"({"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "eos_token_id": 3, "do_sample": true})");
  EXPECT_EQ(all.temperature, 0.5);
  EXPECT_EQ(all.top_p, 0.9);
  EXPECT_EQ(all.top_k, 40);
  EXPECT_EQ(all.min_p, 0.1);
  EXPECT_EQ(all.eos_token_ids, std::vector<int32_t>{3});
  EXPECT_EQ(read(R"({"eos_token_id": [1, 2], "temperature": null})").eos_token_ids, (std::vector<int32_t>{1, 2}));
}

TEST_F(GenerationConfig, WrongValuesNameTheKey) {
  for (const auto& [text, key] :
       std::vector<std::pair<std::string, std::string>>{{R"({"temperature": -1})", "temperature"},
                                                        {R"({"temperature": "hot"})", "temperature"},
                                                        {R"({"top_p": 0})", "top_p"},
                                                        {R"({"top_p": 1.5})", "top_p"},
                                                        {R"({"top_k": 1.5})", "top_k"},
                                                        {R"({"top_k": 99999999999})", "top_k"},
                                                        {R"({"min_p": 2})", "min_p"},
                                                        {R"({"eos_token_id": 100})", "eos_token_id"},
                                                        {R"({"eos_token_id": [-1]})", "eos_token_id"},
                                                        {R"({"eos_token_id": {}})", "eos_token_id"}}) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tandem::cli::loaded_model_test
