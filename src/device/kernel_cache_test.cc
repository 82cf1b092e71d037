// Entries that are right, damaged, foreign, missing, or cannot be made.
#include "device/kernel_cache.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "device/test_fake_driver.h"
#include "device/test_temporary_folder.h"

namespace tandem::device::kernel_cache_test {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public testing::Test {
 protected:
  KernelCache cache(std::vector<fs::path> shipped = {}) const {
    return {folder_.path() / "a" / "b", std::move(shipped), compiler_, "get one"};
  }
  static std::string text_of(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }
  int files() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_.path() / "a" / "b")) ++count;
    return count;
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<test::FakeCompiler> compiler_ = std::make_shared<test::FakeCompiler>();
  const KernelBuild build_{"ops/norm/norm.cu", "sm_90a", {"A=1", "B=2"}};
};

TEST_F(KernelCacheTest, CompilesOnce) {
  const Cubin first = cache().get(build_), second = cache().get(build_);
  EXPECT_TRUE(first.compiled);
  EXPECT_FALSE(second.compiled);
  EXPECT_TRUE(second.bytes.starts_with("code of ops/norm/norm.cu with --gpu-architecture=sm_90a"));
  EXPECT_EQ(second.bytes, first.bytes);
  EXPECT_EQ(second.file, first.file);
  EXPECT_EQ(second.compiler, "13.7");
  EXPECT_EQ(compiler_->compilations, 1);
  EXPECT_EQ(cache().find(build_), first.file);
  EXPECT_EQ(files(), 1) << "half-written files stayed";
}

TEST_F(KernelCacheTest, EveryPartOfTheKeyCounts) {
  cache().get(build_);
  cache().get({build_.source, "sm_120a", build_.defines});
  EXPECT_EQ(compiler_->compilations, 2) << "the target";
  cache().get({build_.source, build_.target, {"A=1", "B=3"}});
  EXPECT_EQ(compiler_->compilations, 3) << "the defines";
  compiler_->version_ = "13.8";
  cache().get(build_);
  EXPECT_EQ(compiler_->compilations, 4) << "the compiler";
  compiler_->version_ = "13.7";
  cache().get({build_.source, build_.target, {"B=2", "A=1"}});
  EXPECT_EQ(compiler_->compilations, 4) << "the order of defines does not count";
  EXPECT_EQ(files(), 4);
}

TEST_F(KernelCacheTest, DamagedEntriesAreMadeAnew) {
  const Cubin good = cache().get(build_);
  const std::string entry = text_of(good.file);
  std::vector<std::string> bad = {"", "\n", "x", entry.substr(0, entry.size() / 2), entry + "x", entry.substr(1)};
  for (const size_t at : {size_t{0}, good.bytes.size() / 2, good.bytes.size() + 5, entry.size() - 3}) {
    bad.push_back(entry);
    bad.back()[at] ^= 1;
  }
  int compilations = 1;
  for (const auto& text : bad) {
    write(good.file, text);
    EXPECT_TRUE(cache().find(build_).empty());
    const Cubin again = cache().get(build_);
    EXPECT_EQ(again.bytes, good.bytes);
    EXPECT_EQ(compiler_->compilations, ++compilations);
    EXPECT_EQ(text_of(good.file), entry);
  }
}

TEST_F(KernelCacheTest, AnEntryOfAnotherKeyIsMadeAnew) {
  const KernelBuild other{build_.source, "sm_120a", build_.defines};
  const Cubin mine = cache().get(build_), others = cache().get(other);
  fs::copy_file(others.file, mine.file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(cache().get(build_).bytes, mine.bytes);
  EXPECT_EQ(compiler_->compilations, 3);
}

TEST_F(KernelCacheTest, ShippedEntriesServeWithoutACompiler) {
  test::TemporaryFolder shipped;
  const Cubin made = KernelCache(shipped.path(), {}, compiler_).get(build_);
  compiler_ = nullptr;
  const Cubin found = cache({shipped.path()}).get(build_);
  EXPECT_EQ(found.bytes, made.bytes);
  EXPECT_EQ(found.file, made.file);
  EXPECT_EQ(found.compiler, "13.7");
}

TEST_F(KernelCacheTest, WithoutACompilerWhatIsMissingIsAnError) {
  compiler_ = nullptr;
  try {
    cache().get(build_);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::resource);
    EXPECT_EQ(e.expected(), "get one");
    EXPECT_NE(e.found().find("sm_90a"), std::string::npos) << e.what();
  }
}

TEST_F(KernelCacheTest, TheLogOfAFailureIsKept) {
  compiler_->fails = true;
  try {
    cache().get(build_);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    EXPECT_EQ(e.where(), "ops/norm/norm.cu");
    ASSERT_TRUE(e.expected().starts_with("see ")) << e.what();
    EXPECT_EQ(text_of(e.expected().substr(4)), "ops/norm/norm.cu(1): error: as the test wanted\nmore words");
  }
}

TEST_F(KernelCacheTest, MachineCodeWithoutADeclaredKernelIsAFailure) {
  compiler_->forgets_kernels = true;
  try {
    cache().get(build_);
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_NE(e.found().find("no kernel norm_rows"), std::string::npos) << e.what();
  }
}

TEST_F(KernelCacheTest, AFolderThatCannotBeWrittenCostsTheEntryOnly) {
  write(folder_.path() / "a", "a file where the folder would be");
  const Cubin made = cache().get(build_);
  EXPECT_FALSE(made.bytes.empty());
  EXPECT_TRUE(made.file.empty());
}

TEST_F(KernelCacheTest, SeveralAtATime) {
  std::vector<KernelBuild> builds;
  for (int i = 0; i < 20; ++i) builds.push_back({build_.source, build_.target, {"I=" + std::to_string(i)}});
  int done = 0;
  EXPECT_TRUE(
      cache().get_all(builds, 4, [&](const KernelBuild&, const Cubin& cubin) { done += cubin.compiled; }).empty());
  EXPECT_EQ(done, 20);
  EXPECT_EQ(compiler_->compilations, 20);
  EXPECT_TRUE(
      cache().get_all(builds, 4, [&](const KernelBuild&, const Cubin& cubin) { done += cubin.compiled; }).empty());
  EXPECT_EQ(compiler_->compilations, 20);
}

TEST_F(KernelCacheTest, EveryFailureOfManyIsTold) {
  compiler_->fails = true;
  std::vector<KernelBuild> builds;
  for (int i = 0; i < 5; ++i) builds.push_back({build_.source, build_.target, {"I=" + std::to_string(i)}});
  EXPECT_EQ(cache().get_all(builds, 2, {}).size(), 5u);
}

}  // namespace
}  // namespace tandem::device::kernel_cache_test
