// Framing of replies and event streams.
#include "http/answer.h"

#include <fmt/core.h>

#include <ctime>
#include <utility>

namespace tandem::http {

Answer::Answer(std::shared_ptr<Outlet> outlet, Framing framing)
    : outlet_(std::move(outlet)), framing_(std::move(framing)) {}

Answer::~Answer() {
  if (open()) outlet_->abandoned();
}

void Answer::reply(api::Reply reply) {
  if (!open() || streaming_) return;
  status_ = reply.status;
  Headers headers = framing_.headers;
  headers.emplace_back("Date", http_date(std::time(nullptr)));
  for (auto& header : reply.headers) headers.push_back(std::move(header));
  if (reply.status != 204) {  // which has no body by definition
    headers.emplace_back("Content-Type", reply.content_type);
    headers.emplace_back("Content-Length", fmt::format("{}", reply.body.size()));
  }
  headers.emplace_back("Connection", framing_.keep_alive ? "keep-alive" : "close");
  std::string bytes = response_head(reply.status, headers);
  if (!framing_.head_only && reply.status != 204) bytes += reply.body;
  outlet_->write(std::move(bytes));
  finish(framing_.keep_alive);
}

void Answer::open_stream() {
  if (!open() || streaming_) return;
  streaming_ = true;
  status_ = 200;
  Headers headers = framing_.headers;
  headers.emplace_back("Date", http_date(std::time(nullptr)));
  headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  if (framing_.chunked) headers.emplace_back("Transfer-Encoding", "chunked");
  headers.emplace_back("Connection", framing_.chunked && framing_.keep_alive ? "keep-alive" : "close");
  outlet_->write(response_head(200, headers));
  outlet_->set_keepalive(true);
}

void Answer::send_piece(std::string_view bytes) {
  outlet_->write(framing_.chunked ? chunk(bytes) : std::string(bytes));
}

void Answer::send_sse(std::string_view bytes) {
  if (!open() || !streaming_) return;
  send_piece(bytes);
  outlet_->set_keepalive(true);  // silence begins anew
}

void Answer::send_event(std::string_view data) { send_sse(sse_event(data)); }

void Answer::send_named_event(std::string_view name, std::string_view data) { send_sse(sse_event(name, data)); }

void Answer::close_stream() {
  if (!open() || !streaming_) return;
  if (framing_.chunked) outlet_->write(std::string(last_chunk));
  finish(framing_.chunked && framing_.keep_alive);
}

void Answer::finish(bool keep_alive) {
  complete_ = true;
  on_drained_ = nullptr;
  on_gone_ = nullptr;
  outlet_->set_keepalive(false);
  outlet_->end_answer(keep_alive);
}

bool Answer::congested() const { return open() && outlet_->congested(); }

void Answer::on_drained(std::function<void()> callback) {
  if (open()) on_drained_ = std::move(callback);
}

void Answer::on_gone(std::function<void()> callback) {
  if (open()) on_gone_ = std::move(callback);
}

void Answer::drained() {
  if (auto callback = std::exchange(on_drained_, nullptr)) callback();
}

void Answer::lost() {
  if (!open()) return;
  gone_ = true;
  on_drained_ = nullptr;
  if (auto callback = std::exchange(on_gone_, nullptr)) callback();
}

void Answer::send_keepalive() {
  if (open() && streaming_) send_piece(sse_keepalive);
}

}  // namespace tandem::http
