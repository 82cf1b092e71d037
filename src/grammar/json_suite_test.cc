// The JSON-Schema test suite (Debian's package json-schema-test-suite, draft 7): no instance that a schema forbids may
// be written, and of those that it allows most must be. Schemas with keywords that are refused by name are counted
// apart.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "grammar/schema_node.h"
#include "grammar/test_vocabulary.h"

namespace tandem::grammar::json_suite_test {
namespace {

constexpr const char* suite = "/usr/share/json-schema-test-suite/tests/draft7";
constexpr size_t most_orders = 720;  // of an object's keys

struct Counts {
  int schemas = 0, refused = 0;
  int valid = 0, accepted = 0, invalid = 0, wrong = 0;
};

JsonValue read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return chat::parse_json(std::string(std::istreambuf_iterator<char>(file), {}), path.filename().string());
}

// The value with its objects' keys in every order: a grammar wants the schema's.
std::vector<JsonValue> orders(const JsonValue& value) {
  std::vector<JsonValue> out;
  const auto combine = [&](size_t count, auto&& part, auto&& make) {
    std::vector<std::vector<JsonValue>> lists{{}};
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::vector<JsonValue>> longer;
      for (const auto& list : lists) {
        for (const JsonValue& one : orders(part(i))) {
          if (longer.size() >= most_orders) break;
          longer.push_back(list);
          longer.back().push_back(one);
        }
      }
      lists = std::move(longer);
    }
    for (auto& list : lists) make(list);
  };
  if (const auto* array = value.array()) {
    combine(
        array->size(), [&](size_t i) -> const JsonValue& { return (*array)[i]; },
        [&](const std::vector<JsonValue>& list) {
          JsonValue one;
          one.data = JsonValue::Array(list.begin(), list.end());
          out.push_back(std::move(one));
        });
    return out;
  }
  const auto* object = value.object();
  if (object == nullptr) return {value};
  std::vector<size_t> places(object->size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  do {
    combine(
        places.size(), [&](size_t i) -> const JsonValue& { return (*object)[places[i]].value; },
        [&](const std::vector<JsonValue>& list) {
          JsonValue one = json_object();
          for (size_t i = 0; i < list.size(); ++i) set_member(one, (*object)[places[i]].key, list[i]);
          if (out.size() < most_orders) out.push_back(std::move(one));
        });
  } while (std::next_permutation(places.begin(), places.end()) && out.size() < most_orders);
  return out;
}

class Suite : public ::testing::Test {
 protected:
  bool accepts(const std::shared_ptr<const Compiled>& compiled, const JsonValue& value) {
    for (const JsonValue& one : orders(value)) {
      Matcher matcher(compiled);
      const auto ids = test_tokens(*vocabulary_, compact_json(one));
      if (std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return matcher.accept(id); }) && matcher.is_complete())
        return true;
    }
    return false;
  }

  void run(const std::filesystem::path& path, bool open, Counts& counts, std::set<std::string>& refusals) {
    const JsonValue groups = read(path);
    for (const JsonValue& group : *groups.array()) {
      ++counts.schemas;
      std::shared_ptr<const Compiled> compiled;
      bool allows_nothing = false;
      try {
        compiled = translator_.compile(
            {Language::json_schema,
             prepare_schema(*group.find("schema"), {.open = open, .ignore_unsupported = false}).text});
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::usage) << error.what();
        allows_nothing = error.found() == "a schema that no value satisfies";
        if (!allows_nothing) {
          ++counts.refused;
          refusals.insert(error.found());
          continue;
        }
      }
      for (const JsonValue& test : *group.find("tests")->array()) {
        const bool is_valid = *test.find("valid")->boolean();
        const bool is_accepted = !allows_nothing && accepts(compiled, *test.find("data"));
        const std::string name = path.stem().string() + ": " + *group.find("description")->string() + ": " +
                                 *test.find("description")->string();
        if (is_valid) {
          ++counts.valid;
          counts.accepted += is_accepted ? 1 : 0;
          if (!is_accepted && open) not_written_.push_back(name);
        } else {
          ++counts.invalid;
          counts.wrong += is_accepted ? 1 : 0;
          EXPECT_FALSE(is_accepted) << name;
        }
      }
    }
  }

  std::shared_ptr<const Vocabulary> vocabulary_ = test_vocabulary();
  Translator translator_{*vocabulary_};
  std::vector<std::string> not_written_;
};

TEST_F(Suite, NothingForbiddenIsWrittenAndMostOfTheRestIs) {
  if (!is_available()) GTEST_SKIP() << "built without xgrammar";
  if (!std::filesystem::exists(suite))
    GTEST_SKIP() << "no " << suite << ": install Debian's package json-schema-test-suite";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(suite)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  Counts all;
  std::set<std::string> refusals;
  for (const auto& file : files) {
    Counts open, closed;
    run(file, true, open, refusals);
    run(file, false, closed, refusals);
    std::printf("| %s | %d | %d | %d of %d | %d | %d of %d |\n", file.stem().c_str(), open.schemas, open.refused,
                open.accepted, open.valid, open.invalid, closed.accepted, closed.valid);
    all.valid += open.valid;
    all.accepted += open.accepted;
    all.invalid += open.invalid + closed.invalid;
    all.schemas += open.schemas;
    all.refused += open.refused;
  }
  for (const std::string& name : not_written_) std::printf("valid, not written: %s\n", name.c_str());
  for (const std::string& name : refusals) std::printf("refused: %s\n", name.c_str());
  std::printf("%d schemas, %d refused; %d of %d valid instances, %d invalid ones\n", all.schemas, all.refused,
              all.accepted, all.valid, all.invalid);
  EXPECT_GT(all.invalid, 250) << "the suite was read";
  EXPECT_GE(all.accepted, all.valid * 9 / 10);
}

}  // namespace
}  // namespace tandem::grammar::json_suite_test
