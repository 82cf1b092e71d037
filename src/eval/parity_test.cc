// Every golden case passes, and deliberate mistakes in the model do not.
#include "eval/parity.h"

#include "base/error.h"

namespace tandem::eval::parity_test {
namespace {

const std::string source = TANDEM_SOURCE_DIR;

ParityOptions options(const std::string& only) {
  ParityOptions o;
  o.golden = source + "/tests/golden";
  o.bundled_models = source + "/models";
  o.threads = 2;
  o.only = only;
  return o;
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, EqualsTheReference) {
  const ParityReport report = run_parity(options(GetParam()));
  EXPECT_TRUE(report.ok()) << parity_text(report);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         ::testing::Values("tinyA", "tinyB", "nano/case_T40", "nano/case_T259", "nano/case_T700",
                                           "nano/case_T1500", "nano/greedy", "nano/tokenizer_cases",
                                           "nano/chat_template_cases"));

TEST(Parity, CountsEveryKindOfMeasure) {
  const ParityReport report = run_parity(options("tinyA/case_T130"));
  ASSERT_EQ(report.cases.size(), 1u);
  std::vector<std::string> names;
  for (const auto& measures : {report.cases[0].measures, run_parity(options("tinyA/case_T15")).cases.at(0).measures}) {
    for (const Measure& m : measures) names.push_back(m.name);
  }
  for (const char* name :
       {"logits", "logits_chunked", "logits_decode", "streams.0", "streams.7", "final_hidden", "kda_state.0",
        "kda_state.7", "conv_state.7", "router_w.7", "mtp_hidden", "mtp_hidden_zero0", "mtp_logits"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  for (const Count& count : report.cases[0].counts) EXPECT_GT(count.total, 0) << count.name;
  EXPECT_EQ(report.cases[0].counts.size(), 2u);
}

// Tests of the tests: each mistake must be seen. tinyA has clamps that bind and tails at every phase.
class Mutated : public ::testing::TestWithParam<forward::Mutation> {};

TEST_P(Mutated, FailsParity) {
  ParityOptions o = options("tinyA");
  o.mutation = GetParam();
  EXPECT_FALSE(run_parity(o).ok());
}

INSTANTIATE_TEST_SUITE_P(All, Mutated,
                         ::testing::Values(forward::Mutation::no_swiglu_clamp, forward::Mutation::transposed_mixer,
                                           forward::Mutation::no_sinkhorn, forward::Mutation::no_tail,
                                           forward::Mutation::silu_output_gate));

// The CPU's bf16 mode within what is asked of a GPU; and a mistake in the model is seen there, too.
TEST(Parity, RoundedPassesAreJudgedAsAWhole) {
  ParityOptions o = options("nano/case_T40");
  o.compute = forward::Compute::bf16;
  const ParityReport report = run_parity(o);
  EXPECT_TRUE(report.ok()) << parity_text(report);
  ASSERT_EQ(report.cases.size(), 1u);
  ASSERT_EQ(report.cases[0].measures.size(), 2u);
  for (const Measure& m : report.cases[0].measures) {
    EXPECT_GT(m.error, 0) << m.name << ": fp32 was compared with itself";
  }
  EXPECT_NE(parity_text(report).find("median relative L2"), std::string::npos);
  o.only = "tinyA";
  EXPECT_TRUE(run_parity(o).ok()) << parity_text(run_parity(o));
  o.mutation = forward::Mutation::no_swiglu_clamp;
  EXPECT_FALSE(run_parity(o).ok());
}

TEST(Parity, AFolderWithoutCasesIsAnError) {
  ParityOptions o = options("");
  o.golden = source + "/docs";
  EXPECT_THROW(run_parity(o), Error);
  o.golden = source + "/no such folder";
  EXPECT_THROW(run_parity(o), Error);
}

}  // namespace
}  // namespace tandem::eval::parity_test
