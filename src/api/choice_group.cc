// Many sessions, one client.
#include "api/choice_group.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/random.h"

namespace tandem::api {

using Json = nlohmann::ordered_json;

ChoiceTotals::ChoiceTotals(const text::Tokenizer& the_tokenizer, int64_t choices, int64_t the_per_prompt)
    : tokenizer(&the_tokenizer),
      id(random_hex(16)),
      created(std::time(nullptr)),
      open(choices),
      per_prompt(the_per_prompt) {}

bool ChoiceTotals::add(const Usage& choice, int64_t index) {
  if (index % per_prompt == 0) {
    usage.prompt_tokens += choice.prompt_tokens;
    usage.cached_tokens += choice.cached_tokens;
  }
  usage.completion_tokens += choice.completion_tokens;
  usage.reasoning_tokens += choice.reasoning_tokens;
  if (choice.drafts) {
    if (!usage.drafts) usage.drafts.emplace();
    usage.drafts->drafted += choice.drafts->drafted;
    usage.drafts->accepted += choice.drafts->accepted;
  }
  return --open == 0;
}

namespace {

// What the responders of a group share.
class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(std::shared_ptr<Responder> responder, size_t choices)
      : responder_(std::move(responder)), gone_(choices), drained_(choices) {}

  void open_stream() {
    if (!std::exchange(is_open_, true)) responder_->open_stream();
  }
  void close_stream(size_t choice) {
    gone_[choice] = nullptr;  // it ends by itself
    responder_->close_stream();
    end_all();
  }
  void reply(size_t choice, Reply reply) {
    if (is_ended_) return;
    gone_[choice] = nullptr;
    if (reply.status != 200) {
      responder_->reply(std::move(reply));
      return end_all();
    }
    bodies_.push_back(reply.body);
    if (bodies_.size() < gone_.size()) return;
    reply.body = joined();
    responder_->reply(std::move(reply));
    end_all();
  }
  void on_gone(size_t choice, std::function<void()> callback) {
    gone_[choice] = std::move(callback);
    if (std::exchange(watches_client_, true)) return;
    responder_->on_gone([self = shared_from_this()] { self->end_all(); });
  }
  void on_drained(size_t choice, std::function<void()> callback) {
    drained_[choice] = std::move(callback);
    responder_->on_drained([self = shared_from_this()] {
      for (auto& drained : self->drained_) {
        if (auto call = std::exchange(drained, nullptr)) call();
      }
    });
  }
  bool is_gone() const { return is_ended_ || responder_->gone(); }
  Responder& responder() { return *responder_; }

 private:
  // For those that have not ended the client has gone; the others do not listen any more.
  void end_all() {
    if (std::exchange(is_ended_, true)) return;
    for (auto& gone : gone_) {
      if (auto call = std::exchange(gone, nullptr)) call();
    }
    for (auto& drained : drained_) drained = nullptr;
  }

  // The last reply has the usage of all; the choices are put into their order.
  std::string joined() {
    Json last = Json::parse(bodies_.back());
    std::vector<Json> choices;
    for (const std::string& body : bodies_) choices.push_back(Json::parse(body)["choices"][0]);
    std::sort(choices.begin(), choices.end(),
              [](const Json& a, const Json& b) { return a["index"].get<int64_t>() < b["index"].get<int64_t>(); });
    last["choices"] = choices;
    return last.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  std::shared_ptr<Responder> responder_;
  std::vector<std::function<void()>> gone_, drained_;
  std::vector<std::string> bodies_;  // in the order in which the choices ended
  bool is_open_ = false, is_ended_ = false, watches_client_ = false;
};

class ChoiceResponder : public Responder {
 public:
  ChoiceResponder(std::shared_ptr<Group> group, size_t choice) : group_(std::move(group)), choice_(choice) {}

  void reply(Reply reply) override { group_->reply(choice_, std::move(reply)); }
  void open_stream() override { group_->open_stream(); }
  void send_event(std::string_view data) override { group_->responder().send_event(data); }
  void send_named_event(std::string_view name, std::string_view data) override {
    group_->responder().send_named_event(name, data);
  }
  void close_stream() override { group_->close_stream(choice_); }
  bool congested() const override { return group_->responder().congested(); }
  void on_drained(std::function<void()> callback) override { group_->on_drained(choice_, std::move(callback)); }
  bool gone() const override { return group_->is_gone(); }
  void on_gone(std::function<void()> callback) override { group_->on_gone(choice_, std::move(callback)); }

 private:
  std::shared_ptr<Group> group_;
  size_t choice_;
};

}  // namespace

std::vector<std::shared_ptr<Responder>> split_responder(const std::shared_ptr<Responder>& responder, size_t choices) {
  if (choices == 1) return {responder};
  const auto group = std::make_shared<Group>(responder, choices);
  std::vector<std::shared_ptr<Responder>> responders;
  for (size_t i = 0; i < choices; ++i) responders.push_back(std::make_shared<ChoiceResponder>(group, i));
  return responders;
}

}  // namespace tandem::api
