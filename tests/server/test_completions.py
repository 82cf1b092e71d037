"""Completions, several choices, log-probabilities, penalties and tokenizing over HTTP with the bundled model."""

import json
import math
import unittest

import server_process
from server_process import Server, endless, user


class CompletionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def complete(self, status=200, **body):
        got, reply = self.server.post(body, path="/v1/completions")
        self.assertEqual(got, status, reply)
        return reply

    def events(self, path, body):
        connection = self.server.connection()
        try:
            connection.request("POST", path, body=json.dumps({**body, "stream": True}))
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            lines = response.read().decode().split("\n")
            return [line[len("data: ") :] for line in lines if line.startswith("data: ")]
        finally:
            connection.close()

    def test_a_completion_of_a_rendered_chat_is_the_chats_reply(self):
        body = user("What is 12 + 30?", temperature=0, reasoning_effort="none")
        chat = self.server.post(body)[1]
        status, rendered = self.server.post(body, path="/apply-template")
        self.assertEqual(status, 200)
        prompt = rendered["prompt"]
        ids = self.server.post(body, path="/tokenize")[1]["tokens"]
        content = chat["choices"][0]["message"]["content"]
        for form in (prompt, ids, [prompt], [ids]):
            reply = self.complete(prompt=form, temperature=0, max_tokens=100)
            self.assertEqual(reply["choices"][0]["text"], content)
            self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
            self.assertEqual(reply["usage"]["prompt_tokens"], chat["usage"]["prompt_tokens"])
        echoed = self.complete(prompt=prompt, temperature=0, max_tokens=100, echo=True)
        self.assertEqual(echoed["choices"][0]["text"], prompt + content)
        self.assertEqual(self.complete(prompt=prompt, max_tokens=0, echo=True)["choices"][0]["text"], prompt)

    def test_the_prompts_log_probabilities_are_the_replys(self):
        """What was sampled once and is read as a prompt later has the same bits, in whatever slices the rows are run."""
        asked = {"temperature": 0, "ignore_eos": True, "logprobs": 2, "return_tokens_as_token_ids": True}
        prompt = self.server.post({"prompt": "The quick brown fox. " * 12}, path="/tokenize")[1]["tokens"]
        first = self.complete(prompt=prompt, max_tokens=30, **asked)["choices"][0]["logprobs"]
        reply = [int(token.removeprefix("token_id:")) for token in first["tokens"]]
        echoed = self.complete(prompt=prompt + reply, max_tokens=0, echo=True, **asked)["choices"][0]["logprobs"]
        self.assertEqual(len(echoed["tokens"]), len(prompt) + len(reply))
        self.assertIsNone(echoed["token_logprobs"][0])
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            self.assertEqual(echoed[name][-len(reply) :], first[name], name)
        listed = self.complete(prompt=prompt + reply, max_tokens=1, prompt_logprobs=2)
        entries = listed["choices"][0]["prompt_logprobs"]
        self.assertEqual(listed["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        for token, logprob, entry in zip(prompt + reply, echoed["token_logprobs"], entries):
            if logprob is not None:
                self.assertEqual(entry[str(token)]["logprob"], logprob)
        for entry in entries[-len(reply) :]:  # greedy: each was the likeliest
            self.assertIn(1, [value["rank"] for value in entry.values()])

    def test_streamed_completions(self):
        body = {"prompt": ["The fox", "A dog"], "n": 2, "seed": 3, "max_tokens": 12, "ignore_eos": True}
        whole = self.complete(**body)
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2, 3])
        self.assertEqual(whole["usage"]["completion_tokens"], 48)
        events = self.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        texts = [""] * 4
        for chunk in chunks[:-1]:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        self.assertEqual(texts, [choice["text"] for choice in whole["choices"]])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 48)
        self.assertNotEqual(texts[0], texts[1])  # another seed
        alone = self.complete(prompt="The fox", seed=4, max_tokens=12, ignore_eos=True)
        self.assertEqual(alone["choices"][0]["text"], texts[1])  # choice k has the seed + k

    def test_choices_of_a_chat(self):
        body = user("Tell me a story about a fox.", max_tokens=20, n=3, seed=8, temperature=1.5)
        reply = self.server.post(body)[1]
        self.assertEqual([choice["index"] for choice in reply["choices"]], [0, 1, 2])
        one = self.server.post({**body, "n": 1, "seed": 10})[1]
        self.assertEqual(one["choices"][0]["message"], reply["choices"][2]["message"])
        self.server.wait_for_load(0, 0)

    def test_log_probabilities(self):
        body = endless(6, logprobs=True, top_logprobs=4)
        entries = self.server.post(body)[1]["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(entries), 6)
        for entry in entries:
            best = entry["top_logprobs"]
            self.assertEqual(len(best), 4)
            self.assertEqual((best[0]["token"], best[0]["logprob"]), (entry["token"], entry["logprob"]))  # greedy
            self.assertEqual(sorted((b["logprob"] for b in best), reverse=True), [b["logprob"] for b in best])
            self.assertLessEqual(sum(math.exp(b["logprob"]) for b in best), 1.0001)
        streamed = [json.loads(event) for event in self.server.stream(body) if event != "[DONE]"]
        collected = []
        for chunk in streamed:
            collected += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
        self.assertEqual(collected, entries)

    def test_what_shapes_the_reply(self):
        reply = self.server.post(endless(8, logprobs=True))[1]
        first = reply["choices"][0]["logprobs"]["content"][0]["token"]
        first_id = self.server.post({"prompt": first, "add_special_tokens": False}, path="/tokenize")[1]["tokens"]
        self.assertEqual(len(first_id), 1)

        def starts(**fields):
            status, shaped = self.server.post(endless(8, logprobs=True, **fields))
            self.assertEqual(status, 200, shaped)
            return [entry["token"] for entry in shaped["choices"][0]["logprobs"]["content"]]

        self.assertEqual(starts()[0], first)
        self.assertNotEqual(starts(logit_bias={str(first_id[0]): -100})[0], first)
        self.assertNotIn(first, starts(bad_words=[first]))
        self.assertEqual(set(starts(allowed_token_ids=first_id)), {first})
        self.assertLess(starts(allowed_token_ids=first_id + [first_id[0] + 1], frequency_penalty=2).count(first), 8)

    def test_demands_that_leave_no_token_end_one_request_only(self):
        # Every token that may come is a bad word.
        status, ids = self.server.post({"prompt": "a", "add_special_tokens": False}, path="/tokenize")
        self.assertEqual(status, 200)
        status, reply = self.server.post(endless(4, allowed_token_ids=ids["tokens"], bad_words=["a"]))
        self.assertEqual((status, reply["error"]["type"], reply["error"]["param"]), (400, "invalid_request_error", "allowed_token_ids"))
        self.assertEqual(self.server.get("/health")[0], 200)
        self.assertEqual(self.server.post(endless(2))[0], 200)

    def test_continued_message(self):
        messages = [{"role": "user", "content": "What is 12 + 30?"}, {"role": "assistant", "content": "12 + 30 ="}]
        body = {"messages": messages, "continue_final_message": True, "temperature": 0, "max_tokens": 8}
        reply = self.server.post(body)[1]["choices"][0]["message"]
        self.assertIsNone(reply["reasoning"])
        echoed = self.server.post({**body, "echo": True})[1]["choices"][0]["message"]
        self.assertEqual(echoed["content"], "12 + 30 =" + reply["content"])
        bad = self.server.post({**body, "messages": messages[:1]})
        self.assertEqual((bad[0], bad[1]["error"]["param"]), (400, "continue_final_message"))

    def test_tokenize_and_back(self):
        text = "Größe 42 <think> \U0001f984"
        reply = self.server.post({"prompt": text, "return_token_strs": True}, path="/v1/tokenize")[1]
        self.assertEqual(reply["count"], len(reply["tokens"]))
        self.assertEqual(reply["count"], len(reply["token_strs"]))
        self.assertEqual(reply["max_model_len"], 4096)
        back = self.server.post({"tokens": reply["tokens"]}, path="/v1/detokenize")[1]
        self.assertEqual(back["prompt"], "[gMASK]<sop>" + text)
        llama = self.server.post({"content": text}, path="/tokenize")[1]
        self.assertEqual(llama, {"tokens": reply["tokens"][2:]})
        status, error = self.server.post({"tokens": [1 << 20]}, path="/detokenize")
        self.assertEqual((status, error["error"]["param"]), (400, "tokens[0]"))

    def test_presets_in_the_models_name(self):
        plain = self.server.post(user("Hi"), path="/apply-template")[1]["prompt"]
        off = self.server.post(user("Hi", model="nano-nothink"), path="/apply-template")[1]["prompt"]
        low = self.server.post(user("Hi", model="nano-low"), path="/apply-template")[1]["prompt"]
        self.assertTrue(plain.endswith("<think>") and off.endswith("<think></think>"))
        self.assertIn("Reasoning Effort: Low", low)
        reply = self.server.post(user("What is 2 + 3?", model="nano-nothink", max_tokens=5))[1]
        self.assertEqual((reply["model"], reply["choices"][0]["message"]["reasoning"]), ("nano-nothink", None))

    def test_refusals(self):
        for param, fields in (
            ("prompt", {}),
            ("prompt", {"prompt": []}),
            ("suffix", {"prompt": "a", "suffix": "b"}),
            ("best_of", {"prompt": "a", "best_of": 2}),
            ("logit_bias", {"prompt": "a", "logit_bias": {"x": 1}}),
        ):
            self.assertEqual(self.complete(400, **fields)["error"]["param"], param)


if __name__ == "__main__":
    server_process.main()
