// The text models of all ranks on CPUs.
#include "cluster/rank_group.h"

#include <algorithm>
#include <vector>

#include "cluster/in_process_exchange.h"
#include "cluster/rank_threads.h"
#include "cluster/step_room.h"
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

}  // namespace

struct RankGroup::State {
  struct Rank {
    std::unique_ptr<InProcessExchange> exchange;
    std::unique_ptr<device::Threads> threads;
    std::unique_ptr<forward::TextModel> model;
    forward::Step step;
  };

  const model::Shape& shape;
  GroupSize size;
  InProcessHub hub;
  std::vector<Rank> ranks;
  std::vector<std::byte> bytes;  // of a step given as a struct
  Job job;
  std::unique_ptr<RankThreads> rank_threads;

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
    rank_threads = std::make_unique<RankThreads>(hub, [this](int rank) { run_rank(rank); });
  }

  void run_rank(int number) {
    Rank& rank = ranks[static_cast<size_t>(number)];
    forward::read_step(job.step, rank.step);
    forward::Probe* probe = number == 0 ? job.probe : nullptr;
    if (job.mtp) {
      rank.model->run_mtp(rank.step, job.hidden_rows, job.zero_first_embedding, probe);
    } else {
      rank.model->run(rank.step, probe);
    }
  }

  void run(const Job& next) {
    job = next;
    rank_threads->run();
  }

  forward::TextModel& first() const { return *ranks.front().model; }
};

RankGroup::RankGroup(const model::Shape& shape, const model::TextWeights& weights, GroupSize size,
                     const forward::Capacity& capacity, int threads, forward::Mutation mutation,
                     forward::DrafterModel drafter)
    : state_(std::make_unique<State>(shape, weights, size, capacity, threads, mutation, drafter)) {}

RankGroup::~RankGroup() = default;

int64_t RankGroup::planned_bytes(const model::Shape& shape, GroupSize size, const forward::Capacity& capacity,
                                 int threads, const model::DrafterShape* drafter) {
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
