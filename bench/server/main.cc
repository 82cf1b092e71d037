// What the server itself costs, without a model: an engine that says recorded tokens stands behind HTTP, dialects and
// the bundled tokenizer, in a process of its own whose processor time is read from outside (all of its threads, the
// kernel's work on its sockets included).
//   request   a small chat of one token, whole, one after the other on one connection
//   token     a streamed token: 1 and 8 streams with a step each 10 ms
//   wake      what such a step costs a program that does nothing else: a thread sleeps, wakes another, which sends
//   streams   512 streams of 20 tokens/s, all in one step: processor time a token, and how late tokens arrive
//   tokenise  text to ids, one thread
//   parse     a chat body of 1 MB with 256 messages to structs, one thread
//   server [MODEL] [--rounds N] [--json]
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../common.h"
#include "api/chat_request.h"
#include "api/json_body.h"
#include "api/service.h"
#include "base/log.h"
#include "chat/messages.h"
#include "clients.h"
#include "http/server.h"
#include "recorded_engine.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

using bench::Arrivals;
using bench::Clock;
using bench::median;
using bench::quantile;
using bench::Socket;

constexpr int64_t most_streams = 512, stream_tokens = 100, requests = 500;
constexpr std::chrono::microseconds fast_step{10'000}, slow_step{50'000};

api::ServedModel served_model(engine::Engine& engine, const text::Tokenizer& tokenizer) {
  api::ServedModel model;
  model.names = {"nano"};
  model.engine = &engine;
  model.tokenizer = &tokenizer;
  model.defaults.eos_token_ids = {*tokenizer.added_token("<|user|>")};
  model.vocab_size = tokenizer.size();
  model.max_model_len = 1 << 20;
  model.max_running = most_streams;
  return model;
}

// Words, each of which is a token with a text.
std::vector<int32_t> recorded_tokens(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  const std::string text = "the old bridge and the river in the castle of the king had a garden with a green door";
  for (const int32_t id : tokenizer.encode(text, text::AddedTokens::literal)) {
    const std::string piece = tokenizer.decode(std::span(&id, 1));
    if (piece.size() > 1 && piece.find('<') == std::string::npos) tokens.push_back(id);
  }
  if (tokens.empty()) throw std::runtime_error("the tokenizer knows none of the words");
  return tokens;
}

