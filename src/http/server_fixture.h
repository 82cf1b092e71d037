// A server on a free loopback port with small handlers. Included by tests only.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "http/server.h"
#include "http/test_client.h"

namespace tandem::http {

// Waits for something that another thread does.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class ServerTest : public testing::Test {
 protected:
  void start(const Limits& limits = {}, std::vector<std::string> keys = {}, std::optional<bool> open_metrics = {}) {
    ServerOptions options;
    options.port = 0;
    options.limits = limits;
    options.api_keys = std::move(keys);
    options.open_metrics = open_metrics;
    options.tls_cert = tls_cert_;
    options.tls_key = tls_key_;
    server_ = std::make_unique<Server>(std::move(options));
    server_->start(
        {{"POST", "/echo", false,
          [](api::HttpRequest request, std::shared_ptr<api::Responder> responder) {
            api::Reply reply;
            reply.body = request.request_id + "|" + request.body;
            responder->reply(std::move(reply));
          }},
         {"GET", "/hello", true,
          [](api::HttpRequest, std::shared_ptr<api::Responder> responder) {
            api::Reply reply;
            reply.body = "hello";
            responder->reply(std::move(reply));
          }},
         {"GET", "/throw", true,
          [](api::HttpRequest, std::shared_ptr<api::Responder>) {
            throw api::ApiError(418, "server_error", "teapot");
          }},
         {"GET", "/drop", true, [](api::HttpRequest, std::shared_ptr<api::Responder>) {}},
         {"POST", "/hold", false,
          [this](api::HttpRequest, std::shared_ptr<api::Responder> responder) { hold(std::move(responder)); }},
         {"GET", "/stream", true,
          [this](api::HttpRequest, std::shared_ptr<api::Responder> responder) {
            responder->open_stream();
            hold(std::move(responder));
          }},
         {"GET", "/metrics", false,
          [](api::HttpRequest, std::shared_ptr<api::Responder> responder) { responder->reply({}); }, true}},
        [this](const api::HttpExchange& exchange) {
          const std::lock_guard lock(mutex_);
          exchanges_.push_back(exchange);
        });
  }
  void TearDown() override {
    if (server_) server_->close();
    held_.reset();
    server_.reset();
  }

  void hold(std::shared_ptr<api::Responder> responder) {
    responder->on_gone([this] { ++gone_; });
    held_ = std::move(responder);
    ++holding_;
  }
  void on_io(std::function<void()> task) {
    std::atomic<bool> done{false};
    server_->io([&] {
      task();
      done = true;
    });
    ASSERT_TRUE(eventually([&] { return done.load(); }));
  }

  // Method, handler and status of the requests so far.
  std::vector<std::string> exchanges() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> lines;
    for (const auto& exchange : exchanges_) {
      EXPECT_GE(exchange.seconds, 0);
      EXPECT_LT(exchange.seconds, 20);
      lines.push_back(exchange.method + " " + exchange.handler + " " + std::to_string(exchange.status));
    }
    return lines;
  }
  static std::string post(const std::string& path, const std::string& body, const std::string& fields = {}) {
    return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static std::string get(const std::string& path, const std::string& fields = {}) {
    return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
  }
  static int status(const std::string& response) { return response.size() > 12 ? std::stoi(response.substr(9, 3)) : 0; }
  static std::string body(const std::string& response) { return response.substr(response.find("\r\n\r\n") + 4); }

  std::string tls_cert_, tls_key_;  // files for start(); empty: plain HTTP
  std::unique_ptr<Server> server_;
  std::shared_ptr<api::Responder> held_;  // io thread only, once the server runs
  std::atomic<int> holding_{0}, gone_{0};
  std::mutex mutex_;
  std::vector<api::HttpExchange> exchanges_;
};

}  // namespace tandem::http
