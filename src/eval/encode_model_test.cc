// The run around the encoder: what is written, loads; what is stopped, goes on; what is changed, is found. A quick
// encoder of the tests stands in for the search, but where its result counts.
#include "eval/encode_model.h"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "eval/finished_tensors.h"
#include "eval/test_quality.h"
#include "model/inventory.h"
#include "model/testing/checkpoint_files.h"
#include "model/weights.h"

namespace tandem::eval::encode_model_test {
namespace {

namespace fs = std::filesystem;
using model::testing::error_of;
using model::testing::expect_parts;
using model::testing::read_file;

// Trellis bits that depend on the weights, the settings and whether rows were seen; small scales.
quant::Exl3Encoded quick(std::string_view name, const float* weight, int64_t out, int64_t in,
                         const quant::Exl3Hessian& hessian, const quant::Exl3EncodeSettings& settings,
                         const quant::Exl3GivenVectors* given, device::Threads& /*threads*/) {
  quant::Exl3Encoded result;
  result.bits = settings.bits;
  result.in_features = (in + 127) / 128 * 128;
  result.out_features = (out + 127) / 128 * 128;
  result.trellis.resize(static_cast<size_t>(result.in_features * result.out_features * result.bits / 8));
  double sum = hessian.is_fallback() ? 1 : 0;
  for (int64_t i = 0; i < in * out; ++i) sum += weight[i];
  uint64_t random = 0;
  std::memcpy(&random, &sum, sizeof random);
  random ^= settings.sign_seed + name.size();
  for (std::byte& byte : result.trellis) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(random >> 56);
  }
  const auto fp16 = [](float value) { return value < 0 ? uint16_t{0xA400} : uint16_t{0x2400}; };  // ±2^-6
  result.suh.assign(static_cast<size_t>(result.in_features), 0x2400);
  result.svh.assign(static_cast<size_t>(result.out_features), 0x3C00);
  for (size_t i = 0; given != nullptr && i < given->suh.size(); ++i) result.suh[i] = fp16(given->suh[i]);
  for (size_t i = 0; given != nullptr && i < given->svh.size(); ++i) result.svh[i] = fp16(given->svh[i]);
  result.scale = 1;
  result.relative_mse = 0.004;
  result.proxy_error = 0.002;
  return result;
}

class EncodeModel : public ::testing::Test {
 protected:
  static fs::path tiny() { return model::testing::source_dir() / "tests/golden/tinyA"; }
  fs::path out() const { return folder_.path() / "out"; }
  fs::path kept() const { return folder_.path() / "out.tmp"; }
  // tinyA without its golden vectors, in a folder that may be changed.
  fs::path source() const {
    fs::path path = folder_.path() / "in";
    fs::create_directory(path);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(tiny() / name, path / name, fs::copy_options::skip_existing);
    return path;
  }
  QuantizeOptions options(int bits = 2) const {
    QuantizeOptions options;
    options.model = source();
    options.out = out();
    options.experts = Coding::exl3;
    options.threads = 2;
    options.exl3.expert_bits = bits;
    options.exl3.scale_search = quant::Exl3ScaleSearch::none;
    options.exl3.calibration = counted_windows({150, 60}, 203, 150);
    options.exl3.calibration_files = {{"text.jsonl", 10, std::string(64, 'a')}};
    options.exl3.encode = quick;
    return options;
  }
  static QuantizeReport run(const QuantizeOptions& options, int64_t most = 1 << 30) {
    int64_t tensors = 0;
    return encode_model(options, [&](int64_t, int64_t) {
      if (++tensors > most) throw std::runtime_error("stopped");
    });
  }
  static std::map<std::string, std::string> content(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  }

