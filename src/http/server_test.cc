// The server as a whole: handlers that fail, many clients, starting and stopping.
#include "http/server.h"

#include "base/error.h"
#include "http/server_fixture.h"

namespace tandem::http::server_test {
namespace {

using namespace std::chrono_literals;

TEST_F(ServerTest, HandlersThatThrowOrForget) {
  start();
  TestClient client(server_->port());
  client.send(get("/throw"));
  EXPECT_EQ(status(client.read_response()), 418);
  client.send(get("/drop"));
  EXPECT_TRUE(client.closed_by_server());
  std::atomic<int> ran{0};
  server_->io([] { throw std::runtime_error("io"); });
  server_->work([] { throw std::runtime_error("work"); });
  server_->work([&] { ++ran; });
  EXPECT_TRUE(eventually([&] { return ran == 1; }));
  TestClient again(server_->port());
  again.send(get("/hello"));
  EXPECT_EQ(status(again.read_response()), 200);
}

TEST_F(ServerTest, ManyClientsAtOnce) {
  start();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        TestClient client(server_->port());
        const std::string text = std::to_string(t * 1000 + i);
        client.send(post("/echo", text, "X-Request-Id: r\r\n"));
        right += body(client.read_response()) == "r|" + text;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitWait) {
  Limits limits;
  limits.connections = 1;
  start(limits);
  auto first = std::make_unique<TestClient>(server_->port());
  first->send(get("/hello"));
  EXPECT_EQ(status(first->read_response()), 200);
  TestClient second(server_->port());
  second.send(post("/hold", "x"));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(holding_, 0);
  first.reset();
  EXPECT_TRUE(eventually([&] { return holding_ == 1; }));
}

TEST_F(ServerTest, CloseEndsEverything) {
  start();
  TestClient idle(server_->port()), busy(server_->port());
  busy.send(post("/hold", "x"));
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  const uint16_t port = server_->port();
  std::thread answering([&] {
    std::this_thread::sleep_for(50ms);
    server_->io([&] { held_->reply({}); });
  });
  server_->close();
  answering.join();
  EXPECT_TRUE(idle.closed_by_server());
  const std::string response = busy.read_all();
  EXPECT_EQ(status(response), 200);  // what could be answered in time was
  EXPECT_THROW(TestClient{port}, std::runtime_error);
}

TEST_F(ServerTest, StopRequests) {
  start();
  EXPECT_FALSE(server_->wait_for_stop(1, 0.01));
  server_->request_stop();
  EXPECT_TRUE(server_->wait_for_stop(1, 10));
  EXPECT_FALSE(server_->wait_for_stop(2, 0.01));
}

ErrorCode listen_error(const std::string& host, uint16_t port, std::vector<std::string> keys, bool insecure,
                       std::string* message = nullptr) {
  ServerOptions options;
  options.host = host;
  options.port = port;
  options.api_keys = std::move(keys);
  options.insecure = insecure;
  try {
    Server server(options);
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.code();
  }
  return ErrorCode::failed_check;  // stands for: no error
}

// The same without listening.
ErrorCode check_error(const std::string& host, std::vector<std::string> keys, bool insecure) {
  ServerOptions options;
  options.host = host;
  options.api_keys = std::move(keys);
  options.insecure = insecure;
  try {
    check_listener(options);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::failed_check;
}

TEST_F(ServerTest, TheCheckSaysWhatListeningWouldSay) {
  for (const auto* host : {"127.0.0.1", "0.0.0.0", "no.such.host.invalid"}) {
    for (const auto& keys : {std::vector<std::string>{}, {"key"}, {"key", ""}}) {
      for (const bool insecure : {false, true})
        EXPECT_EQ(check_error(host, keys, insecure), listen_error(host, 0, keys, insecure)) << host;
    }
  }
}

TEST_F(ServerTest, ListeningCanFail) {
  start();
  std::string message;
  EXPECT_EQ(listen_error("127.0.0.1", server_->port(), {}, false, &message), ErrorCode::resource);
  EXPECT_NE(message.find("127.0.0.1:" + std::to_string(server_->port()) + ": the port is in use"), std::string::npos)
      << message;
  EXPECT_EQ(listen_error("no.such.host.invalid", 0, {}, false), ErrorCode::resource);
  EXPECT_EQ(listen_error("0.0.0.0", 0, {}, false, &message), ErrorCode::usage);
  EXPECT_NE(message.find("--insecure"), std::string::npos) << message;
  EXPECT_EQ(listen_error("0.0.0.0", 0, {}, true), ErrorCode::failed_check);
  EXPECT_EQ(listen_error("0.0.0.0", 0, {"key"}, false), ErrorCode::failed_check);
  EXPECT_EQ(listen_error("127.0.0.1", 0, {""}, false), ErrorCode::usage);
}

TEST_F(ServerTest, EveryRequestIsReportedOnce) {
  Limits limits;
  limits.body_bytes = 10;
  start(limits);
  const auto ask = [this](const std::string& request) {
    TestClient client(server_->port());
    client.send(request);
    client.read_until("\r\n\r\n");
  };
  ask(get("/hello"));
  ask("HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ask(post("/echo", "x"));
  ask(get("/nowhere"));
  ask(get("/echo"));
  ask(get("/throw"));
  ask(post("/echo", std::string(11, 'x')));
  ask("BREW\x01 /hello HTTP/1.1\r\n\r\n");
  ask(get("/drop"));
  EXPECT_TRUE(eventually([this] { return exchanges().size() >= 9; }));
  EXPECT_EQ(exchanges(),
            (std::vector<std::string>{"GET /hello 200", "HEAD /hello 200", "POST /echo 200", "GET  404", "GET  405",
                                      "GET /throw 418", "POST /echo 413", "  400", "GET /drop 500"}));
}

TEST_F(ServerTest, ClientsThatLeaveAreReportedToo) {
  start();
  {
    TestClient client(server_->port());
    client.send(post("/hold", ""));
    ASSERT_TRUE(eventually([this] { return holding_ == 1; }));
  }
  ASSERT_TRUE(eventually([this] { return exchanges().size() == 1; }));
  {
    TestClient client(server_->port());
    client.send(get("/stream"));
    client.read_until("\r\n\r\n");
  }
  ASSERT_TRUE(eventually([this] { return exchanges().size() == 2; }));
  EXPECT_EQ(exchanges(), (std::vector<std::string>{"POST /hold 499", "GET /stream 200"}));
  TestClient idle(server_->port());  // a connection without a request is none
  idle.close();
  TestClient client(server_->port());
  client.send(get("/hello"));
  client.read_response();
  EXPECT_TRUE(eventually([this] { return exchanges().size() == 3; }));
}

TEST_F(ServerTest, MetricsAreOpenOnLoopbackUnlessToldOtherwise) {
  const auto ask = [this](const std::string& fields = {}) {
    TestClient client(server_->port());
    client.send(get("/metrics", fields));
    return status(client.read_response());
  };
  start({}, {"secret"});
  EXPECT_EQ(ask(), 200);
  server_->close();
  start({}, {"secret"}, false);
  EXPECT_EQ(ask(), 401);
  EXPECT_EQ(ask("Authorization: Bearer secret\r\n"), 200);
}

}  // namespace
}  // namespace tandem::http::server_test
