// Clients of the benchmark: blocking ones for requests, and many streams read by one thread.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "recorded_engine.h"

namespace tandem::bench {

class Socket {
 public:
  explicit Socket(uint16_t port) : descriptor_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("cannot connect to the server under test");
    }
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int descriptor() const { return descriptor_; }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) throw std::runtime_error("the server under test closed a connection");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  // What has come; empty at the end of the connection.
  std::string_view receive() {
    const ssize_t got = ::recv(descriptor_, buffer_, sizeof buffer_, 0);
    return {buffer_, got > 0 ? static_cast<size_t>(got) : 0};
  }

 private:
  int descriptor_;
  char buffer_[16384];
};

inline std::string post(std::string_view path, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body);
}

// One whole reply with a Content-Length; throws unless its status is 200.
inline void read_reply(Socket& socket) {
  std::string reply;
  for (;;) {
    const std::string_view piece = socket.receive();
    if (piece.empty()) throw std::runtime_error("no reply");
    reply += piece;
    const size_t head = reply.find("\r\n\r\n"), field = reply.find("Content-Length: ");
    if (head == std::string::npos || field == std::string::npos) continue;
    if (reply.compare(9, 3, "200") != 0) throw std::runtime_error(reply);
    if (reply.size() >= head + 4 + std::stoul(reply.substr(field + 16))) return;
  }
}

// Arrival times of the tokens of one stream.
struct Arrivals {
  std::vector<Clock::time_point> times;
  bool ended = false;
};

// `count` streams of `tokens` tokens, all read by this thread. An event holds one token, so texts are counted.
inline std::vector<Arrivals> read_streams(uint16_t port, int64_t count, int64_t tokens) {
  const std::string body = fmt::format(
      R"({{"model":"nano-nothink","messages":[{{"role":"user","content":"Hello"}}],"stream":true,"max_tokens":{},"ignore_eos":true}})",
      tokens);
  std::vector<Socket> sockets;
  std::vector<Arrivals> arrivals(static_cast<size_t>(count));
  std::vector<std::string> rests(static_cast<size_t>(count));  // the end of what came, which may be a part of a mark
  const int poll = epoll_create1(0);
  for (int64_t i = 0; i < count; ++i) {
    sockets.emplace_back(port);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<uint64_t>(i);
    epoll_ctl(poll, EPOLL_CTL_ADD, sockets.back().descriptor(), &event);
    sockets.back().send(post("/v1/chat/completions", body));
  }
  static constexpr std::string_view mark = R"("delta":{"content":)", end = "data: [DONE]";
  for (int64_t open = count; open > 0;) {
    epoll_event events[256];
    const int ready = epoll_wait(poll, events, 256, 10'000);
    if (ready <= 0) throw std::runtime_error("streams fell silent");
    for (int e = 0; e < ready; ++e) {
      const size_t i = events[e].data.u64;
      const std::string_view piece = sockets[i].receive();
      const auto now = Clock::now();
      if (piece.empty()) throw std::runtime_error("a stream was cut");
      std::string& text = rests[i].append(piece);
      size_t from = 0;
      for (size_t at = 0; (at = text.find(mark, from)) != std::string::npos; from = at + mark.size()) {
        arrivals[i].times.push_back(now);
      }
      if (!arrivals[i].ended && text.find(end, from) != std::string::npos) {
        arrivals[i].ended = true;
        --open;
      }
      text.erase(0, std::max(from, text.size() - std::min(text.size(), mark.size() - 1)));
    }
  }
  ::close(poll);
  return arrivals;
}

}  // namespace tandem::bench
