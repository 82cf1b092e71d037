// Reading requests and writing answers, with a bound on everything that a client controls.
#include "http/connection.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <iterator>
#include <utility>

#include "api/errors.h"
#include "api/random.h"
#include "base/log.h"

namespace tandem::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using api::ApiError;

namespace {

constexpr size_t read_bytes = 16 * 1024;
constexpr size_t max_request_id = 256;
constexpr int client_gone = 499;  // as nginx counts a client that left before an answer

using Fields = beast::http::fields;

std::string field(const Fields& fields, beast::string_view name) {
  const auto value = fields[name];
  return {value.data(), value.size()};
}

RequestHead request_head(const beast::http::request<beast::http::string_body>& message, const std::string& request_id) {
  RequestHead head;
  head.request_id = request_id;
  const auto method = message.method_string();
  const auto target = message.target();
  head.method.assign(method.data(), method.size());
  head.target.assign(target.data(), target.size());
  head.host = field(message, "Host");
  head.authorization = field(message, "Authorization");
  head.x_api_key = field(message, "X-Api-Key");
  head.api_key = field(message, "Api-Key");
  head.content_encoding = field(message, "Content-Encoding");
  head.requested_headers = field(message, "Access-Control-Request-Headers");
  return head;
}

// The client's X-Request-Id if it is fit for logs and headers, else a new one.
std::string choose_request_id(const Fields& fields) {
  std::string id = field(fields, "X-Request-Id");
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (id.empty() || id.size() > max_request_id || !printable) id = "req-" + api::random_hex(12);
  return id;
}

ApiError bad_request(int status, std::string message) { return {status, "invalid_request_error", std::move(message)}; }

// Rules of the protocol that Beast leaves to us. Content-Length together with Transfer-Encoding is refused by Beast.
std::optional<ApiError> check_protocol(const beast::http::request<beast::http::string_body>& message,
                                       const Limits& limits) {
  const auto count = [&message](beast::string_view name) {
    const auto range = message.equal_range(name);
    return std::distance(range.first, range.second);
  };
  if (message.version() != 10 && message.version() != 11) return bad_request(505, "Only HTTP/1.0 and 1.1 are spoken.");
  if (static_cast<size_t>(std::distance(message.begin(), message.end())) > limits.header_fields) {
    return bad_request(431, fmt::format("More than {} header fields.", limits.header_fields));
  }
  if (count("Host") > 1 || (message.version() == 11 && count("Host") == 0)) {
    return bad_request(400, "Exactly one Host header field is required.");
  }
  if (const auto coding = message["Transfer-Encoding"]; count("Transfer-Encoding") > 0) {
    if (message.version() == 10) return bad_request(400, "Transfer-Encoding needs HTTP/1.1.");
    if (count("Transfer-Encoding") > 1 || !beast::iequals(coding, "chunked")) {
      return bad_request(501, "The only Transfer-Encoding of requests that is supported is chunked.");
    }
  }
  if (const auto expect = message["Expect"]; !expect.empty() && !beast::iequals(expect, "100-continue")) {
    return bad_request(417, "The only Expect that is supported is 100-continue.");
  }
  return std::nullopt;
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, const Shared& shared, std::function<void(Connection*)> on_closed)
    : stream_(std::move(socket), shared.tls),
      router_(shared.router),
      limits_(shared.limits),
      bodies_(shared.bodies),
      observer_(shared.observer),
      on_closed_(std::move(on_closed)),
      deadline_(stream_.get_executor()),
      write_deadline_(stream_.get_executor()),
      keepalive_(stream_.get_executor()),
      buffer_(limits_.header_bytes + limits_.pipelined_bytes + 4 * read_bytes) {}

void Connection::start() {
  ErrorCode ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  stream_.socket().set_option(asio::socket_base::send_buffer_size(limits_.send_buffer_bytes), ignored);
  stream_.socket().non_blocking(true, ignored);  // for write_at_once
  if (!stream_.is_secure()) return next_request();
  state_ = State::handshake;
  arm(deadline_, limits_.handshake);
  stream_.async_handshake([self = shared_from_this()](ErrorCode error) {
    if (self->state_ == State::closed) return;
    if (error) return self->close();
    self->next_request();
  });
}

void Connection::shut_down() {
  shutting_down_ = true;
  if (state_ != State::busy && !writing_) close();
}

void Connection::close() {
  if (state_ == State::closed) return;
  const auto self = shared_from_this();
  const auto answer = answer_.lock();
  if (state_ == State::busy && !answered_) {
    // Without an answer to ask: it was dropped, which is our own mistake.
    report(!answer ? 500 : answer->status() > 0 ? answer->status() : client_gone);
  }
  state_ = State::closed;
  ErrorCode ignored;
  stream_.socket().close(ignored);
  deadline_.cancel();
  write_deadline_.cancel();
  keepalive_.cancel();
  if (answer) answer->lost();
  on_closed_(this);
}

void Connection::arm(Timer& timer, std::chrono::milliseconds duration) {
  timer.expires_after(duration);
  timer.async_wait([self = shared_from_this(), &timer](ErrorCode error) {
    // The timer may have been set anew after this wait was already due.
    if (!error && timer.expiry() <= Timer::clock_type::now()) self->close();
  });
}

// ---- Requests ----

void Connection::next_request() {
  answered_.reset();
  parser_.reset();
  body_share_.reset();
  unread_ = true;
  if (shutting_down_) return close();
  state_ = State::idle;
  arm(deadline_, limits_.idle);
  if (buffer_.size() == 0) {
    if (!reading_) start_read();
  } else if (reading_) {
    // Pipelined bytes are here already and only one read may run: on_read goes on.
    ErrorCode ignored;
    stream_.socket().cancel(ignored);
  } else {
    read_head();
  }
}

// Waits for the first byte of a request; during an answer, for further requests and for the client's leaving.
void Connection::start_read() {
  reading_ = true;
  stream_.async_read_some(buffer_.prepare(read_bytes),
                          [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_read(error, bytes); });
}

void Connection::on_read(ErrorCode error, size_t bytes) {
  reading_ = false;
  if (state_ == State::closed) return;
  if (error) {
    if (error == asio::error::operation_aborted && state_ == State::idle && buffer_.size() > 0) return read_head();
    // End of input counts as gone: a client that only shuts its write side down and still reads cannot be told apart,
    // and none of the known clients does that.
    return close();
  }
  buffer_.commit(bytes);
  if (state_ == State::idle) return read_head();
  if (state_ == State::lingering) {
    buffer_.consume(buffer_.size());
    discarded_ += bytes;
    if (discarded_ > limits_.discarded_bytes) return close();
    arm(deadline_, limits_.linger);
    return discard();
  }
  if (buffer_.size() < limits_.pipelined_bytes) start_read();
}

void Connection::read_head() {
  state_ = State::head;
  arm(deadline_, limits_.header);
  parser_.emplace();
  parser_->header_limit(limits_.header_bytes);
  parser_->body_limit(boost::none);  // a Content-Length over the limit must still give its head
  beast::http::async_read_header(stream_, buffer_, *parser_,
                                 [self = shared_from_this()](ErrorCode error, size_t) { self->on_head(error); });
}

void Connection::on_head(ErrorCode error) {
  if (state_ == State::closed) return;
  head_time_ = std::chrono::steady_clock::now();
  method_.clear();
  decision_ = {};
  if (error) return on_parse_error(error);
  const auto& message = parser_->get();
  method_ = std::string(message.method_string());
  request_id_ = choose_request_id(message);
  framing_ = {message.version() == 11, message.keep_alive(), message.method() == beast::http::verb::head,
              router_.common_headers()};
  framing_.headers.emplace_back("X-Request-Id", request_id_);
  if (const auto violation = check_protocol(message, limits_)) return refuse(*violation, false);
  decision_ = router_.decide(request_head(message, request_id_));
  // A body that is not read would be taken for the next request.
  if (decision_.reply) return refuse(*decision_.reply, framing_.keep_alive && parser_->is_done());
  if (parser_->content_length().value_or(0) > limits_.body_bytes) {
    return refuse(api::too_large(limits_.body_bytes), false);
  }
  body_share_ = bodies_.share();
  if (!body_share_->grow_to(parser_->content_length().value_or(0)))
    return refuse(api::unavailable("Too many large requests."), false);
  if (!parser_->is_done() && !message["Expect"].empty()) write(response_head(100, {}));
  parser_->body_limit(limits_.body_bytes);
  parser_->eager(true);
  state_ = State::body;
  read_body();
}

void Connection::read_body() {
  // The length of a chunked body is known only as it comes.
  if (!body_share_->grow_to(parser_->get().body().size())) {
    return refuse(api::unavailable("Too many large requests."), false);
  }
  if (parser_->is_done()) return dispatch();
  const auto passed =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - head_time_);
  if (passed >= limits_.body) return close();
  arm(deadline_, std::min(limits_.body_idle, limits_.body - passed));
  beast::http::async_read_some(stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, size_t) {
    if (self->state_ == State::closed) return;
    if (error) return self->on_parse_error(error);
    self->read_body();
  });
}

