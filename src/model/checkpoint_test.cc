// Model folders: which files are read, what the index decides, and folders that cannot be read.
#include "model/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include "model/shape.h"
#include "model/testing/checkpoint_files.h"

namespace tandem::model::checkpoint_test {
namespace {

using testing::error_of;
using testing::expect_parts;
using testing::StoredTensor;

class CheckpointTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::vector<StoredTensor>& tensors) {
    testing::write_file(folder_.path() / name, testing::safetensors_bytes(tensors));
  }
  void write_index(const std::string& weight_map) {
    testing::write_file(folder_.path() / "model.safetensors.index.json",
                        R"({"metadata":{},"weight_map":)" + weight_map + "}");
  }
  std::string refusal(ErrorCode code = ErrorCode::bad_file) {
    return error_of([&] { Checkpoint::open(folder_.path()); }, code);
  }
  static StoredTensor byte(const std::string& name, char value = 'x') { return {name, DType::u8, {1}, {value}}; }

  testing::TemporaryFolder folder_;
};

TEST_F(CheckpointTest, OpensTheBundledModel) {
  const Checkpoint checkpoint = Checkpoint::open(testing::source_dir() / "models/nano");
  EXPECT_EQ(checkpoint.tensors().size(), 479u);
  EXPECT_EQ(checkpoint.total_bytes(), 31747568);  // total_size in its index
  EXPECT_EQ(checkpoint.at("lm_head.weight").shape, (std::vector<int64_t>{2048, 256}));
  EXPECT_EQ(checkpoint.at("lm_head.weight").file, "model-00001-of-00004.safetensors");
  EXPECT_EQ(checkpoint.find("lm_head"), nullptr);
  expect_parts(error_of([&] { checkpoint.at("lm_head"); }), {"tensor lm_head", "missing"});
}

TEST_F(CheckpointTest, OpensOneFile) {
  write("a.safetensors", {byte("t")});
  const Checkpoint checkpoint = Checkpoint::open(folder_.path() / "a.safetensors");
  EXPECT_EQ(checkpoint.tensors().size(), 1u);
}

TEST_F(CheckpointTest, PrefersTheIndexThenTheSingleFile) {
  write("a.safetensors", {byte("t", 'a')});
  write("b.safetensors", {byte("u", 'b')});
  EXPECT_EQ(Checkpoint::open(folder_.path()).tensors().size(), 2u);
  write("model.safetensors", {byte("t", 'm')});
  EXPECT_EQ(Checkpoint::open(folder_.path()).at("t").file, "model.safetensors");
  write_index(R"({"t":"a.safetensors"})");
  EXPECT_EQ(Checkpoint::open(folder_.path()).at("t").file, "a.safetensors");
}

TEST_F(CheckpointTest, IndexDecidesBetweenShards) {
  write("a.safetensors", {byte("t", 'a'), byte("extra")});
  write("b.safetensors", {byte("t", 'b'), byte("u")});
  expect_parts(refusal(), {"tensor t", "a.safetensors", "b.safetensors"});
  write_index(R"({"t":"b.safetensors","extra":"a.safetensors"})");
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.at("t").file, "b.safetensors");
  EXPECT_NE(checkpoint.find("u"), nullptr) << "a tensor that the index forgot is still there";
}

TEST_F(CheckpointTest, IndexMustTellTheTruth) {
  write("a.safetensors", {byte("t")});
  write_index(R"({"t":"a.safetensors","u":"missing.safetensors"})");
  expect_parts(refusal(), {"missing.safetensors", "does not exist"});
  write_index(R"({"t":"a.safetensors","u":"a.safetensors"})");
  expect_parts(refusal(), {"a.safetensors: tensor u", "missing"});
  write_index(R"({"t":3})");
  expect_parts(refusal(), {"model.safetensors.index.json", "weight_map.t", "found 3"});
  write_index("{}");
  expect_parts(refusal(), {"weight_map", "empty"});
  write_index("[]");
  expect_parts(refusal(), {"weight_map", "array"});
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", "", "sub/a.safetensors", "sub\\\\a.safetensors",
                           "a.safetensors\\u0000"}) {
    write_index(fmt::format(R"({{"t":"{}"}})", name));
    expect_parts(refusal(), {"weight_map.t", "a file in the same folder"});
  }
  testing::write_file(folder_.path() / "model.safetensors.index.json", "{");
  expect_parts(refusal(), {"index.json", "not valid JSON"});
  testing::write_file(folder_.path() / "model.safetensors.index.json", R"({"metadata":{}})");
  expect_parts(refusal(), {"weight_map", "missing"});
}

TEST_F(CheckpointTest, DamagedShardIsNamed) {
  testing::write_file(folder_.path() / "model.safetensors", "junk");
  expect_parts(refusal(), {(folder_.path() / "model.safetensors").string(), "4 bytes"});
}

TEST_F(CheckpointTest, FolderInPlaceOfAFileIsRefused) {
  std::filesystem::create_directory(folder_.path() / "model.safetensors");
  expect_parts(refusal(), {"model.safetensors", "is a folder"});
}

TEST_F(CheckpointTest, FoldersWithoutWeightsAreRefused) {
  expect_parts(refusal(), {folder_.path().string(), "no weights"});
  expect_parts(error_of([&] { Checkpoint::open(folder_.path() / "absent"); }), {"absent", "does not exist"});
}

TEST_F(CheckpointTest, FolderWithoutReadPermissionIsRefused) {
  write("model.safetensors", {byte("t")});
  testing::write_file(folder_.path() / "config.json", "{}");
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::none);
  const pid_t child = fork();
  if (child == 0) {  // root may read everything, so the child becomes somebody else
    if (geteuid() == 0 && seteuid(65534) != 0) _exit(100);
    const std::string path = folder_.path().string();
    int wrong = 0;
    for (const bool weights : {true, false}) {
      try {
        weights ? static_cast<void>(Checkpoint::open(path)) : static_cast<void>(read_shape(path));
        ++wrong;
      } catch (const Error& error) {
        const bool named = error.where().find(path) != std::string::npos;
        wrong += error.code() != ErrorCode::resource || !named;
      }
    }
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
  if (WEXITSTATUS(status) == 100) GTEST_SKIP() << "cannot give up root's rights here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tandem::model::checkpoint_test
