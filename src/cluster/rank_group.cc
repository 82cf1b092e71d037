// Rank 0 runs on the caller's thread, every other rank on a thread of its own that waits for steps.
#include "cluster/rank_group.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cluster/in_process_exchange.h"
#include "device/threads.h"
#include "forward/scratch.h"
#include "model/split.h"

namespace tandem::cluster {
namespace {

// What one call asks of every rank.
struct Job {
  std::span<const std::byte> step;
  bool mtp = false;
  std::span<const float> hidden_rows;
  bool zero_first_embedding = true;
  forward::Probe* probe = nullptr;  // of rank 0
};

forward::Ranks ranks_of(GroupSize size, int32_t rank) {
  return {rank, size.tensor_parallel_size, size.decode_context_parallel_size};
}

// Room for the largest step, so that reading one allocates nothing.
void reserve(forward::Step& step, const forward::Capacity& capacity) {
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  const size_t slots = count(capacity.slots), moves = slots + count(capacity.kept_states);
  const int64_t stream_pages = capacity.max_stream_pages > 0 ? capacity.max_stream_pages : 2 * capacity.pages;
  step.keeps.reserve(moves);
  step.restores.reserve(moves);
  step.page_copies.reserve(slots);
  const size_t rows = std::max(count(capacity.max_rows), slots);
  step.tokens.reserve(rows);
  step.positions.reserve(rows);
  step.segments.reserve(slots);
  step.page_tables.reserve(slots * count(stream_pages));
  step.logit_rows.reserve(count(capacity.max_logit_rows));
  step.head_slots.reserve(slots);
}

// Most bytes of such a step.
size_t step_bytes(const forward::Step& reserved) {
  std::vector<std::byte> empty;
  forward::write_step({}, empty);
  return empty.size() + reserved.keeps.capacity() * sizeof(forward::StateMove) +
         reserved.restores.capacity() * sizeof(forward::StateMove) +
         reserved.page_copies.capacity() * sizeof(forward::PageCopy) +
         reserved.segments.capacity() * sizeof(forward::Segment) + reserved.positions.capacity() * sizeof(int64_t) +
         sizeof(int32_t) * (reserved.tokens.capacity() + reserved.page_tables.capacity() +
                            reserved.logit_rows.capacity() + reserved.head_slots.capacity());
}

}  // namespace

struct RankGroup::State {
  struct Rank {
    std::unique_ptr<InProcessExchange> exchange;
    std::unique_ptr<device::Threads> threads;
    std::unique_ptr<forward::TextModel> model;
    forward::Step step;
    std::exception_ptr failure;
    std::thread thread;  // rank 0 has none
  };

  const model::Shape& shape;
  GroupSize size;
  InProcessHub hub;
  std::vector<Rank> ranks;
  std::vector<std::byte> bytes;  // of a step given as a struct

  std::mutex mutex;  // of everything below
  std::condition_variable changed;
  uint64_t jobs = 0;  // given out so far
  int running = 0;    // ranks that have not finished the last one
  bool stopping = false;
  Job job;
  bool broken = false;  // used by the caller's thread only

  State(const model::Shape& s, const model::TextWeights& weights, GroupSize group_size,
        const forward::Capacity& capacity, int threads, forward::Mutation mutation,
        const forward::DrafterModel& drafter)
      : shape(s),
        size(group_size),
        hub(std::clamp(group_size.tensor_parallel_size, 1, 2),
            forward::exchange_size(s, capacity, ranks_of(group_size, 0))),
        ranks(static_cast<size_t>(hub.ranks())) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      Rank& rank = ranks[r];
      rank.exchange = std::make_unique<InProcessExchange>(hub, static_cast<int>(r));
      rank.threads = std::make_unique<device::Threads>(threads);
      rank.model = std::make_unique<forward::TextModel>(shape, weights, *rank.threads, capacity,
                                                        ranks_of(size, static_cast<int32_t>(r)), *rank.exchange,
                                                        mutation, drafter);
      reserve(rank.step, capacity);
    }
    bytes.reserve(step_bytes(ranks.front().step));
    for (size_t r = 1; r < ranks.size(); ++r) ranks[r].thread = std::thread([this, r] { serve(r); });
  }

  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (Rank& rank : ranks) {
      if (rank.thread.joinable()) rank.thread.join();
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // The life of a rank's thread.
  void serve(size_t rank) {
    uint64_t done = 0;
    while (true) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stopping || jobs != done; });
        if (stopping) return;
        done = jobs;
      }
      run_rank(rank);
      {
        const std::lock_guard lock(mutex);
        --running;
      }
      changed.notify_all();
    }
  }

  // The job on one rank; what it throws is kept.
  void run_rank(size_t index) noexcept {
    Rank& rank = ranks[index];
    try {
      forward::read_step(job.step, rank.step);
      forward::Probe* probe = index == 0 ? job.probe : nullptr;
      if (job.mtp) {
        rank.model->run_mtp(rank.step, job.hidden_rows, job.zero_first_embedding, probe);
      } else {
        rank.model->run(rank.step, probe);
      }
    } catch (...) {
      rank.failure = std::current_exception();
      hub.fail(static_cast<int>(index));
    }
  }

  void run(const Job& next) {
    if (broken) throw Error(ErrorCode::internal, "ranks", "a rank has failed in an earlier step");
    {
      const std::lock_guard lock(mutex);
      job = next;
      ++jobs;
      running = hub.ranks() - 1;
    }
    changed.notify_all();
    run_rank(0);
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return running == 0; });
    }
    if (hub.failed_rank() < 0) return;
    broken = true;  // the first to fail knows why; the others only that it failed
    std::rethrow_exception(ranks[static_cast<size_t>(hub.failed_rank())].failure);
  }

  forward::TextModel& first() const { return *ranks.front().model; }
};

