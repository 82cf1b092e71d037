// The border between sockets and dialects. `http` implements Responder and Executor and knows no JSON; `api`
// implements the handlers and knows no sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::api {

struct HttpRequest {
  std::string method;      // "GET", "POST"
  std::string path;        // percent-decoded, without query and trailing slash
  std::string request_id;  // X-Request-Id of the client or one made by the server: printable, at most 256 bytes
  std::string body;
  std::shared_ptr<void> body_share;  // of the memory that all bodies together may take; lives as long as the body
  int64_t client = 0;                // which of the server's keys let it in, counted from 1; 0: none was needed
  std::string query = {};            // what follows '?' in the target, as it was sent
};

struct Reply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;  // beyond those that http adds itself
  std::string content_type = "application/json";
  std::string body;
};

// The answer to one request: either reply() once, or open_stream(), any number of send_event(), close_stream(). All
// calls and callbacks are on the io thread. After the client has gone every call is ignored.
class Responder {
 public:
  virtual ~Responder() = default;

  virtual void reply(Reply reply) = 0;

  // Sends the head of a server-sent event stream (status 200).
  virtual void open_stream() = 0;
  // One event; `data` has no line ends.
  virtual void send_event(std::string_view data) = 0;
  // The same with the event's name before the data; the name has no line ends either.
  virtual void send_named_event(std::string_view name, std::string_view data) = 0;
  virtual void close_stream() = 0;
  // True while the client reads more slowly than events arrive. The caller should hold events back (it may merge them)
  // and go on at on_drained; nothing is lost if it does not.
  virtual bool congested() const = 0;
  virtual void on_drained(std::function<void()> callback) = 0;

  virtual bool gone() const = 0;
  // Called once if the client goes away before the answer is complete; not called when it already has.
  virtual void on_gone(std::function<void()> callback) = 0;
};

// Where code runs. Both calls are allowed from any thread and never block.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void io(std::function<void()> task) = 0;    // the io thread, in order
  virtual void work(std::function<void()> task) = 0;  // a worker thread: parsing, tokenising
};

// Called on the io thread; answers through the responder, at once or later. What it throws becomes an error reply.
using Handler = std::function<void(HttpRequest request, std::shared_ptr<Responder> responder)>;

class ApiError;

struct Route {
  std::string method;
  std::string path;   // "/v1/models"; a last segment "*" takes the rest of the path
  bool open = false;  // answered without a key
  Handler handler;
  bool monitoring = false;  // a setting of the server decides about `open`
  // Words an error for the clients of this route; null: in the OpenAI dialects' way.
  Reply (*refusal)(const ApiError& error, const std::string& request_id) = nullptr;
};

// A request that has been answered or whose client has gone.
struct HttpExchange {
  std::string method;
  std::string handler;  // path of its route; empty: refused before a route was found
  int status = 0;       // 499: the client left before any answer
  double seconds = 0;   // from the end of the head to the end of the answer
};
using HttpObserver = std::function<void(const HttpExchange&)>;  // on the io thread

}  // namespace tandem::api
