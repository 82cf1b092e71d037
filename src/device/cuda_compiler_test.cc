// NVRTC itself, where there is one.
#include "device/cuda_compiler.h"

#include <algorithm>

#include "base/error.h"
#include "device/kernel_dimensions.h"

namespace tandem::device::cuda_compiler_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // the sanitizers cannot look into NVRTC and report its memory
#else
constexpr bool sanitized = false;
#endif

class Compiler : public testing::Test {
 protected:
  void SetUp() override {
    if (sanitized) GTEST_SKIP() << "under a sanitizer";
    try {
      compiler_ = open_nvrtc();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  Compilation compile(const std::vector<std::string>& defines) const {
    return compiler_->compile("ops/norm/norm.cu", compile_options("sm_90a", defines));
  }

  std::shared_ptr<const KernelCompiler> compiler_;
};

TEST_F(Compiler, ToldItsVersionAndTargets) {
  EXPECT_TRUE(compiler_->version().starts_with("12.") || compiler_->version().starts_with("13."))
      << compiler_->version();
  const auto targets = compiler_->targets();
  EXPECT_NE(std::find(targets.begin(), targets.end(), 90), targets.end());
}

TEST_F(Compiler, KernelsKeepTheirNames) {
  const Compilation made = compile(model_defines({}));
  ASSERT_TRUE(made.ok) << made.log;
  EXPECT_TRUE(
      made.cubin.starts_with("\x7f"
                             "ELF"));
  EXPECT_NE(made.cubin.find(std::string("\0norm_rows\0", 11)), std::string::npos);
  EXPECT_EQ(compile(model_defines({})).cubin, made.cubin) << "the same text, other code";
}

TEST_F(Compiler, AMistakeIsToldWithItsLine) {
  const Compilation made = compile({"part=no::such"});
  EXPECT_FALSE(made.ok);
  EXPECT_NE(made.log.find("ops/norm/norm.cu("), std::string::npos) << made.log;
  const Compilation option = compiler_->compile("ops/norm/norm.cu", {"--no-such-option"});
  EXPECT_FALSE(option.ok);
  EXPECT_NE(option.log.find("no-such-option"), std::string::npos) << option.log;
}

TEST(CompileOptions, DoNotDependOnTheOrderOfDefines) {
  const auto options = compile_options("sm_120a", {"B=2", "A=1"});
  EXPECT_EQ(options, compile_options("sm_120a", {"A=1", "B=2"}));
  EXPECT_EQ(options[0], "--gpu-architecture=sm_120a");
  EXPECT_NE(std::find(options.begin(), options.end(), "--fmad=true"), options.end());
  EXPECT_NE(std::find(options.begin(), options.end(), "--define-macro=B=2"), options.end());
  EXPECT_EQ(target_name(103), "sm_103a");
}

TEST(OpenNvrtc, AFileThatIsNone) {
  try {
    open_nvrtc("libm.so.6");
    FAIL() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::resource);
    EXPECT_NE(std::string(e.what()).find("libm.so.6 has no function nvrtcVersion"), std::string::npos) << e.what();
  }
  EXPECT_THROW(open_nvrtc("", 11), Error) << "no version that an old driver could load";
}

}  // namespace
}  // namespace tandem::device::cuda_compiler_test
