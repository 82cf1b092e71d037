"""/metrics, /health and the log of a running server against what was asked of it."""

import json
import time
import unittest

import server_process
from prometheus_text import Metrics
from server_process import Server, endless, user


def metrics_of(server, path="/metrics", headers=None):
    status, fields, body = server.request("GET", path, headers=headers)
    assert status == 200, body
    assert fields["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", fields["Content-Type"]
    return Metrics(body.decode())


class MetricsTest(unittest.TestCase):
    def wait_for(self, server, name, value, **labels):
        deadline = time.monotonic() + 10
        while metrics_of(server).value(name, **labels) != value:
            self.assertLess(time.monotonic(), deadline, name)
            time.sleep(0.01)

    def test_counts_are_those_of_the_requests(self):
        with Server("--log-json") as server:
            before = metrics_of(server)
            self.assertEqual(before.total("vllm:request_success_total"), 0)
            self.assertEqual(before.value("vllm:generation_tokens_total"), 0)
            self.assertEqual(before.value("tandem:engine_ready"), 1)

            usages = [server.post(endless(n))[1]["usage"] for n in (3, 5)]
            events = list(server.stream(user("What is 2 + 3?", temperature=0, stream_options={"include_usage": True})))
            usages.append(json.loads(events[-2])["usage"])
            self.assertEqual(server.post(user("x", temperature="hot"))[0], 400)
            self.assertEqual(server.get("/nowhere")[0], 404)
            stream = server.open_stream(endless(2000))
            stream.close()
            self.wait_for(server, "vllm:request_success_total", 1, finished_reason="abort")
            server.wait_for_load(0, 0)

            after = metrics_of(server, "/v1/metrics")
            self.assertEqual(after.value("vllm:request_success_total", finished_reason="length"), 2)
            self.assertEqual(after.value("vllm:request_success_total", finished_reason="stop"), 1)
            self.assertEqual(after.value("vllm:request_success_total", finished_reason="error"), 0)
            replies = sum(usage["completion_tokens"] for usage in usages)
            prompts = sum(usage["prompt_tokens"] for usage in usages)
            cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            self.assertEqual(after.value("vllm:request_generation_tokens_sum"), replies)
            self.assertEqual(after.value("vllm:request_generation_tokens_count"), 3)
            self.assertEqual(after.value("vllm:request_prompt_tokens_sum"), prompts)
            self.assertGreaterEqual(after.value("vllm:generation_tokens_total"), replies)  # and the one that left
            self.assertGreaterEqual(after.value("vllm:prefix_cache_hits_total"), cached)
            self.assertEqual(after.value("vllm:e2e_request_latency_seconds_count"), 3)
            self.assertEqual(after.value("vllm:request_queue_time_seconds_count"), 4)
            chat = {"handler": "/v1/chat/completions", "method": "POST"}
            self.assertEqual(after.value("http_requests_total", status="2xx", **chat), 4)
            self.assertEqual(after.value("http_requests_total", status="4xx", **chat), 1)
            self.assertEqual(after.value("http_requests_total", handler="none", method="GET", status="4xx"), 1)
            self.assertEqual(after.value("http_request_duration_seconds_count", **chat), 5)
            self.assertGreater(after.value("tandem:steps_total"), before.value("tandem:steps_total"))
            self.assertEqual(after.value("vllm:num_requests_running"), 0)
            self.assertGreater(after.value("process_resident_memory_bytes"), 1 << 20)
            self.check_log(server, usages)

    def check_log(self, server, usages):
        lines = [json.loads(line) for line in server.errors().splitlines()]
        ended = [line for line in lines if line["message"] == "request"]
        self.assertEqual([line["outcome"] for line in ended], ["length", "length", "stop", "abort"])
        for line, usage in zip(ended, usages):
            self.assertEqual(line["prompt_tokens"], usage["prompt_tokens"])
            self.assertEqual(line["reply_tokens"], usage["completion_tokens"])
            self.assertEqual(line["cached_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
            self.assertLessEqual(line["itl_p50_ms"], line["itl_p99_ms"])
            self.assertLessEqual(line["ttft_ms"], line["total_ms"])
        self.assertEqual([line["status"] for line in lines if line["message"] == "request refused"], [400])

    def test_health_has_the_engine_s_numbers(self):
        with Server() as server:
            status, before = server.get("/health")
            self.assertEqual(status, 200)
            self.assertEqual(
                set(before),
                {"status", "running", "waiting", "pool_rows", "free_rows", "reclaimable_rows", "kept_states", "steps",
                 "seconds_since_last_step"},
            )
            server.post(endless(5, draft=False))  # a token a step
            self.assertGreaterEqual(server.get("/health")[1]["steps"], before["steps"] + 5)

    def test_who_may_read(self):
        with Server("--api-key", "secret") as server:  # on 127.0.0.1
            metrics_of(server)
            self.assertEqual(server.get("/v1/models")[0], 401)
        with Server("--api-key", "secret", "--host", "0.0.0.0") as server:
            for path in ("/metrics", "/v1/metrics"):
                self.assertEqual(server.get(path)[0], 401)
            metrics_of(server, headers={"Authorization": "Bearer secret"})


class ReuseTest(unittest.TestCase):
    """What a client, the log and /metrics hear of prompts that were seen before."""

    SYSTEM = {"role": "system", "content": "You are a careful helper. " * 8}

    def ask(self, server, *messages, **fields):
        body = {"messages": [self.SYSTEM, *messages], "temperature": 0, "max_tokens": 8, **fields}
        status, reply = server.post(body)
        self.assertEqual(status, 200, reply)
        return reply["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["choices"]

    def test_cached_tokens_and_reasons(self):
        question = {"role": "user", "content": "What is 2 + 3?"}
        with Server("--log-json") as server:
            prompt, cached, choices = self.ask(server, question)
            self.assertLess(cached, 10)  # at most what the smoke test's prompt shares
            # The same again: nothing is computed, and the reply is the same.
            self.assertEqual(self.ask(server, question), (prompt, prompt, choices))
            # Another question to the same system prompt.
            _, after_system, _ = self.ask(server, {"role": "user", "content": "Name a colour."})
            self.assertGreater(after_system, 50)
            self.assertLess(after_system, prompt)
            # The next turn of the first conversation.
            answer = {"role": "assistant", **{key: choices[0]["message"][key] for key in ("content", "reasoning")}}
            _, next_turn, _ = self.ask(server, question, answer, {"role": "user", "content": "And 3 + 4?"})
            self.assertGreaterEqual(next_turn, prompt)
            # Nothing is shared across salts, and an effort changes the prompt's first line.
            self.assertEqual(self.ask(server, question, cache_salt="other")[1], 0)
            self.assertEqual(self.ask(server, question, cache_salt="other"), (prompt, prompt, choices))
            self.assertLess(self.ask(server, question, reasoning_effort="low")[1], 10)
            self.assertEqual(server.post({**user("x"), "cache_salt": 5})[1]["error"]["param"], "cache_salt")

            log = [json.loads(line) for line in server.errors().splitlines()]
            misses = [line["miss"] for line in log if line["message"] == "request"]
            self.assertEqual(misses[1], "none")
            self.assertEqual(misses[4:], ["other salt", "none", "effort changed"])
            metrics = metrics_of(server)
            for reason in ("other_salt", "effort_changed"):
                self.assertEqual(metrics.value("tandem:prefix_misses_total", reason=reason), 1)
            hits = sum(line["cached_tokens"] for line in log if line["message"] == "request")
            self.assertEqual(metrics.value("vllm:prefix_cache_hits_total"), hits)
            self.assertEqual(metrics.value("vllm:prompt_tokens_cached_total"), hits)
            self.assertGreater(metrics.value("tandem:kept_states"), 0)


if __name__ == "__main__":
    server_process.main()
