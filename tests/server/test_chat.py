"""Chat over HTTP with the bundled model: replies, streams, errors, clients that leave."""

import json
import os
import subprocess
import threading
import unittest

import server_process
from server_process import Server, endless, user


def skills():
    with open(os.path.join(server_process.MODEL, "skills.json"), encoding="utf-8") as file:
        return json.load(file)


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def expect_error(self, status, param, code, body, fields=None):
        got, reply = self.server.post(body)
        self.assertEqual(got, status, reply)
        self.assertEqual(set(reply), {"error"})
        self.assertEqual(set(reply["error"]), {"message", "type", "param", "code"})
        self.assertEqual(reply["error"]["param"], param, reply)
        self.assertEqual(reply["error"]["code"], code, reply)
        return reply["error"]["message"]

    def test_models_version_health(self):
        status, models = self.server.get("/v1/models")
        self.assertEqual((status, models["object"]), (200, "list"))
        self.assertEqual([row["id"] for row in models["data"]], ["nano", "nano-nothink", "nano-low", "nano-high"])
        self.assertEqual(models["data"][0]["max_model_len"], 4096)
        self.assertEqual(self.server.get("/v1/models/nano")[1]["id"], "nano")
        self.assertEqual(self.server.get("/v1/models/other")[0], 404)
        version = subprocess.run([server_process.PROGRAM, "--version"], capture_output=True, text=True, check=True)
        self.assertEqual("tandem " + self.server.get("/version")[1]["version"], version.stdout.strip())
        for path in ("/health", "/healthz", "/ping", "/v1/health"):
            self.assertEqual(self.server.get(path)[0], 200)
        self.assertEqual(self.server.get("/health")[1]["status"], "ok")

    def test_paths_and_methods(self):
        self.assertEqual(self.server.get("/nowhere")[0], 404)
        self.assertEqual(self.server.get("/v1/models/")[0], 200)
        status, headers, _ = self.server.request("GET", "/v1/chat/completions")
        self.assertEqual((status, headers["Allow"]), (405, "POST, OPTIONS"))
        status, headers, body = self.server.request("HEAD", "/v1/models")
        self.assertEqual((status, body), (200, b""))
        status, headers, _ = self.server.request("OPTIONS", "/v1/chat/completions")
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "*"))
        status, headers, _ = self.server.request("GET", "/health", headers={"X-Request-Id": "mine"})
        self.assertEqual(headers["X-Request-Id"], "mine")

    def test_greedy_reply_is_the_known_answer(self):
        skill = skills()[0]
        status, reply = self.server.post(
            {"messages": skill["messages"], "reasoning_effort": skill["reasoning_effort"], "temperature": 0, "model": "x"}
        )
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["object"], "chat.completion")
        self.assertEqual(reply["model"], "x")
        choice = reply["choices"][0]
        self.assertEqual(choice["message"]["content"], skill["expected"]["content"])
        self.assertEqual(choice["message"]["reasoning_content"] or "", skill["expected"]["reasoning_content"])
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", None))
        self.assertEqual(reply["usage"]["prompt_tokens"], skill["prompt_tokens"])
        self.assertEqual(reply["usage"]["completion_tokens"], skill["completion_tokens"] + 1)  # the stop token
        self.assertEqual(reply["usage"]["prompt_tokens_details"], {"cached_tokens": 0})
        self.assertGreater(reply["metrics"]["time_to_first_token_ms"], 0)

    def test_stream_has_the_same_text_in_the_right_order(self):
        # How many drafts are tried depends on how earlier ones fared, so without them.
        body = user("What is 12 + 30?", temperature=0, draft=False)
        whole = self.server.post(body)[1]
        events = list(self.server.stream({**body, "stream_options": {"include_usage": True}}))
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        reasoning = "".join(chunk["choices"][0]["delta"].get("reasoning", "") for chunk in chunks[:-1])
        content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
        message = whole["choices"][0]["message"]
        self.assertEqual((reasoning, content), (message["reasoning"] or "", message["content"]))
        self.assertEqual(chunks[-2]["choices"][0]["delta"], {})
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "stop")
        self.assertEqual(chunks[-1]["choices"], [])
        # The second time the prompt is known.
        cached = chunks[-1]["usage"].pop("prompt_tokens_details"), whole["usage"].pop("prompt_tokens_details")
        self.assertEqual(cached[0], {"cached_tokens": whole["usage"]["prompt_tokens"]})
        self.assertEqual(chunks[-1]["usage"], whole["usage"])
        self.assertTrue(all(chunk["usage"] is None for chunk in chunks[:-1]))

    def test_returned_seed_repeats_the_reply(self):
        body = user("Tell me a story about a fox.", max_tokens=40, temperature=1.5)
        first = self.server.post(body)[1]
        seed = first["metrics"]["seed"]
        again = self.server.post({**body, "seed": seed})[1]
        self.assertEqual(again["metrics"]["seed"], seed)
        self.assertEqual(again["choices"], first["choices"])
        texts = {json.dumps(self.server.post(body)[1]["choices"]) for _ in range(3)}
        self.assertGreater(len(texts), 1)

    def test_lengths_and_stops(self):
        reply = self.server.post(endless(7))[1]
        self.assertEqual(reply["usage"]["completion_tokens"], 7)
        self.assertEqual(reply["choices"][0]["finish_reason"], "length")
        body = user("What is 218 + 856?", temperature=0, reasoning_effort="low")
        reply = self.server.post({**body, "stop": ["+"]})[1]["choices"][0]
        self.assertEqual((reply["message"]["content"], reply["stop_reason"]), ("218 ", "+"))
        self.assertEqual(reply["finish_reason"], "stop")

    def test_bad_bodies(self):
        self.expect_error(400, None, None, b"")
        self.expect_error(400, None, None, b"{")
        self.expect_error(400, None, None, b"[]")
        self.expect_error(400, None, None, b'{"messages":[{"role":"user","content":"\xff"}]}')
        self.expect_error(400, None, None, b'{"a":' + b"[" * 200 + b"]" * 200 + b"}")
        self.expect_error(400, "messages", None, {})
        self.expect_error(400, "messages", None, {"messages": []})
        self.expect_error(400, "messages[0].role", None, {"messages": [{"role": "king", "content": "x"}]})
        self.expect_error(400, "temperature", None, user("x", temperature="hot"))
        self.expect_error(400, "max_tokens", None, user("x", max_tokens=True))
        self.expect_error(400, "best_of", "unsupported_parameter", user("x", best_of=2))
        self.expect_error(400, "top_logprobs", None, user("x", top_logprobs=2))
        self.assertEqual(self.server.post(user("x", unknown={"a": 1}, max_tokens=1))[0], 200)

    def test_prompt_too_long(self):
        message = self.expect_error(400, "messages", "context_length_exceeded", user("word " * 5000))
        self.assertRegex(
            message,
            r"^This model's maximum context length is 4096 tokens\. However, your request has \d+ input tokens "
            r"and the reply needs at least one \(prompt is too long: \d+ tokens > 4095 maximum\)\.$",
        )

    def test_33_mib_body(self):
        body = b'{"messages":"' + b"x" * (33 << 20) + b'"}'
        status, headers, reply = self.server.request("POST", "/v1/chat/completions", body=body)
        self.assertEqual(status, 413)
        self.assertEqual(headers["Connection"], "close")
        self.assertEqual(json.loads(reply)["error"]["code"], "body_too_large")

    def test_large_body_within_the_limit_is_refused_by_its_content(self):
        started = threading.Event()
        # Health stays quick while a worker tokenises.
        thread = threading.Thread(target=lambda: (started.set(), self.server.post(user("ab " * 3_000_000))))
        thread.start()
        started.wait()
        self.assertEqual(self.server.get("/health")[0], 200)
        thread.join()

    def test_chunked_upload(self):
        payload = json.dumps(user("What is 2 + 3?", max_tokens=1)).encode()
        connection = self.server.connection()
        pieces = (payload[i : i + 7] for i in range(0, len(payload), 7))
        connection.request("POST", "/v1/chat/completions", body=pieces, encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def test_keep_alive(self):
        connection = self.server.connection()
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", body=json.dumps(endless(2)))
            self.assertEqual(json.loads(connection.getresponse().read())["usage"]["completion_tokens"], 2)
        connection.close()

    def test_parallel_clients_get_their_own_answers(self):
        chosen = [skill for skill in skills() if not skill.get("tools") and skill["completion_tokens"] < 40][:12]
        wrong = []

        def ask(skill):
            body = {
                "messages": skill["messages"],
                "reasoning_effort": skill["reasoning_effort"],
                "temperature": 0,
            }
            message = self.server.post(body)[1]["choices"][0]["message"]
            if message["content"] != skill["expected"]["content"]:
                wrong.append((skill["messages"], message))

        threads = [threading.Thread(target=ask, args=(skill,)) for skill in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(chosen), 12)
        self.assertEqual(wrong, [])

    def test_clients_that_leave_free_the_engine(self):
        stream = self.server.open_stream(endless(4000))
        stream.close()
        self.server.wait_for_load(0, 0)
        running = self.server.send_raw(endless(4000))
        self.server.wait_for_load(1, 0)
        running.close()
        self.server.wait_for_load(0, 0)


if __name__ == "__main__":
    server_process.main()
