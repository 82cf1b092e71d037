// Settings files: what is read, and that nothing is lost in silence.
#include "cli/config_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"

namespace tandem::cli::config_file_test {
namespace {

using Values = std::vector<std::string>;

std::string refused(const std::string& text) {
  try {
    parse_settings(text, "c.toml");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_FALSE(e.expected().empty()) << text;
    return e.what();
  }
  ADD_FAILURE() << "was read: " << text;
  return {};
}

void expect_refused(const std::string& text, int line, const std::string& words = "") {
  const std::string message = refused(text);
  EXPECT_EQ(message.rfind("c.toml: line " + std::to_string(line) + ": ", 0), 0u) << text << "\n" << message;
  EXPECT_NE(message.find(words), std::string::npos) << text << "\n" << message;
}

TEST(ConfigFile, Values) {
  const auto settings = parse_settings(
      "# comment\n; another\n\n  port = 8013\n\thost='::1' # v6\nkv-cache-memory=64MiB\r\napi-key = \"se#c;r=e,t "
      "[x]\"\n"
      "served-model-name = [ \"a b\", c , 'd\"e', ]\nlong = [\n  1, # one\n\n  2\n] # two\nback = \"a\\b\"\nempty = "
      "\"\"",
      "c.toml");
  ASSERT_EQ(settings.size(), 8u);
  EXPECT_EQ(settings[0].name, "port");
  EXPECT_EQ(settings[0].where, "c.toml: line 4");
  EXPECT_EQ(settings[0].values, Values{"8013"});
  EXPECT_EQ(settings[1].values, Values{"::1"});
  EXPECT_EQ(settings[2].values, Values{"64MiB"});
  EXPECT_EQ(settings[3].values, Values{"se#c;r=e,t [x]"});
  EXPECT_EQ(settings[4].values, (Values{"a b", "c", "d\"e"}));
  EXPECT_EQ(settings[5].values, (Values{"1", "2"}));
  EXPECT_EQ(settings[6].values, Values{"a\\b"});
  EXPECT_EQ(settings[6].where, "c.toml: line 14");
  EXPECT_EQ(settings[7].values, Values{""});
  EXPECT_TRUE(parse_settings("", "c.toml").empty());
  EXPECT_TRUE(parse_settings("\n# only a comment", "c.toml").empty());
}

TEST(ConfigFile, AnOpenBracketOrQuoteIsRefused) {
  expect_refused("served-model-name = [\"m\"\napi-key = \"secret\"\n", 2, "served-model-name");
  expect_refused("served-model-name = [\"m\",\napi-key = \"secret\"\n", 2, "line 1");
  expect_refused("served-model-name = [\napi-key = [\"secret\"]\n", 2, "line 1");
  expect_refused("served-model-name = [\"m\"", 1, "]");
  expect_refused("served-model-name = [\"m\",\n\n", 3, "end of the file");
  expect_refused("served-model-name = [", 1);
  expect_refused("port = 1\nserved-model-name = \"m\napi-key = \"secret\"\n", 2, "closing \"");
  expect_refused("served-model-name = 'm\n'", 1, "closing '");
  expect_refused("served-model-name = [\"m]\napi-key = \"secret\"\n", 1, "closing \"");
  expect_refused("served-model-name = \"", 1);
}

TEST(ConfigFile, OtherLinesAreRefused) {
  for (const char* line : {"[serve]",
                           "[[serve]]",
                           "port",
                           "port =",
                           "= 3",
                           "port = = 3",
                           "port = 3 4",
                           "port = 3, 4",
                           "port = [3] 4",
                           "port = [[3]]",
                           "port = [3 4]",
                           "port = [3,,4]",
                           "port = [,]",
                           "port = []",
                           "port = ]",
                           "port = \"a\"b",
                           "port = \"a\" \"b\"",
                           "port = {a}",
                           "a b = 3",
                           "\"port\" = 3",
                           "\xEF\xBB\xBFport = 3",
                           "port: 3",
                           "x"}) {
    expect_refused(std::string("\n").append(line), 2);
    expect_refused(std::string("\n").append(line).append("\n"), 2);
  }
  expect_refused("port = 1\nport = 2\n", 2, "second time");
  expect_refused(std::string("port = \"a\0b\"", 12), 1, "byte 0x00");
  expect_refused(std::string("\0\0\0", 3), 1, "byte 0x00");
  expect_refused("port = 1\rapi-key = x", 1);
}

TEST(ConfigFile, AMessageDoesNotShowAKey) {
  EXPECT_EQ(refused("api-key = sesame, open").find("sesame"), std::string::npos);
  EXPECT_EQ(refused("api-key = [\"sesame\", \"open").find("open"), std::string::npos);
}

TEST(ConfigFile, EveryBeginningOfAFileIsReadOrRefused) {
  const std::string text = "port = 8013 # x\nserved-model-name = [\n 'a', \"b\",\n]\napi-key = \"secret\"\n";
  for (size_t length = 0; length <= text.size(); ++length) {
    try {
      for (const Setting& setting : parse_settings(text.substr(0, length), "c.toml"))
        EXPECT_FALSE(setting.values.empty());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
    }
  }
}

class ConfigFileOnDisk : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  static ErrorCode error_of(const std::filesystem::path& path) {
    try {
      read_settings(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.where(), path.string());
      return e.code();
    }
    ADD_FAILURE() << path << " was read";
    return ErrorCode::internal;
  }
  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("tandem_settings_" + std::to_string(::getpid()));
};

TEST_F(ConfigFileOnDisk, FilesAndPipesAreRead) {
  std::ofstream(path_) << "port = 1\n";
  EXPECT_EQ(read_settings(path_).at(0).where, path_.string() + ": line 1");
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::thread writer([this] { std::ofstream(path_) << "port = 2\n"; });
  EXPECT_EQ(read_settings(path_).at(0).values, Values{"2"});
  writer.join();
}

TEST_F(ConfigFileOnDisk, AMebibyteIsTheLimit) {
  std::ofstream(path_) << std::string(size_t{1} << 20, '\n');
  EXPECT_TRUE(read_settings(path_).empty());
  std::ofstream(path_, std::ios::app) << '\n';
  EXPECT_EQ(error_of(path_), ErrorCode::bad_file);
}

TEST_F(ConfigFileOnDisk, NothingElseIsOpened) {
  EXPECT_EQ(error_of("/dev/zero"), ErrorCode::bad_file);
  EXPECT_EQ(error_of(std::filesystem::temp_directory_path()), ErrorCode::bad_file);
  EXPECT_EQ(error_of(path_), ErrorCode::bad_file);
  EXPECT_EQ(error_of(path_ / "below"), ErrorCode::bad_file);
}

}  // namespace
}  // namespace tandem::cli::config_file_test
