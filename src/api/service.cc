// The endpoints. Long work (parsing, tokenising) goes to a worker and comes back to the io thread.
#include "api/service.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

#include "api/choice_group.h"
#include "api/completions.h"
#include "api/errors.h"
#include "api/messages_dialect.h"
#include "api/models.h"
#include "api/page.h"
#include "api/reply_ids.h"
#include "api/responses_dialect.h"
#include "api/responses_store.h"
#include "api/tokenize.h"
#include "base/log.h"

namespace tandem::api {

namespace {

constexpr std::string_view models_prefix = "/v1/models/";
constexpr const char* responses_path = "/v1/responses/*";
constexpr std::string_view responses_prefix = "/v1/responses/", cancel_suffix = "/cancel";

std::string response_id(const HttpRequest& request) { return request.path.substr(responses_prefix.size()); }

// ?stream=true, as OpenAI's client asks for the events of a kept response.
bool asks_for_stream(std::string_view query) {
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    if (one == "stream=true" || one == "stream=True" || one == "stream=1") return true;
  }
  return false;
}

ApiError response_not_found() {
  return {404, "not_found_error", "No response with this id is kept.", {}, "response_not_found"};
}

Reply json_reply(int status, std::string body) {
  Reply reply;
  reply.status = status;
  reply.body = std::move(body);
  return reply;
}

std::string health_json(std::string_view state, const engine::Status& status) {
  return fmt::format(R"({{"status":"{}","running":{},"waiting":{},"pool_rows":{},"free_rows":{},"reclaimable_rows":{},)"
                     R"("kept_states":{},"steps":{},"seconds_since_last_step":{:.3f}}})",
                     state, status.running, status.waiting, status.pool_rows, status.free_rows, status.reclaimable_rows,
                     status.kept_states, status.steps, status.seconds_since_last_step);
}

template <class Reading>
void refuse(const Reading& reading, Responder& responder, const std::string& request_id, const ApiError& error) {
  log_refused_request(request_id, error);
  responder.reply(reading.refusal(error, request_id));
}

}  // namespace

const Service::Reading Service::chat_reading{
    [](const HttpRequest& request, const ServedModel& model, const ChatRules& rules) {
      return prepare_chat(request.body, model, rules);
    },
    [](const ApiError& error, const std::string& /*request_id*/) { return error.reply(); }};

const Service::Reading Service::completions_reading{
    [](const HttpRequest& request, const ServedModel& model, const ChatRules& rules) {
      return prepare_completion(request.body, model, rules);
    },
    [](const ApiError& error, const std::string& /*request_id*/) { return error.reply(); }};

const Service::Reading Service::messages_reading{
    [](const HttpRequest& request, const ServedModel& model, const ChatRules& rules) {
      return prepare_messages(request.body, model, rules, request.request_id);
    },
    messages_error};

const Service::Reading Service::responses_reading{
    [](const HttpRequest& request, const ServedModel& model, const ChatRules& rules) {
      return prepare_responses(request.body, model, rules, request.client);
    },
    [](const ApiError& error, const std::string& /*request_id*/) { return error.reply(); }};

Service::Service(Executor& executor, ServiceOptions options)
    : executor_(executor), options_(std::move(options)), created_(std::time(nullptr)) {
  if (!options_.chat.reply_ids) options_.chat.reply_ids = std::make_shared<ReplyIds>();
  if (!options_.chat.responses) options_.chat.responses = std::make_shared<ResponseStore>();
}

std::vector<Route> Service::routes() {
  // Handlers that answer at once.
  const auto at_once = [](auto make_reply) {
    return [make_reply](HttpRequest request, std::shared_ptr<Responder> responder) {
      responder->reply(make_reply(request));
    };
  };
  const Handler health_handler = at_once([this](const HttpRequest&) { return health(); });
  const Handler metrics_handler = at_once([this](const HttpRequest&) { return metrics(); });
  std::vector<Route> routes;
  for (const auto* path : {"/health", "/healthz", "/ping", "/v1/health"}) {
    routes.push_back({"GET", path, true, health_handler});
  }
  routes.push_back({"POST", "/ping", true, health_handler});
  routes.push_back({"GET", "/version", true, at_once([](const HttpRequest&) {
                      return json_reply(200, fmt::format(R"({{"version":"{}"}})", TANDEM_VERSION));
                    })});
  routes.push_back(
      {"GET", "/openapi.json", true, at_once([document = openapi_document(options_.access)](const HttpRequest&) {
         return json_reply(200, document);
       })});
  routes.push_back({"GET", "/", true, at_once([](const HttpRequest&) { return page_reply(); })});
  routes.push_back({"GET", "/v1/models", false, at_once([this](const HttpRequest&) { return list_models(); })});
  routes.push_back(
      {"GET", "/v1/models/*", false, at_once([this](const HttpRequest& request) { return one_model(request.path); })});
  routes.push_back({"POST", "/v1/chat/completions", false, generates(chat_reading)});
  routes.push_back({"POST", "/v1/completions", false, generates(completions_reading)});
  routes.push_back({"POST", "/v1/messages", false, generates(messages_reading)});
  routes.push_back({"POST", "/v1/responses", false, generates(responses_reading)});
  routes.push_back(
      {"GET", responses_path, false, at_once([this](const HttpRequest& request) { return stored_response(request); })});
  routes.push_back({"DELETE", responses_path, false,
                    at_once([this](const HttpRequest& request) { return delete_response(request); })});
  routes.push_back({"POST", responses_path, false,
                    at_once([this](const HttpRequest& request) { return cancel_response(request); })});
  routes.push_back(
      {"POST", "/v1/messages/count_tokens", false, [this](HttpRequest request, std::shared_ptr<Responder> responder) {
         count_tokens(std::move(request), std::move(responder));
       }});
  const std::pair<const char*, Answer> answers[] = {
      {"/tokenize", tokenize}, {"/detokenize", detokenize}, {"/apply-template", apply_template}};
  for (const auto& [path, answer] : answers) {
    for (const auto* prefix : {"", "/v1"}) {
      routes.push_back({"POST", fmt::format("{}{}", prefix, path), false, answered_by_worker(answer)});
    }
  }
  for (const auto* path : {"/metrics", "/v1/metrics"}) routes.push_back({"GET", path, false, metrics_handler, true});
  for (Route& route : routes) {
    if (route.path.starts_with("/v1/messages")) route.refusal = messages_error;
    metrics_.add_route(route);
  }
  return routes;
}

