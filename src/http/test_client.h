// A blocking client over a plain socket, so that tests can send what no HTTP library would. Included by tests only.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tandem::http {

class TestClient {
 public:
  explicit TestClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{20, 0};  // a test must fail rather than hang
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      ::close(socket_);
      throw std::runtime_error("connect");
    }
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  // False once the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Reads until `end` has been seen; returns everything up to and including it, or what came before the end of input.
  std::string read_until(std::string_view end) {
    size_t at = 0;
    while ((at = buffer_.find(end)) == std::string::npos) {
      if (!receive()) return std::exchange(buffer_, {});
    }
    std::string result = buffer_.substr(0, at + end.size());
    buffer_.erase(0, at + end.size());
    return result;
  }
  std::string read(size_t bytes) {
    while (buffer_.size() < bytes && receive()) {
    }
    std::string result = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return result;
  }
  std::string read_all() {
    while (receive()) {
    }
    return std::exchange(buffer_, {});
  }
  // One response with a Content-Length: head and body.
  std::string read_response() {
    const std::string head = read_until("\r\n\r\n");
    constexpr std::string_view field = "Content-Length: ";
    const size_t at = head.find(field);
    return at == std::string::npos ? head : head + read(std::stoul(head.substr(at + field.size())));
  }
  bool closed_by_server() { return buffer_.empty() && !receive(); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  bool receive() {
    char bytes[16384];
    const ssize_t got = recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(got));
    return true;
  }

  int socket_;
  std::string buffer_;
};

}  // namespace tandem::http