void Connection::on_parse_error(ErrorCode error) {
  using HttpError = beast::http::error;
  const bool of_protocol = error.category() == make_error_code(HttpError::bad_method).category();
  if (!of_protocol || error == HttpError::end_of_stream || error == HttpError::partial_message) return close();
  if (state_ == State::head) {  // nothing of the head is known
    framing_ = {true, false, false, router_.common_headers()};
    framing_.headers.emplace_back("X-Request-Id", "req-" + api::random_hex(12));
  }
  if (error == HttpError::body_limit) return refuse(api::too_large(limits_.body_bytes), false);
  if (error == HttpError::header_limit || error == HttpError::buffer_overflow) {
    return refuse(bad_request(431, fmt::format("The request head is larger than {} bytes.", limits_.header_bytes)),
                  false);
  }
  refuse(bad_request(400, fmt::format("Malformed HTTP request: {}.", error.message())), false);
}

std::shared_ptr<Answer> Connection::make_answer() {
  state_ = State::busy;
  deadline_.cancel();
  auto answer = std::make_shared<Answer>(shared_from_this(), framing_);
  answer_ = answer;
  return answer;
}

api::Reply Connection::worded(const ApiError& error) const {
  const bool by_route = decision_.route && decision_.route->refusal;
  return by_route ? decision_.route->refusal(error, request_id_) : error.reply();
}

