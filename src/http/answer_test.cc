// Framing of answers over a recording outlet.
#include "http/answer.h"

#include <optional>

namespace tandem::http::answer_test {
namespace {

struct FakeOutlet : Outlet {
  void write(std::string bytes) override { written += bytes; }
  bool congested() const override { return is_congested; }
  void set_keepalive(bool on) override { keepalive = on; }
  void end_answer(bool keep_alive) override { ended = keep_alive; }
  void abandoned() override { was_abandoned = true; }

  std::string written;
  bool is_congested = false, keepalive = false, was_abandoned = false;
  std::optional<bool> ended;
};

struct AnswerTest : testing::Test {
  std::shared_ptr<Answer> make(Framing framing) { return std::make_shared<Answer>(outlet, std::move(framing)); }
  bool has(const std::string& text) const { return outlet->written.find(text) != std::string::npos; }
  std::string body() const { return outlet->written.substr(outlet->written.find("\r\n\r\n") + 4); }

  std::shared_ptr<FakeOutlet> outlet = std::make_shared<FakeOutlet>();
};

api::Reply reply_of(int status, const std::string& body) {
  api::Reply reply;
  reply.status = status;
  reply.body = body;
  return reply;
}

TEST_F(AnswerTest, Reply) {
  const auto answer = make({true, true, false, {{"X-Request-Id", "r"}}});
  answer->reply(reply_of(200, "{}"));
  EXPECT_EQ(outlet->written.rfind("HTTP/1.1 200 OK\r\n", 0), 0u);
  for (const auto* line : {"X-Request-Id: r\r\n", "Content-Type: application/json\r\n", "Content-Length: 2\r\n",
                           "Connection: keep-alive\r\n", "Date: "}) {
    EXPECT_TRUE(has(line)) << line;
  }
  EXPECT_EQ(body(), "{}");
  EXPECT_EQ(outlet->ended, true);
  answer->reply(reply_of(500, "again"));  // one answer a request
  EXPECT_FALSE(has("500"));
}

TEST_F(AnswerTest, HeadAndEmptyRepliesHaveNoBody) {
  make({true, true, true, {}})->reply(reply_of(200, "{}"));
  EXPECT_TRUE(has("Content-Length: 2\r\n"));
  EXPECT_EQ(body(), "");
  outlet->written.clear();
  make({true, true, false, {}})->reply(reply_of(204, ""));
  EXPECT_FALSE(has("Content-Length"));
}

TEST_F(AnswerTest, ClosingConnection) {
  make({true, false, false, {}})->reply(reply_of(400, "{}"));
  EXPECT_TRUE(has("Connection: close\r\n"));
  EXPECT_EQ(outlet->ended, false);
}

TEST_F(AnswerTest, Stream) {
  const auto answer = make({true, true, false, {}});
  answer->open_stream();
  for (const auto* line :
       {"Content-Type: text/event-stream; charset=utf-8\r\n", "Cache-Control: no-cache\r\n",
        "X-Accel-Buffering: no\r\n", "Transfer-Encoding: chunked\r\n", "Connection: keep-alive\r\n"}) {
    EXPECT_TRUE(has(line)) << line;
  }
  EXPECT_TRUE(outlet->keepalive);
  answer->send_keepalive();
  answer->send_event("[DONE]");
  answer->close_stream();
  EXPECT_EQ(body(), chunk(": keepalive\n\n") + chunk("data: [DONE]\n\n") + "0\r\n\r\n");
  EXPECT_FALSE(outlet->keepalive);
  EXPECT_EQ(outlet->ended, true);
  answer->send_event("late");
  answer->send_keepalive();
  EXPECT_FALSE(has("late"));
}

TEST_F(AnswerTest, StreamToHttp10EndsWithTheConnection) {
  const auto answer = make({false, true, false, {}});
  answer->open_stream();
  answer->send_event("x");
  answer->close_stream();
  EXPECT_TRUE(has("Connection: close\r\n"));
  EXPECT_FALSE(has("Transfer-Encoding"));
  EXPECT_EQ(body(), "data: x\n\n");
  EXPECT_EQ(outlet->ended, false);
}

TEST_F(AnswerTest, LostClient) {
  const auto answer = make({});
  int calls = 0;
  answer->on_gone([&] { ++calls; });
  answer->lost();
  answer->lost();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(answer->gone());
  answer->reply(reply_of(200, "{}"));
  EXPECT_EQ(outlet->written, "");
}

TEST_F(AnswerTest, ClientThatLeavesAfterTheAnswerIsNotGone) {
  const auto answer = make({});
  int calls = 0;
  answer->on_gone([&] { ++calls; });
  answer->reply(reply_of(200, "{}"));
  answer->lost();
  EXPECT_EQ(calls, 0);
}

TEST_F(AnswerTest, Congestion) {
  const auto answer = make({});
  answer->open_stream();
  outlet->is_congested = true;
  EXPECT_TRUE(answer->congested());
  int calls = 0;
  answer->on_drained([&] { ++calls; });
  answer->drained();
  answer->drained();
  EXPECT_EQ(calls, 1);
}

TEST_F(AnswerTest, DroppedAnswersAreNoticed) {
  make({})->open_stream();
  EXPECT_TRUE(outlet->was_abandoned);
  outlet->was_abandoned = false;
  make({})->reply(reply_of(200, "{}"));
  EXPECT_FALSE(outlet->was_abandoned);
}

}  // namespace
}  // namespace tandem::http::answer_test
