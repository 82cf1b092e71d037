// All endpoints over one served model: routes, the life of requests, health, draining.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "api/chat_session.h"
#include "api/endpoint.h"
#include "api/openapi.h"
#include "api/served_model.h"
#include "api/server_metrics.h"

namespace tandem::api {

struct ServiceOptions {
  ChatRules chat;
  int64_t max_queued_requests = 256;  // requests that may wait for a stream; more are answered with 429
  double request_timeout_s = 0;       // from arrival; a request that takes longer is answered with 504; 0: no limit
  ApiAccess access;                   // as /openapi.json describes it
};

// Everything but the constructor is called on the io thread.
class Service {
 public:
  // `executor` must outlive the service and the engine's last call of a sink.
  Service(Executor& executor, ServiceOptions options);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  std::vector<Route> routes();
  // What the HTTP server reports its answers to. Valid as long as the service.
  HttpObserver http_observer();

  // From now on requests are served; before that they get 503 ("loading"). `model` must outlive the service's use.
  void set_model(const ServedModel* model);
  // From now on new requests and /health get 503; requests in flight go on.
  void start_draining() { draining_ = true; }
  // Requests that have not been answered to their end, those being tokenised included.
  size_t active() const { return sessions_.size() + static_cast<size_t>(preparing_ + counting_); }
  // Ends every request in flight with an error.
  void abort_active();

 private:
  // How a dialect reads a request (on a worker thread) and words a refusal.
  struct Reading {
    PreparedChat (*prepare)(const HttpRequest& request, const ServedModel& model, const ChatRules& rules);
    Reply (*refusal)(const ApiError& error, const std::string& request_id);
  };
  static const Reading chat_reading, completions_reading, messages_reading, responses_reading;

  Handler generates(const Reading& reading);
  void generate(const Reading& reading, HttpRequest request, std::shared_ptr<Responder> responder);
  void start_sessions(const Reading& reading, PreparedChat prepared, const std::shared_ptr<Responder>& responder,
                      ChatSession::Clock::time_point arrived, const std::string& request_id);
  std::shared_ptr<ChatSession> start_session(PreparedChat prepared, const std::shared_ptr<Responder>& responder,
                                             ChatSession::Clock::time_point arrived, const std::string& request_id);
  std::shared_ptr<ChatSession> session_of(const std::string& id, int64_t client) const;
  Reply stored_response(const HttpRequest& request) const;
  Reply delete_response(const HttpRequest& request);
  Reply cancel_response(const HttpRequest& request);
  void count_tokens(HttpRequest request, std::shared_ptr<Responder> responder);
  // What needs the model but not the engine: a worker makes the body of the reply from that of the request.
  using Answer = std::string (*)(std::string_view body, const ServedModel& model, const ChatRules& rules);
  Handler answered_by_worker(Answer answer);
  void set_deadline(engine::Request& request, ChatSession::Clock::time_point arrived) const;
  void require_ready() const;
  void require_place(int64_t choices = 1) const;
  Reply health() const;
  Reply metrics() const;
  Reply list_models() const;
  Reply one_model(const std::string& path) const;

  Executor& executor_;
  ServiceOptions options_;
  const ServedModel* model_ = nullptr;
  int64_t created_ = 0;  // Unix time of the models' rows
  bool draining_ = false;
  int64_t preparing_ = 0;
  int64_t counting_ = 0;  // requests that ask for the length of a prompt
  ServerMetrics metrics_;
  std::unordered_set<std::shared_ptr<ChatSession>> sessions_;
};

}  // namespace tandem::api