void Connection::refuse(const ApiError& error, bool keep_alive) { refuse(worded(error), keep_alive); }

void Connection::refuse(const api::Reply& reply, bool keep_alive) {
  framing_.keep_alive = keep_alive;
  make_answer()->reply(reply);
}

void Connection::dispatch() {
  auto message = parser_->release();
  api::HttpRequest request;
  request.method = decision_.route->method;
  request.path = decision_.path;
  request.query = decision_.query;
  request.request_id = request_id_;
  request.client = decision_.client;
  request.body = std::move(message.body());
  request.body_share = std::exchange(body_share_, nullptr);
  log(LogLevel::debug, "request {}: {} {}, {} bytes", request_id_, request.method, request.path, request.body.size());
  unread_ = false;
  const auto answer = make_answer();
  if (!reading_ && buffer_.size() < limits_.pipelined_bytes) start_read();
  try {
    decision_.route->handler(std::move(request), answer);
  } catch (...) {
    answer->reply(worded(api::to_api_error(std::current_exception())));
  }
}

// ---- Answers ----

void Connection::write(std::string bytes) {
  if (state_ == State::closed) return;
  queued_ += bytes;
  flush_soon();
}

// After whatever gives bytes or ends the answer, so that what it gives in a row leaves in one piece.
void Connection::flush_soon() {
  if (std::exchange(flush_due_, true)) return;
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    self->flush_due_ = false;
    if (self->state_ == State::closed || self->writing_) return;
    self->write_at_once();
    if (const auto answer = self->answer_.lock(); answer && !self->congested()) answer->drained();
    self->after_answer();
  });
}

