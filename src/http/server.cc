// Listener, threads, stop signals.
#include "http/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "http/connection.h"
#include "http/router.h"
#include "http/tls.h"

namespace tandem::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using SystemError = boost::system::error_code;

namespace {

// Null without TLS.
std::unique_ptr<asio::ssl::context> tls_context(const ServerOptions& options) {
  if (options.tls_cert.empty() && options.tls_key.empty()) return nullptr;
  if (options.tls_key.empty()) throw Error(ErrorCode::usage, "--tls-cert", "no key", "--tls-key with it");
  if (options.tls_cert.empty()) throw Error(ErrorCode::usage, "--tls-key", "no certificate", "--tls-cert with it");
  return std::make_unique<asio::ssl::context>(make_tls_context(options.tls_cert, options.tls_key));
}

constexpr std::chrono::seconds close_grace{2};          // for answers that are being written
constexpr std::chrono::milliseconds accept_pause{100};  // after a failed accept (no descriptors left)

// Nothing that a task throws may end a thread.
template <typename Task>
auto guarded(Task task, const char* where) {
  return [task = std::move(task), where] {
    try {
      task();
    } catch (const std::exception& error) {
      log(LogLevel::error, "{}: {}", where, error.what());
    } catch (...) {
      log(LogLevel::error, "{}: unknown exception", where);
    }
  };
}

}  // namespace

// The io_context is first, so that it goes last: queued tasks and pool tasks refer to it.
struct Server::State {
  explicit State(ServerOptions server_options)
      : options(std::move(server_options)),
        bodies(options.limits.all_bodies_bytes),
        tls(tls_context(options)),
        pool(static_cast<size_t>(std::max(options.workers, 1))) {}

  void listen();
  void accept();
  void close_on_io();
  void add_stop();
  void wait_signal();

  ServerOptions options;
  BodyBudget bodies;
  std::unique_ptr<asio::ssl::context> tls;  // null: plain HTTP
  asio::io_context io;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> guard;
  tcp::acceptor acceptor{io};
  asio::signal_set signals{io};
  asio::steady_timer accept_timer{io}, grace_timer{io};
  asio::thread_pool pool;
  std::optional<Router> router;
  api::HttpObserver observer;
  bool loopback = false;
  uint16_t port = 0;
  std::thread thread;

  // io thread only
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  bool accepting = false;
  bool closing = false;

  std::mutex mutex;
  std::condition_variable stopped;
  int stops = 0;
};

namespace {

std::string place_of(const ServerOptions& options) { return fmt::format("{}:{}", options.host, options.port); }

// Where to listen. Refuses an address that others can reach without a key.
tcp::endpoint checked_endpoint(asio::io_context& io, const ServerOptions& options, const std::string& where) {
  SystemError error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, fmt::format("{}", options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    throw Error(ErrorCode::resource, where, "the host is not known: " + error.message(),
                "a name or address of this machine");
  }
  tcp::endpoint endpoint = found.begin()->endpoint();
  if (!endpoint.address().is_loopback() && options.api_keys.empty() && !options.insecure) {
    throw Error(ErrorCode::usage, "--host " + options.host, "other machines could use the server without a key",
                "--api-key, or --insecure to allow it");
  }
  return endpoint;
}

}  // namespace

void check_listener(const ServerOptions& options) {
  [[maybe_unused]] const KeyRing keys(options.api_keys);
  [[maybe_unused]] const auto tls = tls_context(options);
  asio::io_context io;
  checked_endpoint(io, options, place_of(options));
}

void Server::State::listen() {
  const std::string where = place_of(options);
  const tcp::endpoint endpoint = checked_endpoint(io, options, where);
  loopback = endpoint.address().is_loopback();
  SystemError error;
  const auto check = [&] {
    if (!error) return;
    if (error == asio::error::address_in_use) {
      throw Error(ErrorCode::resource, where, "the port is in use", "a free port (--port)");
    }
    throw Error(ErrorCode::resource, where, "cannot listen: " + error.message());
  };
  acceptor.open(endpoint.protocol(), error);
  check();
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  check();
  acceptor.bind(endpoint, error);
  check();
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  check();
  port = acceptor.local_endpoint(error).port();
  check();
}

