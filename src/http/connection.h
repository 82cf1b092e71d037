// One client connection: reads requests with Beast, hands them to the router, writes answers. Runs on the io thread
// only. Seen by connection.cc and server.cc, because it carries Boost.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/endpoint.h"
#include "http/answer.h"
#include "http/body_budget.h"
#include "http/limits.h"
#include "http/router.h"
#include "http/stream.h"

namespace tandem::http {

class Connection : public Outlet, public std::enable_shared_from_this<Connection> {
 public:
  // What belongs to the server and outlives its connections.
  struct Shared {
    const Router& router;
    const Limits& limits;
    const BodyBudget& bodies;
    const api::HttpObserver& observer;  // told of every request that got as far as its head; may be empty
    boost::asio::ssl::context* tls;     // null: plain connections
  };

  // on_closed is called once.
  Connection(boost::asio::ip::tcp::socket socket, const Shared& shared, std::function<void(Connection*)> on_closed);

  void start();
  void shut_down();  // closes now if no request is being answered, else after the answer
  void close();      // at once; a request being answered learns that its client is gone

  void write(std::string bytes) override;
  bool congested() const override;
  void set_keepalive(bool on) override;
  void end_answer(bool keep_alive) override;
  void abandoned() override;

 private:
  // handshake: of TLS; idle: waiting for the first byte of a request; busy: a request is being answered; lingering: the
  // last answer is written, what the client still sends is thrown away so that it is not answered with a reset.
  enum class State { handshake, idle, head, body, busy, lingering, closed };
  using Timer = boost::asio::steady_timer;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using ErrorCode = boost::system::error_code;

  void arm(Timer& timer, std::chrono::milliseconds duration);
  void start_read();
  void on_read(ErrorCode error, size_t bytes);
  void read_head();
  void on_head(ErrorCode error);
  void read_body();
  void dispatch();
  void refuse(const api::Reply& reply, bool keep_alive);
  void refuse(const api::ApiError& error, bool keep_alive);
  api::Reply worded(const api::ApiError& error) const;  // as the clients of the route expect it
  void on_parse_error(ErrorCode error);
  void flush_soon();
  void write_at_once();
  void start_write();
  void on_written(ErrorCode error, size_t bytes);
  void after_answer();
  void next_request();
  void wait_for_silence();
  void linger();
  void discard();
  std::shared_ptr<Answer> make_answer();
  void report(int status);

  Stream stream_;
  const Router& router_;
  const Limits& limits_;
  const BodyBudget& bodies_;
  const api::HttpObserver& observer_;
  std::function<void(Connection*)> on_closed_;

  State state_ = State::idle;
  bool shutting_down_ = false;
  Timer deadline_, write_deadline_, keepalive_;

  boost::beast::flat_buffer buffer_;
  bool reading_ = false;  // start_read's operation is outstanding
  bool unread_ = true;    // a part of the request may still be under way
  size_t discarded_ = 0;
  std::optional<Parser> parser_;
  Decision decision_;
  std::shared_ptr<BodyBudget::Share> body_share_;
  std::string request_id_, method_;
  std::chrono::steady_clock::time_point head_time_;  // when the head had been read
  Framing framing_;
  std::weak_ptr<Answer> answer_;

  std::string in_flight_, queued_;  // being written; to be written next
  size_t written_ = 0;              // bytes of in_flight_
  bool writing_ = false;
  bool flush_due_ = false;
  std::optional<Timer::time_point> silent_since_;  // of a stream that wants comments: its last byte
  std::optional<bool> answered_;                   // the answer is complete; whether another request may follow
};

}  // namespace tandem::http
