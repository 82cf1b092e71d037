// The drafter over the real model: on the small bundled one, every verify step yields as many tokens as in the
// reference loop (models/nano/acceptance_prompts.jsonl), in all streams at once.
#include <fstream>
#include <nlohmann/json.hpp>

#include "device/threads.h"
#include "draft/model_drafter.h"
#include "forward/test_models.h"
#include "forward/text_model.h"
#include "model/drafter.h"

namespace tandem::draft::reference_loop_test {
namespace {

struct Chat {
  std::vector<int32_t> prompt, output;
  std::vector<int32_t> mtp, dflash2;  // tokens of each verify step; the last is cut at the end of the reply
};

// Every third of those with prompts of at most 60 tokens: enough of every kind for a quick test.
std::vector<Chat> short_chats() {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/models/nano/acceptance_prompts.jsonl");
  std::vector<Chat> chats;
  int64_t count = 0;
  for (std::string line; std::getline(file, line);) {
    const auto chat = nlohmann::json::parse(line);
    if (chat["prompt_ids"].size() > 60 || ++count % 3 != 2) continue;
    chats.push_back(
        {chat["prompt_ids"], chat["output_ids"], chat["mtp3_tokens_per_step"], chat["dflash2_tokens_per_step"]});
  }
  return chats;
}

class Runner : public forward::StepRunner {
 public:
  explicit Runner(forward::TextModel& model) : model_(model) {}
  void run(const forward::Step& step) override { model_.run(step); }
  std::span<const float> logits() const override { return model_.logits(); }
  forward::DraftLattices lattices() const override { return model_.lattices(); }

 private:
  forward::TextModel& model_;
};

int32_t best_of(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class GreedyPicker : public TokenPicker {
 public:
  Pick pick(int32_t, std::span<const float> logits, int64_t, DraftDistribution*) override {
    return {best_of(logits), 0.5};
  }
};

struct Stream {
  Chat chat;
  std::vector<int32_t> ids, page_table, tokens_per_step;
  int64_t length = 0;
  int32_t tried = 0;
  double gap = 1e9;  // the least between the two best scores along a block's path
  Proposal proposal;
  bool done() const { return ids.size() >= chat.prompt.size() + chat.output.size(); }
};

class Loop {
 public:
  static constexpr int32_t slots = 4, pages = 8, page_rows = 32;

  explicit Loop(Choice choice)
      : choice_(choice),
        model_(nano_.shape, nano_.weights, threads_, capacity(), forward::Mutation::none,
               {&drafter_shape_, &drafter_weights_}),
        runner_(model_),
        drafter_(runner_, options()) {}

  // The streams at the end of their replies, chat by chat.
  std::vector<Stream> run(const std::vector<Chat>& chats) {
    std::vector<Stream> all;
    for (size_t first = 0; first < chats.size(); first += slots) {
      streams_.clear();
      for (size_t i = first; i < std::min(chats.size(), first + slots); ++i) begin(chats[i]);
      while (std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) { return !stream.done(); }))
        round();
      all.insert(all.end(), streams_.begin(), streams_.end());
    }
    return all;
  }

 private:
  static forward::Capacity capacity() {
    return {.slots = slots,
            .pages = 1 + slots * pages,
            .max_stream_pages = pages,
            .max_rows = 256,
            .max_logit_rows = 64,
            .page_rows = page_rows};
  }
  ModelDrafterOptions options() const {
    ModelDrafterOptions made;
    made.slots = slots;
    made.max_rows = 256;
    made.page_rows = page_rows;
    made.max_stream_pages = pages;
    made.vocab_size = nano_.shape.vocab_size;
    made.copy = false;
    made.mtp = made.dflash2 = true;
    made.block_rows = static_cast<int32_t>(drafter_shape_.block_size);
    made.policy.kind = Policy::Kind::fixed;
    return made;
  }

  void begin(const Chat& chat) {
    Stream& stream = streams_.emplace_back();
    stream.chat = chat;
    stream.ids = chat.prompt;
    const auto slot = static_cast<int32_t>(streams_.size()) - 1;
    for (int32_t page = 0; page < pages; ++page) stream.page_table.push_back(1 + slot * pages + page);
    drafter_.start(slot, stream.ids, 0);
  }

  // One step of all streams, its verification, the next proposals.
  void round() {
    forward::Step step;
    for (Stream& stream : streams_) {
      if (!stream.done()) add(step, stream);
    }
    model_.run(step);
    const std::span<const float> logits = model_.logits();
    std::vector<StreamView> views;
    size_t row = 0;
    for (size_t slot = 0; slot < streams_.size(); ++slot) {
      Stream& stream = streams_[slot];
      const bool ran = !stream.done();
      if (ran) verify(static_cast<int32_t>(slot), logits, row);
      views.push_back({.slot = static_cast<int32_t>(slot),
                       .ids = stream.ids,
                       .prompt = std::ssize(stream.chat.prompt),
                       .length = stream.length,
                       .page_table = stream.page_table,
                       .ran = ran,
                       .most = stream.done() ? 0 : most_drafts,
                       .choice = choice_,
                       .proposal = &stream.proposal});
    }
    drafter_.propose(views, picker_);
    int64_t block = 0;
    for (Stream& stream : streams_) {
      if (stream.proposal.source == Source::dflash2) note_gaps(stream, block++);
    }
  }

