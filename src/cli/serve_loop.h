// What `serve` does between "ready" and its end: wait for a stop signal or for the engine's failure.
#pragma once

#include <future>
#include <memory>
#include <utility>

#include "api/service.h"
#include "engine/engine.h"
#include "http/server.h"

namespace tandem::cli {

// Runs `task` on the io thread and waits for its result.
template <typename Task>
auto on_io(http::Server& server, Task task) {
  // Shared, because set_value may still be on its way out when the waiting thread goes on.
  auto promise = std::make_shared<std::promise<decltype(task())>>();
  auto result = promise->get_future();
  server.io([promise, &task] { promise->set_value(task()); });
  return result.get();
}

// Returns the process's exit status: 0 after a stop signal, once the requests in flight have ended or drain_timeout_s
// have passed; 70 after the engine has failed, once its requests' answers have been handed to the server. A stop that
// finds the engine broken is a failure too.
int serve_until_stopped(http::Server& server, api::Service& service, const engine::Engine& engine,
                        double drain_timeout_s);

}  // namespace tandem::cli