void Server::State::accept() {
  accepting = false;
  if (closing || connections.size() >= options.limits.connections) return;  // goes on when one closes
  accepting = true;
  acceptor.async_accept([this](SystemError error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || closing) return;
    if (error) {
      accept_timer.expires_after(accept_pause);
      accept_timer.async_wait([this](SystemError timer_error) {
        if (!timer_error) accept();
      });
      return;
    }
    const Connection::Shared shared{*router, options.limits, bodies, observer, tls.get()};
    auto connection = std::make_shared<Connection>(std::move(socket), shared, [this](Connection* closed) {
      connections.erase(closed);
      if (closing && connections.empty()) io.stop();
      if (!accepting) accept();
    });
    connections.emplace(connection.get(), connection);
    connection->start();
    accept();
  });
}

void Server::State::close_on_io() {
  closing = true;
  SystemError ignored;
  acceptor.close(ignored);
  signals.cancel(ignored);
  accept_timer.cancel();
  if (connections.empty()) return io.stop();
  const auto open = connections;  // shut_down may remove
  for (const auto& [key, connection] : open) connection->shut_down();
  grace_timer.expires_after(close_grace);
  grace_timer.async_wait([this](SystemError error) {
    if (!error) io.stop();
  });
}

void Server::State::add_stop() {
  const std::lock_guard lock(mutex);
  ++stops;
  stopped.notify_all();
}

void Server::State::wait_signal() {
  signals.async_wait([this](SystemError error, int) {
    if (error) return;
    add_stop();
    wait_signal();
  });
}

Server::Server(ServerOptions options) : state_(std::make_unique<State>(std::move(options))) {
  [[maybe_unused]] const KeyRing keys(state_->options.api_keys);  // refuses bad keys before anything listens
  state_->listen();
}

Server::~Server() { close(); }

uint16_t Server::port() const { return state_->port; }

std::string Server::url() const {
  const std::string& host = state_->options.host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", state_->tls ? "https" : "http", v6 ? "[" + host + "]" : host, state_->port);
}

bool Server::needs_key() const { return !state_->options.api_keys.empty(); }

bool Server::metrics_are_open() const { return state_->options.open_metrics.value_or(state_->loopback); }

void Server::start(std::vector<api::Route> routes, api::HttpObserver observer) {
  for (api::Route& route : routes) {
    if (route.monitoring) route.open = metrics_are_open();
  }
  state_->observer = std::move(observer);
  state_->router.emplace(std::move(routes), KeyRing(state_->options.api_keys), state_->loopback, state_->options.host);
  state_->guard.emplace(state_->io.get_executor());
  asio::post(state_->io, [this] { state_->accept(); });
  state_->thread = std::thread([this] {
    // Handlers catch what they may throw; should one not, the loop goes on.
    while (!state_->io.stopped()) guarded([this] { state_->io.run(); }, "io thread")();
  });
}

void Server::catch_stop_signals() {
  state_->signals.add(SIGTERM);
  state_->signals.add(SIGINT);
  asio::post(state_->io, [this] { state_->wait_signal(); });
}

bool Server::wait_for_stop(int n, double seconds) {
  std::unique_lock lock(state_->mutex);
  const auto come = [this, n] { return state_->stops >= n; };
  return state_->stopped.wait_for(lock, std::chrono::duration<double>(seconds), come);
}

void Server::request_stop() { state_->add_stop(); }

void Server::close() {
  if (!state_->thread.joinable()) return;
  state_->pool.stop();
  state_->pool.join();
  asio::post(state_->io, [this] { state_->close_on_io(); });
  state_->thread.join();
}

void Server::io(std::function<void()> task) { asio::post(state_->io, guarded(std::move(task), "io task")); }

void Server::work(std::function<void()> task) { asio::post(state_->pool, guarded(std::move(task), "worker")); }

}  // namespace tandem::http