// A token is a few hundred bytes, for which the kernel nearly always has room: then neither a timer nor a completion is
// needed. What is left, errors included, goes the long way.
void Connection::write_at_once() {
  ErrorCode error;
  while (!stream_.is_secure() && !error && !(in_flight_.empty() && queued_.empty())) {
    if (in_flight_.empty()) in_flight_.swap(queued_);
    written_ += stream_.socket().write_some(asio::buffer(in_flight_) + written_, error);
    if (written_ < in_flight_.size()) continue;
    in_flight_.clear();
    written_ = 0;
  }
  if (written_ < in_flight_.size() || !queued_.empty()) start_write();
}

bool Connection::congested() const { return in_flight_.size() - written_ + queued_.size() > limits_.unsent_bytes; }

void Connection::start_write() {
  if (written_ == in_flight_.size()) {
    in_flight_ = std::exchange(queued_, {});
    written_ = 0;
  }
  writing_ = true;
  arm(write_deadline_, limits_.write_idle);
  stream_.async_write_some(
      asio::buffer(in_flight_) + written_,
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_written(error, bytes); });
}

void Connection::on_written(ErrorCode error, size_t bytes) {
  writing_ = false;
  if (state_ == State::closed) return;
  if (error) return close();
  written_ += bytes;
  const auto answer = answer_.lock();
  if (written_ < in_flight_.size() || !queued_.empty()) {
    start_write();
  } else {
    write_deadline_.cancel();
  }
  if (answer && !congested()) answer->drained();
  after_answer();
}

// Goes on once the answer has been given and written to its end.
void Connection::after_answer() {
  if (state_ != State::busy || writing_ || !answered_) return;
  if (*answered_ && !shutting_down_) {
    next_request();
  } else if (unread_ || stream_.is_secure()) {
    linger();
  } else {
    close();
  }
}

void Connection::set_keepalive(bool on) {
  if (limits_.sse_keepalive.count() == 0 || state_ == State::closed) return;
  const bool was_on = silent_since_.has_value();
  silent_since_.reset();
  if (on) silent_since_ = Timer::clock_type::now();
  if (on && !was_on) wait_for_silence();
  if (!on) keepalive_.cancel();
}

// The timer is not set anew for every event: when it is due it looks how long nothing was sent.
void Connection::wait_for_silence() {
  keepalive_.expires_at(*silent_since_ + limits_.sse_keepalive);
  keepalive_.async_wait([self = shared_from_this()](ErrorCode error) {
    const auto now = Timer::clock_type::now();
    if (error || !self->silent_since_ || self->keepalive_.expiry() > now) return;
    if (now - *self->silent_since_ >= self->limits_.sse_keepalive) {
      const auto answer = self->answer_.lock();
      if (!answer) return self->silent_since_.reset();
      // A client that takes nothing does not get more of it.
      if (!self->congested()) answer->send_keepalive();
      self->silent_since_ = now;
    }
    self->wait_for_silence();
  });
}

void Connection::end_answer(bool keep_alive) {
  answered_ = keep_alive;
  if (const auto answer = answer_.lock()) report(answer->status());
  flush_soon();
}

void Connection::report(int status) {
  if (!observer_) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - head_time_).count();
  observer_({method_, decision_.route ? decision_.route->path : std::string(), status, seconds});
}

void Connection::abandoned() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (self->state_ != State::busy || self->answered_ || !self->answer_.expired()) return;
    log(LogLevel::error, "request {}: dropped without an answer", self->request_id_);
    self->close();
  });
}

void Connection::linger() {
  state_ = State::lingering;
  parser_.reset();
  body_share_.reset();
  buffer_.consume(buffer_.size());
  arm(deadline_, limits_.linger);
  // Under TLS a body that ends with the connection is complete only with this.
  stream_.async_end_output([self = shared_from_this()](ErrorCode) {
    if (self->state_ == State::closed) return;
    if (!self->unread_) return self->close();
    if (!self->reading_) self->discard();
  });
}

void Connection::discard() {
  reading_ = true;
  stream_.async_read_raw(buffer_.prepare(read_bytes),
                         [self = shared_from_this()](ErrorCode error, size_t bytes) { self->on_read(error, bytes); });
}

}  // namespace tandem::http
