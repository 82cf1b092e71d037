// A connection's bytes, plain or under TLS, as one type that Asio and Beast read from and write to. Seen by
// connection.cc and server.cc, because it carries Boost.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace tandem::http {

class Stream {
 public:
  using executor_type = boost::asio::ip::tcp::socket::executor_type;
  using ErrorCode = boost::system::error_code;

  // `tls` is null for plain connections; else it outlives the stream.
  Stream(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls) tls_.emplace(socket_, *tls);
  }
  Stream(const Stream&) = delete;  // tls_ refers to socket_
  Stream& operator=(const Stream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  bool is_secure() const { return tls_.has_value(); }
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  // Bytes as they come over the wire, only to be thrown away.
  template <typename Buffers, typename Handler>
  void async_read_raw(const Buffers& buffers, Handler&& handler) {
    socket_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      socket_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }
  // Only of a secure stream, before anything is read or written.
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  // Says that nothing more will be written. Under TLS the handler is called when the client has said so, too, or has
  // sent something else.
  template <typename Handler>
  void async_end_output(Handler&& handler) {
    if (tls_) {
      tls_->async_shutdown(std::forward<Handler>(handler));
      return;
    }
    ErrorCode error;
    socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, error);
    boost::asio::post(socket_.get_executor(), [handler = std::forward<Handler>(handler), error] { handler(error); });
  }

 private:
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
};

}  // namespace tandem::http
