// Connections over loopback sockets: what reaches a handler, what is refused, when connections end, when a client
// counts as gone. Handlers here are small; the real ones are tested in src/api.
#include <fmt/core.h>

#include "http/server_fixture.h"

namespace tandem::http::connection_test {
namespace {

using namespace std::chrono_literals;
using ConnectionTest = ServerTest;

TEST_F(ConnectionTest, KeepAliveAndPipelining) {
  start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/echo", "one", "X-Request-Id: r1\r\n"));
    EXPECT_EQ(body(client.read_response()), "r1|one");
  }
  std::string many;
  for (int i = 0; i < 50; ++i) many += post("/echo", std::to_string(i), "X-Request-Id: p\r\n") + get("/hello");
  client.send(many);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(body(client.read_response()), "p|" + std::to_string(i));
    EXPECT_EQ(body(client.read_response()), "hello");
  }
  client.send(get("/hello", "Connection: close\r\n"));
  EXPECT_EQ(status(client.read_response()), 200);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(ConnectionTest, ARequestMayComeByteByByte) {
  start();
  TestClient client(server_->port());
  for (const char c : post("/echo", "slow", "X-Request-Id: r\r\n")) client.send(std::string(1, c));
  EXPECT_EQ(body(client.read_response()), "r|slow");
}

TEST_F(ConnectionTest, ChunkedRequestBodies) {
  start();
  TestClient client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4\r\nwiki\r\nA;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
  EXPECT_EQ(body(client.read_response()), "r|wiki0123456789");
  client.send(get("/hello"));
  EXPECT_EQ(body(client.read_response()), "hello");
}

TEST_F(ConnectionTest, RequestIds) {
  start();
  TestClient client(server_->port());
  client.send(get("/hello", "X-Request-Id: mine\r\n"));
  EXPECT_NE(client.read_response().find("X-Request-Id: mine\r\n"), std::string::npos);
  client.send(get("/hello"));
  EXPECT_NE(client.read_response().find("X-Request-Id: req-"), std::string::npos);
  client.send(get("/hello", "X-Request-Id: " + std::string(257, 'x') + "\r\n"));
  EXPECT_NE(client.read_response().find("X-Request-Id: req-"), std::string::npos);
}

TEST_F(ConnectionTest, HeadAndOptions) {
  start();
  TestClient client(server_->port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/hello"));
  EXPECT_NE(client.read_until("\r\n\r\n").find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_EQ(body(client.read_response()), "hello");
  client.send("OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n\r\n");
  const std::string preflight = client.read_until("\r\n\r\n");
  EXPECT_EQ(status(preflight), 204);
  EXPECT_NE(preflight.find("Access-Control-Allow-Origin: *\r\n"), std::string::npos);
  client.send(get("/hello"));
  EXPECT_EQ(body(client.read_response()), "hello");
}

TEST_F(ConnectionTest, RefusalsKeepTheConnectionOnlyWithoutABody) {
  start({}, {"key"});
  TestClient client(server_->port());
  client.send(get("/nowhere", "Authorization: Bearer key\r\n"));
  EXPECT_EQ(status(client.read_response()), 404);
  client.send("DELETE /hello HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string wrong_method = client.read_response();
  EXPECT_EQ(status(wrong_method), 405);
  EXPECT_NE(wrong_method.find("Allow: GET, HEAD, OPTIONS\r\n"), std::string::npos);
  // The unread body must not be taken for a request.
  client.send(post("/echo", get("/hello")));
  const std::string refused = client.read_all();
  EXPECT_EQ(status(refused), 401);
  EXPECT_NE(refused.find("WWW-Authenticate: Bearer\r\n"), std::string::npos);
  EXPECT_EQ(refused.find("hello"), std::string::npos);
}

TEST_F(ConnectionTest, MalformedRequests) {
  start();
  const std::string host = "Host: localhost\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {"NONSENSE\r\n\r\n", 400},
      {"GET /hello\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\n\r\n", 400},
      {"GET /hello HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"GET /hello HTTP/1.1\r\n" + host + "bad field: x\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"POST /echo HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 1\r\nExpect: magic\r\n\r\na", 417},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Encoding: gzip\r\n\r\na", 415},
  };
  for (const auto& [request, expected] : cases) {
    TestClient client(server_->port());
    client.send(request);
    const std::string response = client.read_all();
    EXPECT_EQ(status(response), expected) << request << "\n" << response;
    EXPECT_NE(response.find("Connection: close\r\n"), std::string::npos) << request;
    EXPECT_NE(response.find("{\"error\":{\"message\":"), std::string::npos) << request;
  }
}

TEST_F(ConnectionTest, HeadLimits) {
  start();
  TestClient large(server_->port());
  large.send(get("/hello", "X: " + std::string(70000, 'x') + "\r\n"));
  EXPECT_EQ(status(large.read_all()), 431);
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += fmt::format("X{}: y\r\n", i);
  TestClient many(server_->port());
  many.send(get("/hello", fields));
  EXPECT_EQ(status(many.read_all()), 431);
  TestClient enough(server_->port());
  enough.send(get("/hello", fields.substr(fields.find('\n') + 1)));  // 99 and Host
  EXPECT_EQ(status(enough.read_response()), 200);
}

TEST_F(ConnectionTest, LargeBodyIsRefusedFromItsLength) {
  start();
  TestClient waiting(server_->port());
  waiting.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 34603008\r\n\r\n");
  EXPECT_EQ(status(waiting.read_response()), 413);  // before a byte of it was sent
  // A client that sends everything before it reads must see the answer as well.
  TestClient sending(server_->port());
  EXPECT_TRUE(sending.send(post("/echo", std::string(33 << 20, 'x'))));
  const std::string response = sending.read_all();
  EXPECT_EQ(status(response), 413);
  EXPECT_NE(response.find("\"code\":\"body_too_large\""), std::string::npos);
  TestClient fitting(server_->port());
  fitting.send(post("/echo", std::string(32 << 20, 'x'), "X-Request-Id: r\r\n"));
  EXPECT_EQ(body(fitting.read_response()).size(), (32u << 20) + 2);
}

TEST_F(ConnectionTest, ChunkedBodyHasTheSameLimit) {
  Limits limits;
  limits.body_bytes = 1000;
  start(limits);
  TestClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) client.send("40\r\n" + std::string(64, 'x') + "\r\n");
  EXPECT_EQ(status(client.read_all()), 413);
}

TEST_F(ConnectionTest, BodiesShareABudget) {
  Limits limits;
  limits.all_bodies_bytes = 1000;
  start(limits);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\n";
  TestClient first(server_->port());
  first.send(head + "Content-Length: 900\r\n\r\n");
  std::this_thread::sleep_for(20ms);
  TestClient second(server_->port()), chunked(server_->port());
  second.send(post("/echo", std::string(200, 'x')));
  const std::string refused = second.read_all();
  EXPECT_EQ(status(refused), 503);
  EXPECT_NE(refused.find("Retry-After: 5\r\n"), std::string::npos);
  chunked.send(head + "Transfer-Encoding: chunked\r\n\r\nc8\r\n" + std::string(200, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(status(chunked.read_all()), 503);
  first.send(std::string(900, 'x'));
  EXPECT_EQ(status(first.read_response()), 200);
  TestClient third(server_->port());  // the first body has been given back
  third.send(post("/echo", std::string(900, 'x')));
  EXPECT_EQ(status(third.read_response()), 200);
}

TEST_F(ConnectionTest, Continue) {
  start();
  TestClient client(server_->port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  EXPECT_EQ(body(client.read_response()), "r|ab");
  client.send("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(status(client.read_response()), 404);  // instead of 100
}

TEST_F(ConnectionTest, SilentClientsAreClosed) {
  Limits limits;
  limits.idle = 100ms;
  limits.header = 100ms;
  limits.body_idle = 100ms;
  start(limits);
  TestClient idle(server_->port()), in_head(server_->port()), in_body(server_->port()), after(server_->port());
  in_head.send("GET /hello HT");
  in_body.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  after.send(get("/hello"));
  EXPECT_EQ(status(after.read_response()), 200);
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_TRUE(in_head.closed_by_server());
  EXPECT_TRUE(in_body.closed_by_server());
  EXPECT_TRUE(after.closed_by_server());
}

// A piece now and then does not buy more time than the whole may take.
TEST_F(ConnectionTest, ClientsThatDripAreClosed) {
  Limits limits;
  limits.header = 300ms;
  limits.body_idle = 10'000ms;
  limits.body = 300ms;
  start(limits);
  TestClient in_head(server_->port()), in_body(server_->port()), in_chunks(server_->port());
  in_head.send("GET /hello HTTP/1.1\r\n");
  in_body.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
  in_chunks.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const auto begin = std::chrono::steady_clock::now();
  while (in_head.send("X: y\r\n") || in_body.send("z") || in_chunks.send("1\r\nz\r\n")) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, 8s);
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(in_head.read_all() + in_body.read_all() + in_chunks.read_all(), "");
  TestClient other(server_->port());
  other.send(get("/hello"));
  EXPECT_EQ(status(other.read_response()), 200);
}

TEST_F(ConnectionTest, ABusyConnectionIsNotIdle) {
  Limits limits;
  limits.idle = 50ms;
  limits.body_idle = 50ms;
  start(limits);
  TestClient client(server_->port());
  client.send(post("/hold", "x"));
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  std::this_thread::sleep_for(200ms);
  on_io([&] { held_->reply({}); });
  EXPECT_EQ(status(client.read_response()), 200);
  EXPECT_EQ(gone_, 0);
}

TEST_F(ConnectionTest, ClientThatLeavesIsNoticed) {
  start();
  {
    TestClient whole(server_->port());
    whole.send(post("/hold", "x"));
    ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
  {
    TestClient streamed(server_->port());
    streamed.send(get("/stream"));
    ASSERT_TRUE(eventually([&] { return holding_ == 2; }));
  }
  EXPECT_TRUE(eventually([&] { return gone_ == 2; }));
  on_io([&] {
    EXPECT_TRUE(held_->gone());
    held_->send_event("to nobody");
    held_->close_stream();
  });
}

TEST_F(ConnectionTest, ClientThatLeavesIsNoticedBehindPipelinedRequests) {
  start();
  {
    TestClient client(server_->port());
    client.send(post("/hold", "x") + get("/hello"));
    ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
}

TEST_F(ConnectionTest, StreamAndNextRequest) {
  start();
  TestClient client(server_->port());
  client.send(get("/stream") + get("/hello"));
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  const std::string head = client.read_until("\r\n\r\n");
  EXPECT_NE(head.find("Content-Type: text/event-stream; charset=utf-8\r\n"), std::string::npos);
  on_io([&] { held_->send_event("one"); });
  EXPECT_EQ(client.read_until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");  // at once, not with the next
  on_io([&] { held_->close_stream(); });
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_EQ(body(client.read_response()), "hello");
}

TEST_F(ConnectionTest, SilentStreamsGetComments) {
  Limits limits;
  limits.sse_keepalive = 20ms;
  start(limits);
  TestClient client(server_->port());
  client.send(get("/stream"));
  client.read_until("\r\n\r\n");
  const std::string comment = "d\r\n: keepalive\n\n\r\n";
  EXPECT_EQ(client.read(2 * comment.size()), comment + comment);
  on_io([&] { held_->close_stream(); });
  EXPECT_EQ(client.read_until("0\r\n\r\n").find("data:"), std::string::npos);
}

TEST_F(ConnectionTest, SlowReaderCongestsAndDrains) {
  start();
  TestClient client(server_->port());
  client.send(get("/stream"));
  client.read_until("\r\n\r\n");
  const std::string event(100000, 'x');
  std::atomic<bool> drained{false};
  int sent = 0;
  on_io([&] {
    while (!held_->congested()) {
      held_->send_event(event);
      ++sent;
    }
    held_->on_drained([&] {
      drained = true;
      held_->close_stream();
    });
  });
  size_t received = 0;
  for (std::string piece; (piece = client.read(50000)).size() == 50000;) {
    received += piece.size();
    if (drained && received + 50000 > static_cast<size_t>(sent) * event.size()) break;
  }
  EXPECT_TRUE(drained);
  client.read_until("0\r\n\r\n");
  EXPECT_EQ(gone_, 0);
}

TEST_F(ConnectionTest, AReaderThatTakesNothingDelaysNobody) {
  start();  // it would be gone after 30 s: far beyond what the others are given here
  TestClient slow(server_->port());
  slow.send(get("/stream"));
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  std::shared_ptr<api::Responder> stuck;
  const std::string event(100'000, 'x');
  on_io([&] {
    stuck = std::move(held_);
    while (!stuck->congested()) stuck->send_event(event);
  });
  TestClient stream(server_->port()), requests(server_->port());
  stream.send(get("/stream"));
  stream.read_until("\r\n\r\n");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {
    on_io([&] {
      stuck->send_event("more");  // is only queued
      held_->send_event("token");
    });
    EXPECT_EQ(stream.read_until("\n\n\r\n"), "d\r\ndata: token\n\n\r\n");
    requests.send(post("/echo", "now", "X-Request-Id: r\r\n"));
    EXPECT_EQ(body(requests.read_response()), "r|now");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  EXPECT_EQ(gone_, 0);
  on_io([&] { stuck.reset(); });
}

TEST_F(ConnectionTest, ReaderThatTakesNothingIsGone) {
  Limits limits;
  limits.write_idle = 100ms;
  start(limits);
  TestClient client(server_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  static const std::string event(1 << 20, 'x');  // a task may still wait on the io thread when the test ends
  // More than the kernel's buffers of both ends take.
  EXPECT_TRUE(eventually([&] {
    server_->io([this] {
      if (!held_->congested()) held_->send_event(event);
    });
    return gone_ == 1;
  }));
}

}  // namespace
}  // namespace tandem::http::connection_test
