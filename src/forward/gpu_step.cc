// Writes a step into pinned memory as kernels want it, and queues the upload.
#include "forward/gpu_step.h"

#include <algorithm>

namespace tandem::forward {
namespace {

int64_t table_entries(const Capacity& c) {
  return c.slots * (c.max_stream_pages > 0 ? std::min(c.max_stream_pages, c.pages) : c.pages);
}

}  // namespace

// Bytes from the block's start. Page tables come last: only what a step has of them travels.
struct GpuStep::Layout {
  int64_t counts = 0, tokens, positions, segment_of_row, segments, logit_rows, logit_sources, hidden_sources,
          context_rows, context_slots, context_positions, context_first, pending, samples, masked_tokens, page_tables,
          size;

  Layout(const Capacity& c, int64_t block_size) {
    int64_t used = 0;
    const auto take = [&used](int64_t bytes) {
      const int64_t at = used;
      used += (bytes + 63) / 64 * 64;
      return at;
    };
    const int64_t rows = std::max<int64_t>(c.max_rows, c.slots * block_size);
    const int64_t sources = std::max<int64_t>(c.max_logit_rows, c.slots * block_size);
    const int64_t context = block_size > 0 ? c.max_rows : 0;
    counts = take(ops::step_counts * 4);
    tokens = take(rows * 4);
    positions = take(rows * 4);
    segment_of_row = take(rows * 4);
    segments = take(c.slots * static_cast<int64_t>(sizeof(ops::SegmentView)));
    logit_rows = take(int64_t{c.max_logit_rows} * 4);
    logit_sources = take(sources * static_cast<int64_t>(sizeof(ops::RowSource)));
    hidden_sources = take(rows * static_cast<int64_t>(sizeof(ops::RowSource)));
    context_rows = take(context * 4);
    context_slots = take(context * 4);
    context_positions = take(context * 4);
    context_first = take(int64_t{c.slots} * 4);
    pending = take(int64_t{c.slots} * 4);
    samples = take(int64_t{c.max_logit_rows} * static_cast<int64_t>(sizeof(ops::SampleRow)));
    masked_tokens = take(int64_t{c.max_logit_rows} * RowSample::most_masked * 4);
    page_tables = take(table_entries(c) * 4);
    size = used;
  }
};

int64_t GpuStep::bytes(const Capacity& capacity, int64_t block_size) { return Layout(capacity, block_size).size; }

GpuStep::GpuStep(device::Gpu& gpu, const Capacity& capacity, int64_t block_size)
    : gpu_(gpu),
      capacity_(capacity),
      block_size_(block_size),
      host_(gpu.allocate_pinned(bytes(capacity, block_size), "a step")),
      device_(gpu.allocate(bytes(capacity, block_size), "a step")) {
  const Layout at(capacity, block_size);
  const auto array = [&]<typename T>(int64_t offset, const T*& pointer) {
    pointer = reinterpret_cast<const T*>(device_.data() + offset);
  };
  array(at.counts, view_.counts);
  array(at.tokens, view_.tokens);
  array(at.positions, view_.positions);
  array(at.segment_of_row, view_.segment_of_row);
  array(at.segments, view_.segments);
  array(at.logit_rows, view_.logit_rows);
  array(at.page_tables, view_.page_tables);
  array(at.logit_sources, logit_sources_);
  array(at.hidden_sources, hidden_sources_);
  array(at.context_rows, context_rows_);
  array(at.context_slots, context_slots_);
  array(at.context_positions, context_positions_);
  array(at.context_first, context_first_);
  array(at.pending, pending_);
  array(at.samples, samples_);
  array(at.masked_tokens, masked_tokens_);
}

void GpuStep::write_samples(const Step& step, const Layout& at) {
  auto* samples = host<ops::SampleRow>(at.samples);
  for (const RowSample& s : step.samples)
    *samples++ = {s.temperature, s.top_p, s.min_p,        s.seed,   s.position,         s.row,
                  s.top_k,       s.size,  s.first_masked, s.masked, s.wants_probability};
  std::copy(step.masked_tokens.begin(), step.masked_tokens.end(), host<int32_t>(at.masked_tokens));
  host<int32_t>(at.counts)[step_samples] = static_cast<int32_t>(step.samples.size());
}

void GpuStep::write_context(const Step& step, const Layout& at, cache::ContextBook& context) {
  int32_t *rows = host<int32_t>(at.context_rows), *slots = host<int32_t>(at.context_slots),
          *positions = host<int32_t>(at.context_positions), count = 0;
  for (const Segment& s : step.segments) {
    for (int64_t p = context.begin_rows(s.slot, s.position, s.rows, s.context_from); p < s.position + s.rows; ++p) {
      rows[count] = static_cast<int32_t>(s.first_row + p - s.position);
      slots[count] = s.slot;
      positions[count] = static_cast<int32_t>(p);
      ++count;
    }
  }
  host<int32_t>(at.counts)[step_context_rows] = count;
}

void GpuStep::upload(const Step& step, const StepBook& book, std::span<const int64_t> kda_blocks,
                     cache::ContextBook* context) {
  const Layout at(capacity_, block_size_);
  auto* counts = host<int32_t>(at.counts);
  std::fill_n(counts, ops::step_counts, 0);
  counts[ops::step_rows] = static_cast<int32_t>(step.tokens.size());
  counts[ops::step_segments] = static_cast<int32_t>(step.segments.size());
  counts[ops::step_logit_rows] = static_cast<int32_t>(step.logit_rows.size() + step.head_slots.size());
  std::copy(step.tokens.begin(), step.tokens.end(), host<int32_t>(at.tokens));
  std::transform(step.positions.begin(), step.positions.end(), host<int32_t>(at.positions),
                 [](int64_t position) { return static_cast<int32_t>(position); });
  auto* segment_of_row = host<int32_t>(at.segment_of_row);
  auto* segments = host<ops::SegmentView>(at.segments);
  auto* hidden = host<ops::RowSource>(at.hidden_sources);
  for (size_t i = 0; i < step.segments.size(); ++i) {
    const Segment& s = step.segments[i];
    std::fill_n(segment_of_row + s.first_row, s.rows, static_cast<int32_t>(i));
    const int64_t block = s.position == 0 ? 0 : kda_blocks[static_cast<size_t>(s.slot)];
    segments[i] = {s.slot,
                   s.page_table,
                   s.first_row,
                   s.rows,
                   s.certain_rows,
                   static_cast<int32_t>(s.position),
                   static_cast<int32_t>(block),
                   0};
    if (step.kind == StepKind::text) continue;
    for (int32_t row = 0; row < s.rows; ++row) {
      const HiddenSource source = book.hidden_source(step, s, row);
      const int32_t place = source.place == HiddenPlace::head_ring ? ops::row_of_ring
                            : source.place == HiddenPlace::chain   ? ops::row_of_slot
                                                                   : ops::row_of_step;
      hidden[s.first_row + row] = {place, static_cast<int32_t>(source.index), s.slot};
    }
  }
  auto* sources = host<ops::RowSource>(at.logit_sources);
  std::copy(step.logit_rows.begin(), step.logit_rows.end(), host<int32_t>(at.logit_rows));
  for (const int32_t row : step.logit_rows) *sources++ = {ops::row_of_step, row, 0};
  for (const int32_t slot : step.head_slots)
    *sources++ = {ops::row_of_ring, static_cast<int32_t>(book.end[static_cast<size_t>(slot)] - 1), slot};
  write_samples(step, at);
  if (context != nullptr && step.kind == StepKind::text) write_context(step, at, *context);
  std::copy(step.page_tables.begin(), step.page_tables.end(), host<int32_t>(at.page_tables));
  gpu_.upload(device_.data(), host_.data(), at.page_tables + std::ssize(step.page_tables) * 4);
}

void GpuStep::upload_blocks(const Step& step, const cache::ContextBook& context, int64_t block_size,
                            int32_t mask_token) {
  const Layout at(capacity_, block_size_);
  const auto blocks = static_cast<int32_t>(step.segments.size()), rows = static_cast<int32_t>(block_size);
  auto* counts = host<int32_t>(at.counts);
  std::fill_n(counts, ops::step_counts, 0);
  counts[ops::step_rows] = blocks * rows;
  counts[ops::step_segments] = blocks;
  counts[ops::step_logit_rows] = blocks * (rows - 1);
  auto* tokens = host<int32_t>(at.tokens);
  auto* sources = host<ops::RowSource>(at.logit_sources);
  for (int32_t block = 0; block < blocks; ++block) {
    const Segment& s = step.segments[static_cast<size_t>(block)];
    const auto position = static_cast<int32_t>(s.position);
    host<ops::SegmentView>(at.segments)[block] = {s.slot, 0, block * rows, rows, 0, position, 0, 0};
    host<int32_t>(at.positions)[block] = position;
    host<int32_t>(at.pending)[block] = step.tokens[static_cast<size_t>(block)];
    host<int32_t>(at.context_first)[block] = static_cast<int32_t>(context.valid_from(s.slot));
    for (int32_t row = 0; row < rows; ++row) {
      *tokens++ = row == 0 ? step.tokens[static_cast<size_t>(block)] : mask_token;
      if (row > 0) *sources++ = {ops::row_of_step, block * rows + row, 0};
    }
  }
  gpu_.upload(device_.data(), host_.data(), at.page_tables);
}

}  // namespace tandem::forward
