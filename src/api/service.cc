// The endpoints. Long work (parsing, tokenising) goes to a worker and comes back to the io thread.
#include "api/service.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

#include "api/errors.h"
#include "api/models.h"
#include "base/log.h"

namespace tandem::api {

namespace {

constexpr std::string_view models_prefix = "/v1/models/";

Reply json_reply(int status, std::string body) {
  Reply reply;
  reply.status = status;
  reply.body = std::move(body);
  return reply;
}

}  // namespace

Service::Service(Executor& executor, ServiceOptions options)
    : executor_(executor), options_(options), created_(std::time(nullptr)) {}

std::vector<Route> Service::routes() {
  // Handlers that answer at once.
  const auto at_once = [](auto make_reply) {
    return [make_reply](HttpRequest request, std::shared_ptr<Responder> responder) {
      responder->reply(make_reply(request));
    };
  };
  const Handler health_handler = at_once([this](const HttpRequest&) { return health(); });
  std::vector<Route> routes;
  for (const auto* path : {"/health", "/healthz", "/ping", "/v1/health"}) {
    routes.push_back({"GET", path, true, health_handler});
  }
  routes.push_back({"POST", "/ping", true, health_handler});
  routes.push_back({"GET", "/version", true, at_once([](const HttpRequest&) {
                      return json_reply(200, fmt::format(R"({{"version":"{}"}})", TANDEM_VERSION));
                    })});
  routes.push_back({"GET", "/v1/models", false, at_once([this](const HttpRequest&) { return list_models(); })});
  routes.push_back(
      {"GET", "/v1/models/*", false, at_once([this](const HttpRequest& request) { return one_model(request.path); })});
  routes.push_back(
      {"POST", "/v1/chat/completions", false, [this](HttpRequest request, std::shared_ptr<Responder> responder) {
         chat(std::move(request), std::move(responder));
       }});
  return routes;
}

void Service::set_model(const ServedModel* model) { model_ = model; }

Reply Service::health() const {
  const auto answer = [](int status, std::string_view word) {
    Reply reply = json_reply(status, fmt::format(R"({{"status":"{}"}})", word));
    if (status == 503) reply.headers.emplace_back("Retry-After", "5");
    return reply;
  };
  if (draining_) return answer(503, "draining");
  if (!model_) return answer(503, "loading");
  const engine::Status status = model_->engine->status();
  if (status.broken) return answer(503, "broken");
  if (!status.ready) return answer(503, "loading");
  return json_reply(200, fmt::format(R"({{"status":"ok","running":{},"waiting":{}}})", status.running, status.waiting));
}

void Service::require_ready() const {
  if (draining_) throw unavailable("The server is stopping.");
  if (!model_) throw unavailable("Loading model");
  const engine::Status status = model_->engine->status();
  if (status.broken) throw unavailable("The engine has failed; the server must be restarted.");
}

Reply Service::list_models() const {
  require_ready();
  return json_reply(200, model_list(*model_, created_));
}

Reply Service::one_model(const std::string& path) const {
  require_ready();
  const std::string name = path.substr(models_prefix.size());
  if (std::find(model_->names.begin(), model_->names.end(), name) == model_->names.end()) {
    throw ApiError(404, "not_found_error", fmt::format("The model '{}' does not exist.", name), "model",
                   "model_not_found");
  }
  return json_reply(200, model_row(*model_, name, created_));
}

void Service::chat(HttpRequest request, std::shared_ptr<Responder> responder) {
  const auto arrived = ChatSession::Clock::now();
  require_ready();
  if (static_cast<int64_t>(active()) >= options_.max_queued_requests) {
    throw ApiError(429, "rate_limit_error", fmt::format("The queue is full ({} requests).", active()), {},
                   "queue_full");
  }
  ++preparing_;
  executor_.work(
      [this, model = model_, request = std::move(request), responder = std::move(responder), arrived]() mutable {
        auto prepared = std::make_shared<PreparedChat>();
        std::optional<ApiError> error;  // across the queue goes a value, not an exception
        try {
          *prepared = prepare_chat(request.body, *model, options_.chat);
        } catch (...) {
          error = to_api_error(std::current_exception());
        }
        executor_.io([this, prepared, error, arrived, responder = std::move(responder),
                      id = std::move(request.request_id)]() mutable {
          --preparing_;
          if (error) return responder->reply(error->reply());
          start_session(std::move(*prepared), std::move(responder), arrived, std::move(id));
        });
      });
}

void Service::start_session(PreparedChat prepared, std::shared_ptr<Responder> responder,
                            ChatSession::Clock::time_point arrived, std::string request_id) {
  if (responder->gone()) return;
  try {
    require_ready();  // draining may have begun meanwhile
    // The session's end removes it from the set; the pointer is known only after the construction.
    auto key = std::make_shared<std::weak_ptr<ChatSession>>();
    auto session = std::make_shared<ChatSession>(*model_, executor_, std::move(prepared), responder, arrived,
                                                 std::move(request_id), [this, key] {
                                                   if (const auto ended = key->lock()) sessions_.erase(ended);
                                                 });
    *key = session;
    session->start();
    sessions_.insert(session);
  } catch (...) {
    responder->reply(to_api_error(std::current_exception()).reply());
  }
}

void Service::abort_active() {
  const auto sessions = sessions_;  // abort() removes from the set
  for (const auto& session : sessions) session->abort(unavailable("The server is stopping."));
}

}  // namespace tandem::api
