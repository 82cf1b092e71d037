// The commands as words: each parses its own and runs.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

using Words = std::vector<std::string>;

// The words behind the command's name to its exit status. Throws Error.
int serve_command(const Words& words);
int chat_command(const Words& words);
int generate_command(const Words& words);
int inspect_command(const Words& words);
int plan_command(const Words& words);
int eval_skills_command(const Words& words);
int eval_parity_command(const Words& words);
int eval_acceptance_command(const Words& words);
int eval_kld_command(const Words& words);
int eval_ppl_command(const Words& words);
int bench_replay_command(const Words& words);
int quantize_command(const Words& words);
int verify_command(const Words& words);
int calibrate_timing_command(const Words& words);
int calibrate_kv_command(const Words& words);
int kernels_build_command(const Words& words);
int kernels_list_command(const Words& words);
int doctor_command(const Words& words);

}  // namespace tandem::cli
