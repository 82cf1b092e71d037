// One golden case: run the model over its tokens in every way that the case asks for, and compare.
#pragma once

#include <filesystem>
#include <string>

#include "device/threads.h"
#include "eval/parity.h"
#include "model/shape.h"
#include "model/weights.h"

namespace tandem::eval {

struct ParityModel {
  std::string name;
  const model::Shape* shape;
  const model::TextWeights* weights;
  device::Threads* threads;
  forward::Mutation mutation;
  double tolerance;
};

CaseReport run_case(const ParityModel& model, const std::filesystem::path& file);

// nano extras (tests/golden/README.md): greedy.json against the model, tokenizer_cases.json and
// chat_template_cases.json against the model folder's tokenizer and the native renderer.
CaseReport run_greedy(const ParityModel& model, const std::filesystem::path& file);
CaseReport run_tokenizer_cases(const std::string& model, const std::filesystem::path& model_folder,
                               const std::filesystem::path& file);
CaseReport run_template_cases(const std::string& model, const std::filesystem::path& model_folder,
                              const std::filesystem::path& file);

}  // namespace tandem::eval
