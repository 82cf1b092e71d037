// Mapping of good files, and the refusal of everything that is no readable file.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem_base_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  static ErrorCode code_of(const std::filesystem::path& path) {
    try {
      MappedFile::open(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
      return error.code();
    }
    ADD_FAILURE() << path << " was opened";
    return ErrorCode::internal;
  }

  std::filesystem::path folder_;
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  MappedFile file = MappedFile::open(write("a", std::string("one\0two", 7)));
  EXPECT_EQ(file.text(), std::string_view("one\0two", 7));
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.bytes().size(), 7u);
  moved = MappedFile::open(write("b", "three"));
  EXPECT_EQ(moved.text(), "three");
}

TEST_F(MappedFileTest, EmptyFileIsEmpty) { EXPECT_EQ(MappedFile::open(write("empty", "")).bytes().size(), 0u); }

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(code_of(folder_ / "absent"), ErrorCode::bad_file);
  EXPECT_EQ(code_of(write("file", "x") / "below"), ErrorCode::bad_file);
  EXPECT_EQ(code_of(folder_), ErrorCode::bad_file);
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(code_of(pipe), ErrorCode::bad_file) << "and does not wait for a writer";
}

TEST_F(MappedFileTest, RefusesWhatMayNotBeRead) {
  const auto path = write("secret", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const pid_t child = fork();
  if (child == 0) {  // root may read everything, so the child becomes somebody else
    if (geteuid() == 0 && seteuid(65534) != 0) _exit(2);
    try {
      MappedFile::open(path);
    } catch (const Error& error) {
      _exit(error.code() == ErrorCode::resource ? 0 : 1);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "cannot give up root's rights here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tandem