HttpObserver Service::http_observer() {
  return [this](const HttpExchange& exchange) { metrics_.http_answered(exchange); };
}

void Service::set_model(const ServedModel* model) {
  model_ = model;
  if (model) metrics_.set_model(model->names.front(), model->max_model_len);
}

Reply Service::metrics() const {
  Reply reply;
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  reply.body = metrics_.text(model_, preparing_);
  return reply;
}

Reply Service::health() const {
  const engine::Status status = model_ ? model_->engine->status() : engine::Status{};
  std::string_view state = "ok";
  if (status.broken) {
    state = "broken";
  } else if (draining_) {
    state = "draining";
  } else if (status.stuck) {
    state = "stuck";
  } else if (!status.ready) {
    state = "loading";
  }
  Reply reply = json_reply(state == "ok" ? 200 : 503, health_json(state, status));
  if (reply.status == 503) reply.headers.emplace_back("Retry-After", "5");
  return reply;
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
  if (!is_served(*model_, name)) throw model_not_found(name);
  return json_reply(200, model_row(*model_, name, created_));
}

// The response of this id while it is being streamed.
std::shared_ptr<ChatSession> Service::session_of(const std::string& id, int64_t client) const {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(), [&](const std::shared_ptr<ChatSession>& session) {
    return session->answers_to(id, client);
  });
  return found == sessions_.end() ? nullptr : *found;
}

Reply Service::stored_response(const HttpRequest& request) const {
  if (asks_for_stream(request.query)) throw not_supported("stream", "the value true for a response that is kept");
  if (const auto session = session_of(response_id(request), request.client))
    return json_reply(200, session->as_it_stands());
  const auto found = options_.chat.responses->find(response_id(request), request.client);
  if (!found) throw response_not_found();
  return json_reply(200, found->body);
}

Reply Service::delete_response(const HttpRequest& request) {
  const std::string id = response_id(request);
  if (session_of(id, request.client))
    throw ApiError(409, "invalid_request_error", "The response is still being written; it can be cancelled.");
  if (!options_.chat.responses->erase(id, request.client)) throw response_not_found();
  return json_reply(200, fmt::format(R"({{"id":"{}","object":"response.deleted","deleted":true}})", id));
}

// Only a response that is being streamed can be cancelled; those in the store have ended.
Reply Service::cancel_response(const HttpRequest& request) {
  std::string id = response_id(request);
  if (!id.ends_with(cancel_suffix)) throw ApiError(404, "not_found_error", "There is nothing at this path.");
  id.resize(id.size() - cancel_suffix.size());
  if (const auto session = session_of(id, request.client)) session->abort(response_cancelled(), Outcome::abort);
  const auto found = options_.chat.responses->find(id, request.client);
  if (!found) throw response_not_found();
  if (found->is_cancelled) return json_reply(200, found->body);
  throw ApiError(400, "invalid_request_error", "The response has ended and cannot be cancelled.");
}

// Refuses before the work of tokenising; the engine itself has the last word (engine::QueueFull).
void Service::require_place(int64_t choices) const {
  const auto in_engine =
      std::count_if(sessions_.begin(), sessions_.end(),
                    [](const std::shared_ptr<ChatSession>& session) { return session->in_engine(); });
  if (preparing_ + in_engine + choices - model_->max_running > options_.max_queued_requests) throw queue_full();
}

Handler Service::generates(const Reading& reading) {
  return [this, &reading](HttpRequest request, std::shared_ptr<Responder> responder) {
    generate(reading, std::move(request), std::move(responder));
  };
}

