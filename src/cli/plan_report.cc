// The plan as text and as JSON.
#include "cli/plan_report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;
using Output = std::back_insert_iterator<std::string>;

std::string grouped(int64_t number) { return fmt::format("{}", fmt::group_digits(number)); }
std::string gib(int64_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

// Bytes in the unit that shows them best.
std::string printed_size(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return gib(bytes);
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
}

void print_device(Output out, const PlanReport& r) {
  if (r.on_gpus) {
    fmt::format_to(out, "devices      {} x {}, {} of each planned\n", r.devices, gib(r.device_memory),
                   gib(r.usable_memory));
  } else {
    fmt::format_to(out, "devices      host memory {}\n", gib(r.device_memory));
  }
  fmt::format_to(out, "ranks        tensor parallel {}{}, context parallel {}\n", r.ranks.tensor_parallel_size,
                 r.ranks.tensor_parallel_size > 1 ? " (experts whole on one rank)" : "",
                 r.ranks.decode_context_parallel_size);
}

// Where the DFlash2 drafter comes from; empty: there is none.
std::string dflash2_name(const Drafting& drafting) {
  if (!drafting.shape) return "";
  return drafting.folder.empty() ? "published" : drafting.folder.string();
}

void print_drafters(Output out, const Drafting& drafting) {
  std::vector<std::string> loaded;
  if (drafting.copy) loaded.emplace_back("copies");
  if (drafting.mtp) loaded.emplace_back("MTP (with the weights)");
  if (drafting.shape) loaded.push_back(fmt::format("DFlash2 ({})", dflash2_name(drafting)));
  fmt::format_to(out, "drafter      {}{}{}\n", draft::name_of(drafting.choice), loaded.empty() ? "" : ": ",
                 fmt::join(loaded, ", "));
}

void print_weights(Output out, const PlanReport& r) {
  fmt::format_to(out, "weights      {} parameters, {}: {} bytes ({})\n", grouped(r.weights.parameters),
                 r.weights_format, grouped(r.weights.total), gib(r.weights.total));
  for (const model::FormatRow& row : r.weights.rows)
    fmt::format_to(out, "  {:<20} {:<24} {:>17} parameters {:>17} bytes\n",
                   fmt::format("{}{}", row.mtp ? "mtp " : "", model::component_name(row.component)), row.format,
                   grouped(row.parameters), grouped(row.bytes));
  print_drafters(out, r.drafting);
  fmt::format_to(out, "vision       {}\n", r.vision_bytes == 0 ? "off" : "on");
}

void print_parts(Output out, const char* name, const engine::StateParts& parts, int64_t drafter) {
  fmt::format_to(out, "{:<12} {} bytes ({}): KDA {}, log {}, convolution {}, index {}, head {}", name,
                 grouped(parts.total() + drafter), printed_size(parts.total() + drafter), printed_size(parts.kda),
                 printed_size(parts.log), printed_size(parts.conv), printed_size(parts.index),
                 printed_size(parts.head));
  if (drafter > 0) fmt::format_to(out, ", drafter {}", printed_size(drafter));
  fmt::format_to(out, "\n");
}

void print_cache(Output out, const PlanReport& r) {
  fmt::format_to(out, "token        {} bytes of a rank ({}): {} layers x ({} + {} / {}){}\n", r.bytes_per_token(),
                 r.row.format, r.layers, r.row.latent_bytes, r.row.pool_bytes, r.tokens_per_pool,
                 r.ranks.decode_context_parallel_size > 1 ? ", half of the tokens on each" : "");
  print_parts(out, "stream", r.stream, r.stream_drafter);
  print_parts(out, "kept state", r.kept_state, r.kept_drafter);
}

void print_row(Output out, const PlanReport& r, const char* name, const std::array<int64_t, 2>& bytes) {
  if (bytes[0] == 0 && bytes[1] == 0) return;
  fmt::format_to(out, "  {:<28} {:>12}", name, printed_size(bytes[0]));
  if (r.ranks.tensor_parallel_size == 2) fmt::format_to(out, " {:>12}", printed_size(bytes[1]));
  fmt::format_to(out, "\n");
}

void print_plan(Output out, const PlanReport& r) {
  const engine::Plan& plan = *r.plan;
  const forward::Capacity& c = plan.capacity;
  const auto both = [](int64_t bytes) { return std::array{bytes, bytes}; };
  const int ranks = r.ranks.tensor_parallel_size;
  fmt::format_to(out, "\n  {:<28} {:>12}", "", "rank 0");
  fmt::format_to(out, "{}\n", ranks == 2 ? "       rank 1" : "");
  print_row(out, r, "weights", {r.weights.of_rank(0, ranks), r.weights.of_rank(1, 2)});
  print_row(out, r, "drafter", r.drafter_bytes);
  print_row(out, r, "vision, with workspace", {r.vision_bytes + r.vision_workspace, 0});
  print_row(out, r, fmt::format("pool of {} pages", grouped(c.pages)).c_str(), both(c.pages * plan.page_bytes));
  print_row(out, r, fmt::format("{} streams", c.slots).c_str(), both(c.slots * r.stream_bytes()));
  print_row(out, r, fmt::format("{} kept states", grouped(c.kept_states)).c_str(),
            both(c.kept_states * r.kept_state_bytes()));
  print_row(out, r, fmt::format("activations of {} rows", c.max_rows).c_str(), both(r.activations()));
  print_row(out, r, "all", {r.resident(0) + plan.total_bytes, r.resident(1) + plan.total_bytes});
  fmt::format_to(out, "\npool         {} rows of all ranks\n", grouped(plan.pool_rows));
  fmt::format_to(out, "request      at most {} tokens of prompt and reply; {:.2f} such requests at a time\n",
                 grouped(plan.max_model_len),
                 static_cast<double>(plan.pool_rows) / static_cast<double>(plan.max_model_len));
}

Json parts_json(const engine::StateParts& parts, int64_t drafter) {
  return {{"bytes", parts.total() + drafter},
          {"kda", parts.kda},
          {"log", parts.log},
          {"convolution", parts.conv},
          {"index", parts.index},
          {"head", parts.head},
          {"drafter", drafter}};
}

Json weights_json(const PlanReport& r) {
  const int ranks = r.ranks.tensor_parallel_size;
  Json of_ranks = Json::array();
  for (int rank = 0; rank < ranks; ++rank)
    of_ranks.push_back({{"text", r.weights.of_rank(rank, ranks)},
                        {"drafter", r.drafter_bytes[static_cast<size_t>(rank)]},
                        {"vision", rank == 0 ? r.vision_bytes : 0},
                        {"vision_workspace", rank == 0 ? r.vision_workspace : 0},
                        {"total", r.resident(rank)}});
  Json components = Json::array();
  for (const model::FormatRow& row : r.weights.rows)
    components.push_back({{"component", model::component_name(row.component)},
                          {"mtp", row.mtp},
                          {"format", row.format},
                          {"parameters", row.parameters},
                          {"bytes", row.bytes}});
  return {{"format", r.weights_format},
          {"parameters", r.weights.parameters},
          {"bytes", r.weights.total},
          {"components", components},
          {"ranks", of_ranks}};
}

Json capacity_json(const PlanReport& r) {
  if (!r.plan) return nullptr;
  const engine::Plan& plan = *r.plan;
  const forward::Capacity& c = plan.capacity;
  Json totals = Json::array();
  for (int rank = 0; rank < r.ranks.tensor_parallel_size; ++rank) totals.push_back(r.resident(rank) + plan.total_bytes);
  return {{"max_model_len", plan.max_model_len},
          {"pool_rows", plan.pool_rows},
          {"pages", c.pages},
          {"page_rows", c.page_rows},
          {"page_bytes", plan.page_bytes},
          {"pool_bytes", c.pages * plan.page_bytes},
          {"max_stream_pages", c.max_stream_pages},
          {"max_num_seqs", c.slots},
          {"kept_states", c.kept_states},
          {"max_num_batched_tokens", c.max_rows},
          {"max_logit_rows", c.max_logit_rows},
          {"activation_bytes", r.activations()},
          {"planned_bytes", plan.total_bytes},
          {"rank_bytes", totals}};
}

}  // namespace