  void note_gaps(Stream& stream, int64_t block) {
    const forward::DraftLattices all = model_.lattices();
    int64_t predecessor = 0;
    for (int64_t row = 0; row < stream.proposal.count; ++row) {
      const int64_t first = (block * all.rows + row) * all.top_k;
      std::vector<double> scores;
      for (int64_t c = 0; c < all.top_k; ++c)
        scores.push_back(double{all.unary[static_cast<size_t>(first + c)]} +
                         double{all.edges[static_cast<size_t>((first + predecessor) * all.top_k + c)]});
      const auto best = std::max_element(scores.begin(), scores.end());
      predecessor = best - scores.begin();
      ASSERT_EQ(all.ids[static_cast<size_t>(first + predecessor)], stream.proposal.tokens[static_cast<size_t>(row)]);
      std::nth_element(scores.begin(), scores.begin() + 1, scores.end(), std::greater<>());
      stream.gap = std::min(stream.gap, scores[0] - scores[1]);
    }
  }

  void add(forward::Step& step, Stream& stream) {
    const int64_t known = std::ssize(stream.ids) - stream.length;
    stream.tried = stream.length == 0 ? 0 : stream.proposal.count;
    const auto first = static_cast<int32_t>(step.tokens.size());
    step.segments.push_back({.slot = static_cast<int32_t>(&stream - streams_.data()),
                             .page_table = static_cast<int32_t>(step.page_tables.size()),
                             .pages = pages,
                             .first_row = first,
                             .rows = static_cast<int32_t>(known) + stream.tried,
                             .certain_rows = static_cast<int32_t>(known),
                             .position = stream.length});
    step.page_tables.insert(step.page_tables.end(), stream.page_table.begin(), stream.page_table.end());
    step.tokens.insert(step.tokens.end(), stream.ids.begin() + stream.length, stream.ids.end());
    step.tokens.insert(step.tokens.end(), stream.proposal.tokens.begin(),
                       stream.proposal.tokens.begin() + stream.tried);
    for (int64_t i = 0; i < known + stream.tried; ++i) {
      step.positions.push_back(stream.length + i);
      if (i >= known - 1) step.logit_rows.push_back(first + static_cast<int32_t>(i));
    }
  }

  void verify(int32_t slot, std::span<const float> logits, size_t& row) {
    Stream& stream = streams_[static_cast<size_t>(slot)];
    const auto vocabulary = static_cast<size_t>(nano_.shape.vocab_size);
    const bool prompt = stream.length == 0;
    stream.length = std::ssize(stream.ids);
    int32_t accepted = 0, emitted = 0;
    for (int32_t i = 0; i <= stream.tried; ++i) {
      const int32_t token = best_of(logits.subspan((row + static_cast<size_t>(i)) * vocabulary, vocabulary));
      if (!stream.done()) stream.ids.push_back(token), ++emitted;
      if (i == stream.tried || stream.proposal.tokens[static_cast<size_t>(i)] != token) break;
      ++accepted;
    }
    row += static_cast<size_t>(stream.tried) + 1;
    stream.length = std::ssize(stream.ids) - 1;
    EXPECT_TRUE(std::equal(stream.ids.begin() + static_cast<int64_t>(stream.chat.prompt.size()), stream.ids.end(),
                           stream.chat.output.begin()));
    if (prompt) return;
    stream.tokens_per_step.push_back(emitted);
    drafter_.verified(slot, stream.proposal, stream.tried, accepted);
  }

  const forward::Loaded& nano_ = forward::loaded("nano");
  const std::string folder_ = std::string(TANDEM_SOURCE_DIR) + "/models/nano-dflash2";
  model::DrafterShape drafter_shape_ = model::read_drafter_shape(folder_);
  model::Checkpoint checkpoint_ = model::Checkpoint::open(folder_);
  model::DrafterWeights drafter_weights_ = model::load_drafter_weights(checkpoint_, drafter_shape_);
  Choice choice_;
  device::Threads threads_{2};
  forward::TextModel model_;
  Runner runner_;
  ModelDrafter drafter_;
  GreedyPicker picker_;
  std::vector<Stream> streams_;
};

TEST(ReferenceLoop, MtpYieldsWhatTheReferenceYields) {
  const std::vector<Chat> chats = short_chats();
  ASSERT_GT(chats.size(), 12u);
  for (const Stream& stream : Loop(Choice::mtp).run(chats)) EXPECT_EQ(stream.tokens_per_step, stream.chat.mtp);
}

TEST(ReferenceLoop, DFlash2YieldsWhatTheReferenceYields) {
  int different = 0;
  for (const Stream& stream : Loop(Choice::dflash2).run(short_chats())) {
    if (stream.tokens_per_step == stream.chat.dflash2) continue;
    ++different;
    // Taps are rounded to bf16, and sums in another order may round to the next one: so far apart two scores are a tie.
    EXPECT_LT(stream.gap, 0.02);
  }
  EXPECT_LE(different, 1);
}

}  // namespace
}  // namespace tandem::draft::reference_loop_test