void Service::generate(const Reading& reading, HttpRequest request, std::shared_ptr<Responder> responder) {
  const auto arrived = ChatSession::Clock::now();
  try {
    require_ready();
    require_place();
  } catch (const ApiError& error) {
    return refuse(reading, *responder, request.request_id, error);
  }
  ++preparing_;
  executor_.work([this, &reading, model = model_, request = std::move(request), responder = std::move(responder),
                  arrived]() mutable {
    auto prepared = std::make_shared<PreparedChat>();
    std::optional<ApiError> error;  // across the queue goes a value, not an exception
    try {
      *prepared = reading.prepare(request, *model, options_.chat);
    } catch (...) {
      error = to_api_error(std::current_exception());
    }
    executor_.io([this, &reading, prepared, error, arrived, responder = std::move(responder),
                  id = std::move(request.request_id)] {
      --preparing_;
      if (error) return refuse(reading, *responder, id, *error);
      start_sessions(reading, std::move(*prepared), responder, arrived, id);
    });
  });
}

// Needs the tokenizer alone, so neither a place in the queue nor a session.
Handler Service::answered_by_worker(Answer answer) {
  return [this, answer](HttpRequest request, std::shared_ptr<Responder> responder) {
    require_ready();
    ++counting_;
    executor_.work(
        [this, answer, model = model_, request = std::move(request), responder = std::move(responder)]() mutable {
          Reply reply;
          try {
            reply = json_reply(200, answer(request.body, *model, options_.chat));
          } catch (...) {
            const ApiError error = to_api_error(std::current_exception());
            log_refused_request(request.request_id, error);
            reply = error.reply();
          }
          executor_.io([this, reply = std::move(reply), responder = std::move(responder)] {
            --counting_;
            responder->reply(reply);
          });
        });
  };
}

// The engine counts from submit(); the limit counts from the arrival, so what tokenising took is taken off.
void Service::set_deadline(engine::Request& request, ChatSession::Clock::time_point arrived) const {
  if (options_.request_timeout_s <= 0) return;
  const double passed = std::chrono::duration<double>(ChatSession::Clock::now() - arrived).count();
  if (passed >= options_.request_timeout_s) throw deadline_exceeded();
  request.deadline_s = options_.request_timeout_s - passed;
}

// All choices of a reply or none of them.
void Service::start_sessions(const Reading& reading, PreparedChat prepared, const std::shared_ptr<Responder>& responder,
                             ChatSession::Clock::time_point arrived, const std::string& request_id) {
  if (responder->gone()) return;
  std::vector<PreparedChat> others = std::move(prepared.others);
  std::vector<std::shared_ptr<ChatSession>> started;
  try {
    require_ready();  // draining may have begun meanwhile
    if (!others.empty()) require_place(1 + std::ssize(others));
    const auto responders = split_responder(responder, 1 + others.size());
    started.push_back(start_session(std::move(prepared), responders[0], arrived, request_id));
    for (size_t i = 0; i < others.size(); ++i) {
      started.push_back(start_session(std::move(others[i]), responders[i + 1], arrived, request_id));
    }
  } catch (...) {
    const ApiError error = to_api_error(std::current_exception());
    if (started.empty()) return refuse(reading, *responder, request_id, error);
    started.front()->abort(error, Outcome::error);  // which ends those beside it
  }
}

std::shared_ptr<ChatSession> Service::start_session(PreparedChat prepared, const std::shared_ptr<Responder>& responder,
                                                    ChatSession::Clock::time_point arrived,
                                                    const std::string& request_id) {
  set_deadline(prepared.engine_request, arrived);
  RequestTrace trace(metrics_, request_id, prepared.request.stream, arrived);
  // The session's end removes it from the set; the pointer is known only after the construction.
  auto key = std::make_shared<std::weak_ptr<ChatSession>>();
  auto session =
      std::make_shared<ChatSession>(*model_, executor_, std::move(prepared), responder, std::move(trace), [this, key] {
        if (const auto ended = key->lock()) sessions_.erase(ended);
      });
  *key = session;
  session->start();
  sessions_.insert(session);
  return session;
}

// Needs the tokenizer alone, so neither a place in the queue nor a session.
void Service::count_tokens(HttpRequest request, std::shared_ptr<Responder> responder) {
  try {
    require_ready();
  } catch (const ApiError& error) {
    return refuse(messages_reading, *responder, request.request_id, error);
  }
  ++counting_;
  executor_.work([this, model = model_, request = std::move(request), responder = std::move(responder)]() mutable {
    std::optional<ApiError> error;
    std::string body;
    try {
      body = count_tokens_reply(request.body, *model);
    } catch (...) {
      error = to_api_error(std::current_exception());
    }
    executor_.io(
        [this, error, body = std::move(body), responder = std::move(responder), id = std::move(request.request_id)] {
          --counting_;
          if (error) return refuse(messages_reading, *responder, id, *error);
          responder->reply(json_reply(200, body));
        });
  });
}

void Service::abort_active() {
  const auto sessions = sessions_;  // abort() removes from the set
  for (const auto& session : sessions) session->abort(unavailable("The server is stopping."), Outcome::abort);
}

}  // namespace tandem::api
