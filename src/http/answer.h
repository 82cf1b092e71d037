// The answer to one request, as bytes: implements api::Responder over whatever carries the bytes. Knows HTTP framing
// and server-sent events, no sockets.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "api/endpoint.h"
#include "http/wire.h"

namespace tandem::http {

// What an answer needs of its connection. All but abandoned() on the io thread.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void write(std::string bytes) = 0;  // queues; never blocks
  virtual bool congested() const = 0;
  virtual void set_keepalive(bool on) = 0;       // call Answer::send_keepalive during silence
  virtual void end_answer(bool keep_alive) = 0;  // everything has been queued
  virtual void abandoned() = 0;                  // any thread: the answer was dropped without having been given
};

struct Framing {
  bool chunked = true;     // HTTP/1.1; else a stream ends with the connection
  bool keep_alive = true;  // the connection can take another request
  bool head_only = false;  // HEAD: no body is sent
  Headers headers;         // of every answer on this connection
};

class Answer : public api::Responder {
 public:
  Answer(std::shared_ptr<Outlet> outlet, Framing framing);
  ~Answer() override;

  void reply(api::Reply reply) override;
  void open_stream() override;
  void send_event(std::string_view data) override;
  void send_named_event(std::string_view name, std::string_view data) override;
  void close_stream() override;
  bool congested() const override;
  void on_drained(std::function<void()> callback) override;
  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> callback) override;

  // From the connection.
  void drained();
  void lost();
  void send_keepalive();
  int status() const { return status_; }  // 0: nothing has been sent yet

 private:
  void send_piece(std::string_view bytes);
  void send_sse(std::string_view bytes);
  void finish(bool keep_alive);
  bool open() const { return !gone_ && !complete_; }

  std::shared_ptr<Outlet> outlet_;
  Framing framing_;
  int status_ = 0;
  bool streaming_ = false, complete_ = false, gone_ = false;
  std::function<void()> on_drained_, on_gone_;
};

}  // namespace tandem::http