RankGroup::RankGroup(const model::Shape& shape, const model::TextWeights& weights, GroupSize size,
                     forward::Capacity capacity, int threads, forward::Mutation mutation, forward::DrafterModel drafter)
    : state_(std::make_unique<State>(shape, weights, size, capacity, threads, mutation, drafter)) {}

RankGroup::~RankGroup() = default;

int64_t RankGroup::planned_bytes(const model::Shape& shape, GroupSize size, forward::Capacity capacity, int threads,
                                 const model::DrafterShape* drafter) {
  const int32_t ranks = size.tensor_parallel_size;
  int64_t sum = InProcessHub::bytes_of(ranks, forward::exchange_size(shape, capacity, ranks_of(size, 0)));
  for (int32_t rank = 0; rank < ranks; ++rank)
    sum += forward::TextModel::planned_bytes(shape, capacity, threads, ranks_of(size, rank), drafter);
  return sum;
}

int RankGroup::ranks() const { return state_->hub.ranks(); }

void RankGroup::run(std::span<const std::byte> step, forward::Probe* probe) {
  state_->run({.step = step, .hidden_rows = {}, .probe = probe});
}

void RankGroup::run(const forward::Step& step, forward::Probe* probe) {
  forward::write_step(step, state_->bytes);
  run(std::span<const std::byte>(state_->bytes), probe);
}

void RankGroup::run_mtp(const forward::Step& step, std::span<const float> hidden_rows, bool zero_first_embedding,
                        forward::Probe* probe) {
  forward::write_step(step, state_->bytes);
  state_->run({.step = state_->bytes,
               .mtp = true,
               .hidden_rows = hidden_rows,
               .zero_first_embedding = zero_first_embedding,
               .probe = probe});
}

std::span<const float> RankGroup::logits() const { return state_->first().logits(); }
std::span<const float> RankGroup::hidden() const { return state_->first().hidden(); }
forward::DraftLattices RankGroup::lattices() const { return state_->first().lattices(); }
std::span<const float> RankGroup::mtp_hidden() const { return state_->first().mtp_hidden(); }
std::span<const float> RankGroup::mtp_logits() const { return state_->first().mtp_logits(); }

void RankGroup::read_kda_state(int32_t slot, int64_t kda_layer, std::span<float> state, std::span<float> conv) const {
  const model::Shape& s = state_->shape;
  const int64_t dim = s.kda_head_dim, kept = s.short_conv_kernel_size - 1;
  for (int rank = 0; rank < ranks(); ++rank) {
    const model::Part heads = model::parts_of_rank(s, rank, ranks()).kda_heads;
    std::vector<float> own_state(static_cast<size_t>(heads.count * dim * dim)),
        own_conv(static_cast<size_t>(3 * heads.count * dim * kept));
    state_->ranks[static_cast<size_t>(rank)].model->read_kda_state(slot, kda_layer, own_state, own_conv);
    std::copy(own_state.begin(), own_state.end(), state.begin() + heads.first * dim * dim);
    const int64_t piece = heads.count * dim * kept;  // of each of q, k and v
    for (int64_t part = 0; part < 3; ++part) {
      std::copy_n(own_conv.begin() + part * piece, piece,
                  conv.begin() + (part * s.kda_num_heads + heads.first) * dim * kept);
    }
  }
}

int64_t RankGroup::exchanges() const { return state_->hub.exchanges(); }
int64_t RankGroup::exchanged_bytes() const { return state_->hub.bytes(); }

}  // namespace tandem::cluster
