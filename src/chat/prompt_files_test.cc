// The prompt fixtures under tests/text/prompts (format: tests/text/README.md) and the golden template cases.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "chat/json.h"
#include "chat/messages.h"
#include "chat/render.h"
#include "text/tokenizer.h"

namespace tandem::chat::prompt_files_test {
namespace {

const std::filesystem::path kSource = TANDEM_SOURCE_DIR;

JsonValue read_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return parse_json(text.str(), path.filename().string());
}

std::string text_of(const JsonValue* value) {
  std::string out;
  if (value == nullptr) return out;
  if (value->string() != nullptr) return *value->string();
  for (const JsonValue& line : *value->array()) out += *line.string();
  return out;
}

std::string body_of(const JsonValue& fixture) {
  if (const JsonValue* text = fixture.find("body_text")) return *text->string();
  std::string body;
  print_python_json(*fixture.find("body"), body);
  return body;
}

void check(const JsonValue& fixture) {
  const bool is_request = fixture.find("request") != nullptr;
  const JsonValue* error_field = fixture.find("error");
  try {
    const std::string prompt = render(parse_conversation(body_of(fixture), is_request)).text();
    ASSERT_EQ(error_field, nullptr) << "was accepted: " << prompt;
    EXPECT_EQ(prompt, text_of(fixture.find("prompt")));
  } catch (const Error& error) {
    ASSERT_NE(error_field, nullptr) << error.what();
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_EQ(error.where(), *error_field->string()) << error.what();
    EXPECT_FALSE(error.expected().empty()) << error.what();
    EXPECT_NE(std::string(error.what()).find(text_of(fixture.find("says"))), std::string::npos) << error.what();
  }
}

std::vector<std::string> prompt_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "tests/text/prompts")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class PromptFile : public testing::TestWithParam<std::string> {};

TEST_P(PromptFile, EveryCase) {
  const JsonValue fixtures = read_json(kSource / "tests/text/prompts" / (GetParam() + ".json"));
  ASSERT_NE(fixtures.array(), nullptr);
  EXPECT_FALSE(fixtures.array()->empty());
  for (const JsonValue& fixture : *fixtures.array()) {
    SCOPED_TRACE(text_of(fixture.find("name")));
    check(fixture);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, PromptFile, testing::ValuesIn(prompt_files()),
                         [](const auto& file) { return file.param; });

TEST(GoldenTemplateCases, TextAndIds) {
  const JsonValue cases = read_json(kSource / "tests/golden/nano/chat_template_cases.json");
  const text::Tokenizer tokenizer = text::Tokenizer::load(kSource / "models/nano");
  ASSERT_NE(cases.array(), nullptr);
  ASSERT_EQ(cases.array()->size(), 15U);
  for (const JsonValue& golden : *cases.array()) {
    std::string body;
    print_python_json(*golden.find("case"), body);
    SCOPED_TRACE(body);
    const Prompt prompt = render(parse_conversation(body, false));
    EXPECT_EQ(prompt.text(), *golden.find("text")->string());
    std::vector<int32_t> ids;
    for (const JsonValue& id : *golden.find("ids")->array()) ids.push_back(std::stoi(id.number()->spelling));
    EXPECT_EQ(tokenizer.encode(prompt.segments), ids);
  }
}

}  // namespace
}  // namespace tandem::chat::prompt_files_test
