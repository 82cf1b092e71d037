// The end of `serve`: an engine whose step throws, and a stop signal.
#include "cli/serve_loop.h"

#include <stdexcept>
#include <thread>

#include "base/log.h"
#include "engine/batch_engine.h"
#include "http/test_client.h"
#include "text/tokenizer.h"

namespace tandem::cli::serve_loop_test {
namespace {

constexpr int32_t vocabulary = 4096;  // at least the bundled model's

// Always says token 5, until it breaks.
class Model : public engine::StepRunner {
 public:
  explicit Model(int steps) : steps_(steps) {}
  void run(const forward::Step& step) override {
    if (steps_-- == 0) throw std::runtime_error("the card fell off the bus");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    logits_.assign((step.logit_rows.size() + step.head_slots.size()) * vocabulary, 0.0f);
    for (size_t row = 0; row < logits_.size() / vocabulary; ++row) logits_[row * vocabulary + 5] = 9.0f;
  }
  std::span<const float> logits() const override { return logits_; }

 private:
  int steps_;
  std::vector<float> logits_;
};

class Served {
 public:
  explicit Served(int steps) : model_(steps), engine_(model_, options()) {
    served_.names = {"test"};
    served_.engine = &engine_;
    served_.tokenizer = &tokenizer_;
    served_.vocab_size = vocabulary;
    served_.max_model_len = 100'000;
    server.start(service.routes());
    on_io(server, [&] {
      service.set_model(&served_);
      return 0;
    });
  }
  ~Served() { server.close(); }

  std::string chat(http::TestClient& client, int max_tokens) const {
    const std::string body = R"({"messages":[{"role":"user","content":"Hello"}],"temperature":0,"max_tokens":)" +
                             std::to_string(max_tokens) + "}";
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Connection: close\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.read_until("nothing that comes");
  }
  engine::Engine& engine() { return engine_; }

  http::Server server{server_options()};
  api::Service service{server, {}};

 private:
  static http::ServerOptions server_options() {
    http::ServerOptions options;
    options.port = 0;
    return options;
  }
  static engine::BatchEngineOptions options() {
    engine::BatchEngineOptions options;
    options.scheduler.vocab_size = vocabulary;
    options.scheduler.sampled_tokens = 300;
    options.scheduler.max_model_len = 100'000;
    options.scheduler.capacity.slots = 2;
    options.scheduler.capacity.pages = 1000;
    return options;
  }

  text::Tokenizer tokenizer_ = text::Tokenizer::load(TANDEM_SOURCE_DIR "/models/nano");
  Model model_;
  engine::BatchEngine engine_;
  api::ServedModel served_;
};

TEST(ServeLoop, AFailedStepEndsEveryRequestAndThenTheProcess) {
  set_log_level(LogLevel::error);
  Served served(20);
  ASSERT_LE(served.engine().status().max_model_len, 100'000);
  std::vector<std::string> answers(3);
  std::vector<std::thread> clients;
  for (auto& answer : answers)
    clients.emplace_back([&] {
      http::TestClient client(served.server.port());
      answer = served.chat(client, 500);
    });
  // A test that fails must end, too: whatever the answers are, the server stops after them.
  std::thread end([&] {
    for (auto& client : clients) client.join();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    served.server.request_stop();
  });
  EXPECT_EQ(serve_until_stopped(served.server, served.service, served.engine(), 30), 70);
  served.server.close();
  end.join();
  for (const auto& answer : answers) {
    // 500 for those that ran, 503 for one that came too late.
    EXPECT_TRUE(answer.find("HTTP/1.1 50") == 0) << answer;
    EXPECT_EQ(answer.find("\"choices\""), std::string::npos) << answer;
  }
}

TEST(ServeLoop, AStopLetsRequestsEnd) {
  set_log_level(LogLevel::error);
  Served served(-1);
  std::string answer;
  std::thread client([&] {
    http::TestClient connection(served.server.port());
    answer = served.chat(connection, 100);
  });
  // Until the engine has it: a request that comes to it after the stop is refused.
  for (int i = 0; i < 5000 && served.engine().status().running == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  served.server.request_stop();
  EXPECT_EQ(serve_until_stopped(served.server, served.service, served.engine(), 30), 0);
  served.server.close();
  client.join();
  EXPECT_EQ(answer.find("HTTP/1.1 200"), 0u) << answer;
}

}  // namespace
}  // namespace tandem::cli::serve_loop_test
