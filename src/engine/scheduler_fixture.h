// A scheduler and a fake model, stepped by the test under a clock of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/sample_on_host.h"
#include "engine/scheduler.h"
#include "engine/testing.h"

namespace tandem::engine {

class SteppedScheduler {
 public:
  explicit SteppedScheduler(const FakeModelOptions& model_options, int32_t chunk = 8, int64_t max_model_len = 1000)
      : SteppedScheduler(model_options, options_for(model_options, chunk, max_model_len)) {}
  SteppedScheduler(const FakeModelOptions& model_options, const SchedulerOptions& options,
                   draft::Drafter* drafter = nullptr)
      : model(model_options),
        scheduler(options, drafter),
        sampled_(model, FakeModel::vocabulary, options.capacity.max_logit_rows) {}

  FakeModel model;
  Scheduler scheduler;
  Time now{0};
  Time step_time = std::chrono::milliseconds(1);

  struct Client {
    uint64_t number = 0;
    Collector collector;
    int64_t cached() {
      for (const Event& event : collector.events())
        if (event.kind == Event::Kind::admitted) return event.cached_tokens;
      return -1;
    }
    PrefixMiss miss() {
      for (const Event& event : collector.events())
        if (event.kind == Event::Kind::admitted) return event.miss;
      return PrefixMiss::none;
    }
    bool admitted() { return cached() >= 0; }
  };
  Client& submit(Request request) {
    clients_.push_back(std::make_unique<Client>());
    Client& client = *clients_.back();
    client.number = scheduler.submit(std::move(request), client.collector.sink(), now);
    return client;
  }

  // One step; null: idle.
  const forward::Step* step() {
    const forward::Step* step = scheduler.schedule(now);
    scheduler.check();
    if (step == nullptr) return nullptr;
    last = *step;
    sampled_.run(*step);  // the model, unless the scheduler has tokens chosen in the step
    now += step_time;
    scheduler.complete(sampled_.logits(), sampled_.sampled(), now);
    scheduler.check();
    return &last;
  }
  void run_until_idle() {
    for (int i = 0; step() != nullptr; ++i)
      if (i > 100'000) throw std::runtime_error("no end in sight");
  }
  // Runs a request to its end and nothing else.
  Client& run(Request request) {
    Client& client = submit(std::move(request));
    run_until_idle();
    return client;
  }
  forward::Step last;

 private:
  SampleOnHost sampled_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace tandem::engine
