// Flags to what is loaded.
#include "cli/drafting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <system_error>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/log.h"
#include "draft/policy.h"
#include "draft/timing_file.h"
#include "model/inventory.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Rows of a step that verifies, beside the pending ones (spec/speculation.md 5.2): beyond, a row costs more than it
// yields on any machine.
constexpr int32_t most_draft_rows = 56;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

fs::path sibling(const fs::path& model) {
  const fs::path whole = fs::absolute(model).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).string() + "-dflash2";
}

void add_dflash2(Drafting& drafting, const DraftingFlags& flags, const fs::path& model, const model::Shape& shape) {
  const bool is_named = !flags.drafter_model.empty();
  const fs::path folder = is_named ? flags.drafter_model : sibling(model);
  if (!is_there(folder / "config.json")) {
    if (!is_named && drafting.choice == draft::Choice::automatic) return;
    throw Error(
        is_named ? ErrorCode::bad_file : ErrorCode::usage, is_named ? folder.string() : "--drafter",
        is_named ? "has no config.json" : fmt::format("dflash2, but {} is no drafter's folder", folder.string()),
        is_named ? "the folder of a DFlash2 drafter" : "--drafter-model DIR");
  }
  drafting.shape = model::read_drafter_shape(folder);
  model::check_drafter_fits(*drafting.shape, shape, (folder / "config.json").string());
  drafting.folder = folder;
}

void check_depth(const DraftingFlags& flags, const Drafting& drafting) {
  if (!flags.num_speculative_tokens) return;
  const int32_t depth = *flags.num_speculative_tokens;
  int64_t most = draft::most_drafts;
  if (drafting.choice == draft::Choice::mtp) most = draft::ModelDrafterOptions{}.mtp_depth;
  if (drafting.choice == draft::Choice::dflash2) most = drafting.shape->draft_rows();
  if (depth < 1 || depth > most)
    throw Error(ErrorCode::usage, "--num-speculative-tokens", fmt::format("{}", depth),
                fmt::format("1 to {} with --drafter {} (none for no drafts)", most, draft::name_of(drafting.choice)));
}

// Errors name the folder: two models are loaded, and their files may have the same names.
model::DrafterWeights load_weights(const Drafting& drafting, const model::Checkpoint& checkpoint) {
  try {
    return model::load_drafter_weights(checkpoint, *drafting.shape);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}", drafting.folder.string(), e.where()), e.found(), e.expected());
  }
}

}  // namespace

int32_t Drafting::draft_rows(int32_t streams) const {
  if (choice == draft::Choice::none) return 0;
  return std::min(streams * draft::most_drafts, most_draft_rows);
}

bool holds_mtp(const model::Checkpoint& checkpoint, const model::Shape& shape) {
  if (shape.num_nextn_predict_layers == 0) return false;
  const std::string prefix = fmt::format(".layers.{}.", shape.num_hidden_layers);
  const auto tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const model::Tensor* tensor) { return tensor->name.find(prefix) != std::string::npos; });
}

Drafting resolve_drafting(const DraftingFlags& flags, const fs::path& model, const model::Shape& shape, bool has_mtp) {
  using draft::Choice;
  Drafting drafting;
  drafting.choice = draft::parse_choice(flags.drafter, "--drafter");
  drafting.policy = draft::parse_policy(flags.policy);
  if (flags.verify != "exact" && flags.verify != "ratio")
    throw Error(ErrorCode::usage, "--draft-verify", fmt::format("'{}'", flags.verify), "exact or ratio");
  drafting.verify = flags.verify == "ratio" ? engine::DraftVerify::ratio : engine::DraftVerify::exact;
  if (drafting.choice == Choice::none) {
    if (flags.num_speculative_tokens)
      throw Error(ErrorCode::usage, "--num-speculative-tokens", "given with --drafter none", "one of them");
    return drafting;
  }
  drafting.taps_in_fp32 = flags.taps_in_fp32;
  drafting.copy = flags.copy_beside_model || drafting.choice == Choice::copy || drafting.choice == Choice::automatic;
  drafting.mtp = has_mtp && (drafting.choice == Choice::mtp || drafting.choice == Choice::automatic);
  if (drafting.choice == Choice::mtp && !has_mtp)
    throw Error(ErrorCode::usage, "--drafter", "mtp, but the model has no MTP layer", "none, copy, dflash2 or auto");
  if (drafting.choice == Choice::dflash2 || drafting.choice == Choice::automatic)
    add_dflash2(drafting, flags, model, shape);
  if (!flags.drafter_model.empty() && !drafting.shape)
    throw Error(ErrorCode::usage, "--drafter-model", fmt::format("given with --drafter {}", flags.drafter),
                "--drafter dflash2 or auto");
  check_depth(flags, drafting);
  drafting.policy.depth = flags.num_speculative_tokens.value_or(0);
  return drafting;
}

