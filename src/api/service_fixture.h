// A service over the bundled tokenizer, a scripted engine and an executor that the test steps. Included by tests only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "api/errors.h"
#include "api/fakes.h"
#include "api/service.h"

namespace tandem::api {

class ServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = new FakeModel(TANDEM_SOURCE_DIR "/models/nano"); }
  static void TearDownTestSuite() { delete model_; }

  // A fresh engine for every test; the tokenizer is kept.
  struct Setup {
    explicit Setup(ServiceOptions options = {}) : service(executor, std::move(options)) {
      served = model_->served;
      served.engine = &engine;
      engine.state.ready = true;
      service.set_model(&served);
    }
    ~Setup() {  // ends what the test left open, as the server does when it stops: session and connection hold each
                // other
      service.abort_active();
      executor.run();
    }
    Setup(const Setup&) = delete;
    Setup& operator=(const Setup&) = delete;
    std::shared_ptr<RecordingResponder> call(const std::string& method, const std::string& target,
                                             const std::string& body = {}) {
      const std::string path = target.substr(0, target.find('?'));
      const std::string query = path.size() < target.size() ? target.substr(path.size() + 1) : std::string();
      auto responder = std::make_shared<RecordingResponder>();
      for (const Route& route : service.routes()) {
        const bool prefix = route.path.ends_with("/*") && path.starts_with(route.path.substr(0, route.path.size() - 1));
        if (route.method != method || (route.path != path && !prefix)) continue;
        try {
          route.handler({method, path, "test-id", body, nullptr, 0, query}, responder);
        } catch (const ApiError& error) {
          responder->reply(error.reply());
        }
        executor.run();
        return responder;
      }
      ADD_FAILURE() << "no route " << method << " " << path;
      return responder;
    }
    std::shared_ptr<RecordingResponder> chat(const std::string& fields, const std::string& text = "What is 2 + 3?") {
      const std::string messages = R"({"messages":[{"role":"user","content":")" + text + "\"}]";
      return call("POST", "/v1/chat/completions", messages + (fields.empty() ? "" : "," + fields) + "}");
    }
    // A whole reply of `text` (markers recognised) ended by <|user|>.
    void answer(const std::string& text, size_t i = 0, int64_t cached_tokens = 0) {
      engine.admit(i, cached_tokens);
      engine.tokens(model_->ids(text), i);
      engine.finish(engine::FinishReason::stop, model_->id("<|user|>"), {}, i);
      executor.run();
    }

    ManualExecutor executor;
    FakeEngine engine;
    ServedModel served;
    Service service;
  };

  static inline FakeModel* model_ = nullptr;
};

}  // namespace tandem::api