// What the operating system alone takes for a step: one thread sleeps until the next step and wakes another, which
// sends as many bytes as a token's event has. Never returns.
[[noreturn]] void wake_and_send(std::chrono::microseconds step, uint16_t port, int64_t count) {
  const Socket socket(port);
  const int poll = epoll_create1(0), event = eventfd(0, 0);
  epoll_event interest{};
  interest.events = EPOLLIN;
  epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest);
  std::thread sender([&] {
    const std::string bytes(320, 'x');
    for (int64_t i = 0; i < count; ++i) {
      uint64_t number = 0;
      epoll_event ready{};
      epoll_wait(poll, &ready, 1, -1);
      if (read(event, &number, sizeof number) != sizeof number) _exit(1);
      socket.send(bytes);
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    std::this_thread::sleep_until(Clock::time_point((Clock::now().time_since_epoch() / step + 1) * step));
    const uint64_t one = 1;
    if (write(event, &one, sizeof one) != sizeof one) _exit(1);
  }
  sender.join();
  pause();  // until the parent has read the clock
  _exit(0);
}

// The server in a child process; ends when the parent closes its end of the pipe.
[[noreturn]] void serve(const std::string& folder, std::chrono::microseconds step, int port_pipe, int end_pipe) {
  int status = 0;
  try {
    const text::Tokenizer tokenizer = text::Tokenizer::load(folder);
    bench::RecordedEngine engine(recorded_tokens(tokenizer), step);
    http::ServerOptions options;
    options.port = 0;
    options.workers = 2;
    http::Server server(std::move(options));
    api::ServiceOptions service_options;
    service_options.max_queued_requests = 1024;
    api::Service service(server, service_options);
    const api::ServedModel model = served_model(engine, tokenizer);
    server.start(service.routes(), service.http_observer());
    std::promise<void> ready;
    server.io([&] {
      service.set_model(&model);
      ready.set_value();
    });
    ready.get_future().wait();
    const uint16_t port = server.port();
    if (write(port_pipe, &port, sizeof port) != sizeof port) throw std::runtime_error("pipe");
    char byte;
    while (read(end_pipe, &byte, 1) > 0) {
    }
    server.close();
  } catch (const std::exception& error) {
    fmt::print(stderr, "server: {}\n", error.what());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

class ServerProcess {
 public:
  ServerProcess(const std::string& folder, std::chrono::microseconds step) {
    int port_pipe[2], end_pipe[2];
    if (pipe(port_pipe) != 0 || pipe(end_pipe) != 0) throw std::runtime_error("pipe");
    child_ = fork();
    if (child_ == 0) {
      close(end_pipe[1]);
      serve(folder, step, port_pipe[1], end_pipe[0]);
    }
    close(port_pipe[1]);
    close(end_pipe[0]);
    end_ = end_pipe[1];
    const bool is_there = read(port_pipe[0], &port, sizeof port) == sizeof port;
    close(port_pipe[0]);
    if (!is_there) throw std::runtime_error("the server under test did not start");
    clock_getcpuclockid(child_, &clock_);
  }
  ~ServerProcess() {
    close(end_);
    waitpid(child_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Processor time of all of its threads, seconds.
  double cpu() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  uint16_t port = 0;

 private:
  pid_t child_ = 0;
  int end_ = -1;
  clockid_t clock_{};
};

// How long after its step each token arrived, milliseconds. Steps lie on a grid that both processes know; a stream's
// first step is the earliest that fits all of its tokens.
std::vector<double> lateness(const std::vector<Arrivals>& all, std::chrono::microseconds step) {
  std::vector<double> late;
  for (const Arrivals& stream : all) {
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < stream.times.size(); ++i) {
      first = std::min(first, stream.times[i].time_since_epoch() / step - static_cast<int64_t>(i));
    }
    for (size_t i = 0; i < stream.times.size(); ++i) {
      const auto after = stream.times[i].time_since_epoch() - (first + static_cast<int64_t>(i)) * step;
      late.push_back(std::chrono::duration<double, std::milli>(after).count());
    }
  }
  return late;
}

// About `bytes` bytes of the texts of this tree: prose with code and tables in it.
std::string sample_text(size_t bytes) {
  std::string text;
  for (const auto* file :
       {"README.md", "docs/api.md", "docs/serve.md", "src/http/connection.cc", "docs/operations.md"}) {
    std::ifstream stream(std::string(TANDEM_SOURCE_DIR "/") + file);
    std::stringstream content;
    content << stream.rdbuf();
    text += content.str();
  }
  if (text.empty()) throw std::runtime_error("no text in the source tree");
  const std::string once = text;
  while (text.size() < bytes) text += once;
  size_t end = bytes;
  while ((static_cast<unsigned char>(text[end - 1]) & 0x80) != 0) --end;
  return text.substr(0, end);
}

class Bench {
 public:
  explicit Bench(const bench::Options& options) : options_(options) {}

  void run() {
    for (int round = 0; round < options_.rounds; ++round) {
      small_requests();
      wakes();
      tokens(1, one_);
      tokens(8, eight_);
      many_streams();
    }
    text_work();
    print();
  }

 private:
  void small_requests() {
    const ServerProcess server(options_.model, fast_step);
    Socket socket(server.port);
    const std::string request = bench::post(
        "/v1/chat/completions", R"({"model":"nano","messages":[{"role":"user","content":"Hello"}],"max_tokens":1})");
    const auto ask = [&](int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        socket.send(request);
        bench::read_reply(socket);
      }
    };
    ask(50);
    const double before = server.cpu();
    ask(requests);
    request_us_.push_back(1e6 * (server.cpu() - before) / static_cast<double>(requests));
  }

  void wakes() {
    constexpr int64_t count = 200;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen");
    }
    const pid_t child = fork();
    if (child == 0) wake_and_send(fast_step, ntohs(address.sin_port), count);
    const int connection = accept(listener, nullptr, nullptr);
    char bytes[4096];
    for (int64_t got = 0, piece = 0; got < count * 320; got += piece) {
      piece = recv(connection, bytes, sizeof bytes, 0);
      if (piece <= 0) throw std::runtime_error("the sender ended early");
    }
    clockid_t clock{};
    timespec time{};
    clock_getcpuclockid(child, &clock);
    clock_gettime(clock, &time);
    wake_us_.push_back((1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec)) / count);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(connection);
    close(listener);
  }

  void tokens(int64_t streams, std::vector<double>& us) {
    const ServerProcess server(options_.model, fast_step);
    bench::read_streams(server.port, streams, 10);
    const double before = server.cpu();
    const int64_t tokens = 1600 / streams;
    bench::read_streams(server.port, streams, tokens);
    us.push_back(1e6 * (server.cpu() - before) / static_cast<double>(streams * tokens));
  }

  void many_streams() {
    const ServerProcess server(options_.model, slow_step);
    const double before = server.cpu();
    const auto arrivals = bench::read_streams(server.port, most_streams, stream_tokens);
    many_us_.push_back(1e6 * (server.cpu() - before) / static_cast<double>(most_streams * stream_tokens));
    const std::vector<double> late = lateness(arrivals, slow_step);
    if (late.size() != static_cast<size_t>(most_streams * stream_tokens)) {
      throw std::runtime_error(fmt::format("{} tokens arrived of {}", late.size(), most_streams * stream_tokens));
    }
    late_p50_.push_back(quantile(late, 0.5));
    late_p99_.push_back(quantile(late, 0.99));
    late_most_.push_back(quantile(late, 1.0));
  }

  void text_work() {
    const text::Tokenizer tokenizer = text::Tokenizer::load(options_.model);
    bench::RecordedEngine engine({0}, fast_step);
    const api::ServedModel model = served_model(engine, tokenizer);
    const std::string text = sample_text(4 << 20);
    nlohmann::json body;
    for (int i = 0; i < 256; ++i) {
      body["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", sample_text(4000)}});
    }
    const std::string chat = body.dump();
    chat_bytes_ = chat.size();
    for (int round = 0; round < 5 * options_.rounds; ++round) {
      const double encoding =
          bench::seconds([&] { ids_ = tokenizer.encode(text, text::AddedTokens::literal).size(); }, bench::own_ms);
      tokenise_mb_.push_back(static_cast<double>(text.size()) / encoding / 1e6);
      const double reading = bench::seconds(
          [&] {
            const auto json = api::JsonBody::parse(chat);
            (void)api::parse_chat_request(json, model);
          },
          bench::own_ms);
      const double conversing =
          bench::seconds([&] { messages_ = chat::parse_conversation(chat).messages.size(); }, bench::own_ms);
      fields_ms_.push_back(1000 * reading);
      parse_ms_.push_back(1000 * (reading + conversing));
    }
    if (messages_ != 256 || ids_ == 0) throw std::runtime_error("the texts were not read");
  }

  void print() const {
    if (options_.json) {
      const nlohmann::ordered_json out{{"schema", "tandem.bench.server/1"},
                                       {"request_cpu_us", request_us_},
                                       {"wake_and_send_cpu_us", wake_us_},
                                       {"token_cpu_us_1_stream", one_},
                                       {"token_cpu_us_8_streams", eight_},
                                       {"token_cpu_us_512_streams", many_us_},
                                       {"late_ms_p50", late_p50_},
                                       {"late_ms_p99", late_p99_},
                                       {"late_ms_most", late_most_},
                                       {"tokenise_mb_per_s", tokenise_mb_},
                                       {"parse_ms", parse_ms_},
                                       {"parse_fields_ms", fields_ms_},
                                       {"parse_bytes", chat_bytes_}};
      fmt::print("{}\n", out.dump(1));
      return;
    }
    fmt::print("request: {:.0f} us of processor time\n", median(request_us_));
    fmt::print("token: {:.1f} us alone, {:.1f} us with 8 streams in a step; sleeping, waking and sending: {:.1f} us\n",
               median(one_), median(eight_), median(wake_us_));
    fmt::print("{} streams of 20 tokens/s: {:.1f} us a token; late p50 {:.1f}, p99 {:.1f}, most {:.1f} ms\n",
               most_streams, median(many_us_), median(late_p50_), median(late_p99_), median(late_most_));
    fmt::print("tokenise: {:.1f} MB/s on one thread\n", median(tokenise_mb_));
    fmt::print("parse: a chat of {} bytes in {:.1f} ms, {:.1f} of them for its fields\n", chat_bytes_,
               median(parse_ms_), median(fields_ms_));
  }

  bench::Options options_;
  std::vector<double> request_us_, wake_us_, one_, eight_, many_us_, late_p50_, late_p99_, late_most_, tokenise_mb_,
      parse_ms_, fields_ms_;
  size_t chat_bytes_ = 0, messages_ = 0, ids_ = 0;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::set_log_level(tandem::LogLevel::error);
  signal(SIGPIPE, SIG_IGN);
  const tandem::bench::Options options = tandem::bench::parse(argc, argv, 3);
  return tandem::bench::run("server", [&] { tandem::Bench(options).run(); });
}
