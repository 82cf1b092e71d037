// Looks at the engine a few times a second, so that a failure ends the process without anybody asking and a terminal
// shows what goes on.
#include "cli/serve_loop.h"

#include <unistd.h>

#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "cli/live_line.h"

namespace tandem::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double look_s = 0.25;       // how often the engine's health is looked at
constexpr double stop_poll_s = 0.02;  // how often running requests are counted while stopping
constexpr double last_words_s = 5;    // for the answers to a failed engine's requests

// Until no request is in flight, the time has passed, or the n-th stop signal came.
void wait_for_requests(http::Server& server, api::Service& service, double timeout_s, int signal) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  while (Clock::now() < deadline && on_io(server, [&] { return service.active(); }) > 0) {
    if (server.wait_for_stop(signal, stop_poll_s)) return;
  }
}

void drain(http::Server& server, api::Service& service, double timeout_s) {
  const size_t running = on_io(server, [&] {
    service.start_draining();
    return service.active();
  });
  log(LogLevel::info, "stopping; {} requests get up to {} s to finish (a second signal ends them)", running, timeout_s);
  wait_for_requests(server, service, timeout_s, 2);
}

}  // namespace

int serve_until_stopped(http::Server& server, api::Service& service, const engine::Engine& engine,
                        double drain_timeout_s) {
  bool is_stopped = false;
  {
    LiveLine live_line(STDERR_FILENO);  // beside the log
    for (engine::Status status = engine.status(); !is_stopped && !status.broken; status = engine.status()) {
      live_line.look(status, Clock::now());
      is_stopped = server.wait_for_stop(1, look_s);
    }
  }
  if (is_stopped) {
    drain(server, service, drain_timeout_s);
  } else {
    log(LogLevel::error, "the engine has failed; the program ends with status {} to be started again",
        exit_status(ErrorCode::internal));
    wait_for_requests(server, service, last_words_s, 1);
  }
  on_io(server, [&] {
    service.abort_active();
    return 0;
  });
  return engine.status().broken ? exit_status(ErrorCode::internal) : 0;
}

}  // namespace tandem::cli
