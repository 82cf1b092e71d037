// The HTTP server: one io thread that owns all sockets, a few worker threads for long work. Boost stays in the .cc
// files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/endpoint.h"
#include "http/limits.h"

namespace tandem::http {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8012;               // 0: any free port
  std::vector<std::string> api_keys;  // none: open to whoever can connect
  bool insecure = false;              // allow listening beyond loopback without a key
  std::optional<bool> open_metrics;   // monitoring routes need no key; not set: on a loopback listener
  std::string tls_cert, tls_key;      // PEM files (http/tls.h); both or none, which means plain HTTP
  int workers = 1;
  Limits limits;
};

// Throws what a Server's constructor throws for the host, the keys and the files of TLS, without listening: resource,
// usage, bad_file.
void check_listener(const ServerOptions& options);

class Server : public api::Executor {
 public:
  // Binds and listens; connections wait until start(). Throws Error: resource (port in use, no permission, unknown
  // host), usage (beyond loopback without a key and not insecure, empty key, half of TLS), bad_file (certificate, key).
  explicit Server(ServerOptions options);
  ~Server() override;  // close()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  std::string url() const;        // "http://127.0.0.1:8012"
  bool needs_key() const;         // of routes that are not open
  bool metrics_are_open() const;  // monitoring routes need no key

  // Starts the threads. Handlers and `observer` are called on the io thread and must stay valid until
  // close().
  void start(std::vector<api::Route> routes, api::HttpObserver observer = {});

  // From now on SIGTERM and SIGINT end wait_for_stop() instead of the process.
  void catch_stop_signals();
  // Blocks until the n-th stop signal (n = 1: the first) or until `seconds` have passed; true if it came.
  bool wait_for_stop(int n, double seconds);
  // As a stop signal would; from any thread.
  void request_stop();

  // Stops listening, lets answers that are complete be written (for at most two seconds), closes all connections and
  // joins the threads. Work that was queued is dropped.
  void close();

  void io(std::function<void()> task) override;
  void work(std::function<void()> task) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::http