std::string text_of(const Drafting& drafting, const draft::TimingTable& table) {
  if (drafting.choice == draft::Choice::none) return "none";
  std::string text = "copy";
  if (drafting.mtp) text += ", mtp";
  if (drafting.shape) text += fmt::format(", dflash2 ({})", drafting.folder.string());
  text += fmt::format("; {} unless a request says else; policy {}", draft::name_of(drafting.choice),
                      draft::text_of(drafting.policy));
  if (drafting.policy.depth > 0) text += fmt::format(", at most {}", drafting.policy.depth);
  const bool measured = table.id != draft::built_in_table().id;
  text += measured ? fmt::format(" by timing table {}", table.id)
                   : std::string(" by the built-in timing table (tandem calibrate timing measures this machine)");
  if (drafting.verify == engine::DraftVerify::ratio) text += "; ratio verification";
  return text;
}

DrafterFiles::DrafterFiles(const Drafting& drafting)
    : shape_(*drafting.shape),
      checkpoint_(model::Checkpoint::open(drafting.folder)),
      weights_(load_weights(drafting, checkpoint_)),
      taps_in_fp32_(drafting.taps_in_fp32) {}

engine::DraftOptions draft_options(const Drafting& drafting, const draft::TimingTable& table) {
  engine::DraftOptions options;
  options.choice = drafting.choice;
  options.has_copy = drafting.copy;
  options.has_mtp = drafting.mtp;
  options.has_dflash2 = drafting.shape.has_value();
  options.policy = drafting.policy;
  options.table = table;
  options.verify = drafting.verify;
  options.context_rows = drafting.shape ? drafting.shape->kept_rows() : 0;
  return options;
}

draft::ModelDrafterOptions drafter_options(const Drafting& drafting, const draft::TimingTable& table,
                                           const forward::Capacity& capacity, int64_t vocab_size) {
  draft::ModelDrafterOptions options;
  options.slots = capacity.slots;
  options.max_rows = capacity.max_rows;
  options.page_rows = capacity.page_rows;
  options.max_stream_pages = capacity.max_stream_pages;
  options.vocab_size = vocab_size;
  options.copy = drafting.copy;
  options.mtp = drafting.mtp;
  options.dflash2 = drafting.shape.has_value();
  if (drafting.shape) options.block_rows = static_cast<int32_t>(drafting.shape->block_size);
  options.policy = drafting.policy;
  options.table = table;
  return options;
}

fs::path calibration_file(const DraftingFlags& flags, const std::string& key) {
  fs::path folder = flags.cache_dir;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (folder.empty() && !variable("XDG_CACHE_HOME").empty()) folder = variable("XDG_CACHE_HOME") / "tandem";
  if (folder.empty()) folder = (variable("HOME").empty() ? fs::path("/tmp") : variable("HOME")) / ".cache" / "tandem";
  const uint32_t name = crc32c(std::as_bytes(std::span(key.data(), key.size())));
  return folder / "calibration" / fmt::format("{:08x}.json", name);
}

draft::TimingTable unmeasured_table(const Drafting& drafting, const model::Shape& shape) {
  if (!drafting.shape) return draft::built_in_table();
  const model::DrafterShape& d = *drafting.shape;
  const int64_t touched = d.parameters() - 2 * d.vocab_size * d.selector_rank;  // of the codebooks only a few rows
  return draft::built_in_table(static_cast<double>(touched) /
                               static_cast<double>(model::make_inventory(shape).active_parameters));
}

draft::TimingTable stored_table(const DraftingFlags& flags, const std::string& key,
                                const draft::TimingTable& unmeasured) {
  const fs::path file = calibration_file(flags, key);
  if (!is_there(file)) return unmeasured;
  try {
    return draft::read_timing(file, key);
  } catch (const Error& e) {
    log(LogLevel::warning, "{}; the built-in timing table is used", e.what());
    return unmeasured;
  }
}

}  // namespace tandem::cli