  model::testing::TemporaryFolder folder_;
};

TEST_F(EncodeModel, LoadsAndIsAsItsManifestSays) {
  QuantizeOptions given = options();
  given.head = Coding::exl3;
  given.exl3.head_bits = 5;
  const QuantizeReport report = run(given);
  const model::Shape shape = model::read_shape(out());
  const model::Checkpoint checkpoint = model::Checkpoint::open(out());
  const model::TextWeights weights = model::load_text_weights(checkpoint, shape);
  EXPECT_EQ(weights.layers[1].moe->experts[5].down_proj.exl3.bits, 2);
  EXPECT_EQ(weights.mtp->layer.moe->shared.up_proj.exl3.codebook, quant::Exl3Codebook::mul1);
  EXPECT_EQ(weights.lm_head.exl3.bits, 5);
  EXPECT_EQ(weights.layers[0].mlp->down_proj.format, ops::WeightFormat::bf16);
  const model::Comparison found = model::compare(checkpoint, shape);
  EXPECT_TRUE(found.missing.empty() && found.wrong.empty() && found.unknown.empty());
  EXPECT_EQ(checkpoint.total_bytes(), report.bytes);
  // tinyA: 6 sparse layers and the MTP layer with 6 experts and a shared one; and the head.
  EXPECT_EQ(report.encoded.size(), 7u * 7 * 3 + 1);
  EXPECT_DOUBLE_EQ(report.average_bits, 2);
  // Stored bytes of one matrix (1.10): I·O·b/8 + 2I + 2O + 4, here 96 and 40 in blocks of 128.
  EXPECT_EQ(checkpoint.at("model.language_model.layers.1.mlp.experts.0.up_proj.trellis").data.size(),
            128u * 128 * 2 / 8);
  EXPECT_EQ(checkpoint.at("model.language_model.layers.1.mlp.experts.0.up_proj.mul1").data.size(), 4u);

  const auto config = nlohmann::json::parse(read_file(out() / "config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "exl3");
  EXPECT_EQ(config["bits"], 2);
  EXPECT_EQ(config["head_bits"], 5);
  EXPECT_EQ(config["codebook"], "mul1");
  const auto storage = nlohmann::json::parse(read_file(out() / "quantization_config.json"))["tensor_storage"];
  const auto& module = storage["model.language_model.layers.1.mlp.experts.0.down_proj"];
  EXPECT_EQ(module["bits_per_weight"], 2);
  EXPECT_EQ(module["mul1_multiplier"], 2212286765u);
  EXPECT_EQ(module["stored_tensors"]["model.language_model.layers.1.mlp.experts.0.down_proj.trellis"]["shape"],
            (std::vector<int>{8, 8, 32}));

  device::Threads threads(2);
  const Manifest manifest = read_manifest(out());
  EXPECT_TRUE(verify_folder(out(), manifest, threads).empty());
  EXPECT_EQ(manifest.tensors.size(), report.encoded.size());
  EXPECT_EQ(manifest.origin.settings.at("experts"), "exl3:2");
  EXPECT_EQ(manifest.origin.calibration_tokens, 210);
  EXPECT_EQ(manifest.origin.source.at("config.json").bytes,
            static_cast<int64_t>(fs::file_size(tiny() / "config.json")));
  EXPECT_FALSE(fs::exists(kept()));
}

TEST_F(EncodeModel, EveryByteThatChangesIsFoundAndNamed) {
  run(options());
  device::Threads threads(2);
  const Manifest manifest = read_manifest(out());
  for (const auto& [name, bytes] : content(out())) {
    for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      model::testing::write_file(out() / name, changed);
      if (name == manifest_name) {
        expect_parts(error_of([&] { read_manifest(out()); }), {"manifest.json"});
      } else {
        const std::vector<std::string> faults = verify_folder(out(), manifest, threads);
        ASSERT_EQ(faults.size(), 1u) << name << ' ' << at;
        expect_parts(faults[0], {name + ": SHA-256"});
      }
    }
    model::testing::write_file(out() / name, bytes);
  }
  EXPECT_TRUE(verify_folder(out(), manifest, threads).empty());
  model::testing::write_file(out() / "more.txt", "x");
  fs::resize_file(out() / "config.json", 5);
  fs::remove(out() / "model.safetensors.index.json");
  const std::vector<std::string> faults = verify_folder(out(), manifest, threads);
  ASSERT_EQ(faults.size(), 3u);
  expect_parts(faults[0], {"config.json: 5 bytes"});
  expect_parts(faults[1], {"model.safetensors.index.json: missing"});
  expect_parts(faults[2], {"more.txt: not in the manifest"});
}

TEST_F(EncodeModel, NeitherThreadsNorStopsChangeAByte) {
  run(options());
  const auto expected = content(out());
  fs::remove_all(out());
  QuantizeOptions given = options();
  given.threads = 3;
  for (const int64_t most : {0, 1, 17, 60, 100}) {
    EXPECT_THROW(run(given, most), std::runtime_error);
    EXPECT_FALSE(fs::exists(out()));
    EXPECT_TRUE(fs::exists(kept() / "run.json"));
    given.threads = 1;
  }
  const QuantizeReport report = run(given);
  EXPECT_GE(report.resumed_tensors, 100);
  EXPECT_TRUE(content(out()) == expected);
  EXPECT_FALSE(fs::exists(kept()));
}

TEST_F(EncodeModel, DamagedFinishedMatricesAreMadeAgain) {
  run(options());
  const auto expected = content(out());
  fs::remove_all(out());
  EXPECT_THROW(run(options(), 40), std::runtime_error);
  std::vector<fs::path> finished;
  for (const fs::directory_entry& entry : fs::directory_iterator(kept() / "finished")) finished.push_back(entry.path());
  ASSERT_GT(finished.size(), 30u);
  std::string bytes = read_file(finished[3]);
  bytes[bytes.size() - 7] = static_cast<char>(bytes[bytes.size() - 7] ^ 4);
  model::testing::write_file(finished[3], bytes);
  fs::resize_file(finished[7], 20);
  model::testing::write_file(finished[9], "");
  model::testing::write_file(kept() / "finished" / "left.123.new", "half");
  const QuantizeReport report = run(options());
  EXPECT_TRUE(content(out()) == expected);
  std::string notes;
  for (const std::string& note : report.notes) notes += note;
  expect_parts(notes,
               {finished[3].filename().string() + " is damaged", finished[7].filename().string() + " is cut off"});
}

TEST_F(EncodeModel, AChangeBetweenTwoRunsIsRefused) {
  EXPECT_THROW(run(options(), 5), std::runtime_error);
  const auto refused = [&](const QuantizeOptions& given) { return error_of([&] { run(given); }, ErrorCode::usage); };
  QuantizeOptions given = options(3);
  expect_parts(refused(given), {"run.json", "settings experts was another"});
  given = options();
  given.exl3.seed = 1;
  expect_parts(refused(given), {"settings seed"});
  given = options();
  given.exl3.calibration_files[0].sha256[0] = 'b';
  expect_parts(refused(given), {"calibration text.jsonl"});
  given = options();
  given.exl3.calibration = counted_windows({150, 61}, 203, 150);
  expect_parts(refused(given), {"calibration tokens"});
  std::string weights = read_file(given.model / "model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  model::testing::write_file(given.model / "model.safetensors", weights);
  expect_parts(refused(options()), {"source model.safetensors"});
}

TEST_F(EncodeModel, WhatAStopAfterTheRenameLeavesIsRemovedByTheSameRun) {
  QuantizeOptions given = options(0);
  given.exl3.bits_target = 3;
  EXPECT_THROW(run(given, 600), std::runtime_error) << "after the candidates";
  const fs::path copy = folder_.path() / "copy";
  fs::copy(kept(), copy, fs::copy_options::recursive);
  const QuantizeReport whole = run(given);
  const auto expected = content(out());
  const auto leave = [&] { fs::copy(copy, kept(), fs::copy_options::recursive); };
  leave();
  const QuantizeReport report = run(given);
  EXPECT_FALSE(fs::exists(kept()));
  EXPECT_TRUE(content(out()) == expected);
  EXPECT_EQ(report.bytes, whole.bytes);
  EXPECT_DOUBLE_EQ(report.average_bits, whole.average_bits);
  EXPECT_EQ(report.resumed_tensors, std::ssize(whole.encoded));
  ASSERT_FALSE(report.notes.empty());
  expect_parts(report.notes[0], {"an earlier run", "removed"});
  // The removal was stopped, too: once with run.json left, once with nothing left but the folder.
  leave();
  fs::remove_all(kept() / "finished");
  run(given);
  EXPECT_FALSE(fs::exists(kept()));
  fs::create_directory(kept());
  run(given);
  EXPECT_FALSE(fs::exists(kept()));
  // Of another run, it is left alone, and so is the folder.
  leave();
  given.exl3.seed = 1;
  expect_parts(error_of([&] { run(given); }, ErrorCode::usage), {"--out", "is there"});
  given.exl3.seed = 0;
  EXPECT_TRUE(fs::exists(kept() / "run.json"));
  // A folder that was changed since is no reason to throw away what it can be made from.
  model::testing::write_file(out() / "quantization_config.json", "{}");
  expect_parts(error_of([&] { run(given); }, ErrorCode::failed_check),
               {"quantization_config.json: 2 bytes", "out.tmp"});
  fs::remove_all(out());
  run(given);
  EXPECT_TRUE(content(out()) == expected);
  expect_parts(error_of([&] { run(given); }, ErrorCode::usage), {"--out", "is there"});
}

TEST_F(EncodeModel, WithoutTextMatricesHaveNoFeedback) {
  QuantizeOptions given = options(3);
  given.exl3.calibration = {};
  given.exl3.calibration_files.clear();
  given.exl3.is_calibrated = false;
  const QuantizeReport report = run(given);
  for (const EncodedTensor& tensor : report.encoded) {
    EXPECT_TRUE(tensor.fallback) << tensor.name;
    EXPECT_EQ(tensor.calibration_rows, 0) << tensor.name;
  }
  ASSERT_EQ(report.notes.size(), 1u);
  expect_parts(report.notes[0], {"without calibration text"});
  model::load_text_weights(model::Checkpoint::open(out()), model::read_shape(out()));
  for (const RecheckResult& result : recheck(out(), read_manifest(out()), given, 3, 1, [](int64_t, int64_t) {}))
    EXPECT_EQ(result.fault, "") << result.name;
  expect_parts(error_of([&] { recheck(out(), read_manifest(out()), options(3), 3, 1, [](int64_t, int64_t) {}); },
                        ErrorCode::failed_check),
               {"calibration"});
  fs::remove_all(out());
  given.exl3.bits_target = 3;
  expect_parts(error_of([&] { run(given); }, ErrorCode::usage), {"--bits-target", "--calibration none"});
}

TEST_F(EncodeModel, WhatItRefuses) {
  const auto refused = [&](const QuantizeOptions& given, ErrorCode code) {
    std::string message = error_of([&] { run(given); }, code);
    EXPECT_FALSE(fs::exists(out()));
    return message;
  };
  QuantizeOptions given = options();
  given.exl3.calibration = counted_windows({100, 27}, 203, 100);
  expect_parts(refused(given, ErrorCode::usage), {"--calibration", "127 tokens", "128"});
  given = options();
  given.exl3.calibration = counted_windows({150}, 500, 150);
  given.exl3.calibration.windows[0].ids[9] = 203;
  expect_parts(refused(given, ErrorCode::bad_file), {"--calibration", "token 203", "vocab_size 203"});
  given = options(0);
  expect_parts(refused(given, ErrorCode::usage), {"--experts", "exl3:0"});
  given = options();
  given.exl3.bits_target = 9;
  expect_parts(refused(given, ErrorCode::usage), {"--bits-target", "9"});
  fs::remove_all(kept());
  given = options();
  given.exl3.layout = Exl3Layout::tr3;
  given.head = Coding::exl3;
  given.exl3.head_bits = 6;
  expect_parts(refused(given, ErrorCode::usage), {"--layout tr3", "routed experts"});
  // o_proj of KDA has 96 inputs, cut for two ranks at 64.
  given = options();
  given.dense = Coding::exl3;
  given.exl3.dense_bits = 4;
  expect_parts(refused(given, ErrorCode::usage), {"o_proj.weight has 96 inputs, of which 64", "128"});
  fs::create_directory(kept());
  model::testing::write_file(kept() / "mine.txt", "x");
  expect_parts(refused(options(), ErrorCode::usage), {"out.tmp is there", "earlier run"});
  fs::remove_all(kept());
  fs::create_directory(out());
  expect_parts(error_of([&] { run(options()); }, ErrorCode::usage), {"--out", "is there"});
}

TEST_F(EncodeModel, ExpertsThatNoTokenReachedAreTold) {
  QuantizeOptions given = options();
  given.exl3.calibration = counted_windows({}, 203, 130);
  given.exl3.calibration.windows.resize(1);
  given.exl3.calibration.windows[0].ids.assign(130, 7);  // one token again and again: few experts are chosen
  const QuantizeReport report = run(given);
  int64_t fallbacks = 0;
  for (const EncodedTensor& tensor : report.encoded) fallbacks += tensor.fallback ? 1 : 0;
  EXPECT_GT(fallbacks, 0);
  EXPECT_LT(fallbacks, 100);
  ASSERT_FALSE(report.notes.empty());
  expect_parts(report.notes[0], {"mlp.experts.", "0 calibration rows", "without error feedback"});
  expect_parts(quantize_text(report), {report.notes[0]});
}

TEST_F(EncodeModel, RecheckEncodesAgainAndCompares) {
  run(options());
  const Manifest manifest = read_manifest(out());
  const auto nothing = [](int64_t, int64_t) {};
  std::vector<RecheckResult> results = recheck(out(), manifest, options(), 5, 1, nothing);
  ASSERT_EQ(results.size(), 5u);
  for (const RecheckResult& result : results) EXPECT_EQ(result.fault, "") << result.name;
  // Another byte of one of them, with a manifest that agrees.
  const std::string changed = results[2].name + ".svh";
  std::string bytes = read_file(out() / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto offsets = nlohmann::json::parse(bytes.substr(8, header))[changed]["data_offsets"];
  bytes[8 + header + offsets[0].get<size_t>() + 3] ^= 1;
  model::testing::write_file(out() / "model.safetensors", bytes);
  results = recheck(out(), manifest, options(), 5, 1, nothing);
  for (const RecheckResult& result : results)
    EXPECT_EQ(result.fault, result.name + ".svh" == changed ? changed + " differs at byte 3" : "") << result.name;
  QuantizeOptions other = options();
  other.exl3.calibration_files[0].bytes = 11;
  expect_parts(error_of([&] { recheck(out(), manifest, other, 5, 1, nothing); }, ErrorCode::failed_check),
               {"calibration text.jsonl"});
}

TEST_F(EncodeModel, Tr3SharesVectorsWithinALayer) {
  QuantizeOptions given = options(4);
  given.exl3.layout = Exl3Layout::tr3;
  given.exl3.codebook = quant::Exl3Codebook::mcg;
  const QuantizeReport report = run(given);
  EXPECT_EQ(report.encoded.size(), 7u * 6 * 3) << "routed experts alone";
  const model::Checkpoint made = model::Checkpoint::open(out());
  model::load_text_weights(made, model::read_shape(out()));
  const auto bytes = [&](const std::string& name) {
    const auto& data = made.at("model.language_model.layers." + name).data;
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
  };
  for (const char* layer : {"1", "8"}) {
    const std::string experts = std::string(layer) + ".mlp.experts.";
    for (const char* name : {"1.gate_proj.suh", "5.gate_proj.suh", "0.up_proj.suh", "4.up_proj.suh"})
      EXPECT_TRUE(bytes(experts + name) == bytes(experts + "0.gate_proj.suh")) << name;
    for (const char* name : {"1.down_proj.svh", "5.down_proj.svh"})
      EXPECT_TRUE(bytes(experts + name) == bytes(experts + "0.down_proj.svh")) << name;
  }
  EXPECT_FALSE(bytes("1.mlp.experts.0.up_proj.suh") == bytes("2.mlp.experts.0.up_proj.suh"));
  EXPECT_EQ(made.at("model.language_model.layers.1.mlp.experts.0.up_proj.mcg").shape, std::vector<int64_t>{1});
  const auto config = nlohmann::json::parse(read_file(out() / "config.json"))["quantization_config"];
  EXPECT_EQ(config["scope"], "glm53_routed_experts_only");
  const auto results = recheck(out(), read_manifest(out()), given, 6, 3, [](int64_t, int64_t) {});
  for (const RecheckResult& result : results) EXPECT_EQ(result.fault, "") << result.name;
}

TEST_F(EncodeModel, TargetOfBitsIsKept) {
  QuantizeOptions given = options(0);
  given.exl3.bits_target = 3;
  EXPECT_THROW(run(given, 300), std::runtime_error) << "among the candidates";
  const QuantizeReport report = run(given);
  EXPECT_LE(report.average_bits, 3);
  EXPECT_GE(report.average_bits, 2);
  const Manifest manifest = read_manifest(out());
  std::map<int, int> widths;
  for (const EncodedTensor& tensor : manifest.tensors) ++widths[tensor.bits];
  EXPECT_EQ(widths.begin()->first, 2) << "wider ones are paid for by narrower ones";
  EXPECT_LE(widths.rbegin()->first, 5);
  bool is_told = false;
  for (const std::string& note : report.notes) is_told = is_told || note.find("layer 1 experts down: ") == 0;
  EXPECT_TRUE(is_told);
  model::load_text_weights(model::Checkpoint::open(out()), model::read_shape(out()));
  for (const RecheckResult& result : recheck(out(), manifest, given, 4, 2, [](int64_t, int64_t) {}))
    EXPECT_EQ(result.fault, "") << result.name;
}

}  // namespace
}  // namespace tandem::eval::encode_model_test