int64_t PlanReport::resident(int rank) const {
  const int size = ranks.tensor_parallel_size;
  if (rank >= size) return 0;
  return weights.of_rank(rank, size) + drafter_bytes[static_cast<size_t>(rank)] +
         (rank == 0 ? vision_bytes + vision_workspace : 0);
}

double PlanReport::bytes_per_token() const {
  return static_cast<double>(layers) *
         (static_cast<double>(row.latent_bytes) +
          static_cast<double>(row.pool_bytes) / static_cast<double>(tokens_per_pool)) /
         ranks.decode_context_parallel_size;
}

int64_t PlanReport::activations() const {
  const forward::Capacity& c = plan->capacity;
  return plan->total_bytes - c.pages * plan->page_bytes - c.slots * stream_bytes() - c.kept_states * kept_state_bytes();
}

std::string plan_text(const PlanReport& report) {
  std::string text = report.model + "\n\n";
  const Output out(text);
  print_device(out, report);
  print_weights(out, report);
  print_cache(out, report);
  if (report.plan) {
    print_plan(out, report);
  } else {
    fmt::format_to(out, "\ndoes not fit: {}\n", report.problem);
    for (const std::string& change : report.changes) fmt::format_to(out, "  would fit: {}\n", change);
  }
  return text;
}

std::string plan_json(const PlanReport& r) {
  Json json = {{"schema", "tandem.plan/1"},
               {"model", r.model},
               {"fits", r.plan.has_value()},
               {"device",
                {{"kind", r.on_gpus ? "gpu" : "host"},
                 {"count", r.devices},
                 {"memory_bytes", r.device_memory},
                 {"usable_bytes", r.usable_memory}}},
               {"tensor_parallel_size", r.ranks.tensor_parallel_size},
               {"decode_context_parallel_size", r.ranks.decode_context_parallel_size},
               {"drafter", draft::name_of(r.drafting.choice)},
               {"drafters",
                {{"copy", r.drafting.copy},
                 {"mtp", r.drafting.mtp},
                 {"dflash2", r.drafting.shape ? Json(dflash2_name(r.drafting)) : Json(nullptr)}}},
               {"vision", r.vision_bytes > 0},
               {"weights", weights_json(r)},
               {"cache",
                {{"kv_cache_dtype", r.kv_cache_dtype},
                 {"layers", r.layers},
                 {"latent_bytes", r.row.latent_bytes},
                 {"pool_bytes", r.row.pool_bytes},
                 {"tokens_per_pool", r.tokens_per_pool},
                 {"bytes_per_token_and_rank", r.bytes_per_token()}}},
               {"stream", parts_json(r.stream, r.stream_drafter)},
               {"kept_state", parts_json(r.kept_state, r.kept_drafter)},
               {"capacity", capacity_json(r)},
               {"problem", r.plan ? Json(nullptr) : Json(r.problem)},
               {"would_fit", r.changes}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::cli
