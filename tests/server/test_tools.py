"""Tool calls with the bundled model, which was trained to make them: chat and messages, whole and streamed."""

import json
import os
import unittest

import server_process
from server_process import Server


def tool_skills(skill):
    with open(os.path.join(server_process.MODEL, "skills.json"), encoding="utf-8") as file:
        return [case for case in json.load(file) if case["skill"] == skill and case.get("tools") and case["fp32_exact"]]


def chat_body(skill, **fields):
    return {
        "messages": skill["messages"],
        "tools": skill["tools"],
        "reasoning_effort": skill["reasoning_effort"],
        "temperature": 0,
        **fields,
    }


def messages_body(skill, **fields):
    """The same request in Anthropic's dialect."""
    system, messages = "", []
    for message in skill["messages"]:
        role, blocks = message["role"], []
        if role == "system":
            system = message["content"]
            continue
        if role == "tool":
            call = messages[-1]["content"][-1]
            blocks.append({"type": "tool_result", "tool_use_id": call["id"], "content": message["content"]})
            role = "user"
        else:
            if message.get("reasoning_content") is not None:
                blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
            blocks.append({"type": "text", "text": message["content"]})
            for number, call in enumerate(message.get("tool_calls", [])):
                function = call["function"]
                blocks.append(
                    {"type": "tool_use", "id": f"c{number}", "name": function["name"], "input": function["arguments"]}
                )
        messages.append({"role": role, "content": blocks})
    return {
        "model": "nano",
        "max_tokens": 200,
        **({"system": system} if system else {}),
        "messages": messages,
        "tools": [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "input_schema": tool["function"]["parameters"],
            }
            for tool in skill["tools"]
        ],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": skill["reasoning_effort"]},
        "temperature": 0,
        **fields,
    }


def expected_calls(skill):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in skill["expected"]["tool_calls"]]


class ToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096")
        cls.calls = tool_skills("tool_call")[:4]
        cls.answers = tool_skills("tool_answer")[:2]

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def events(self, body):
        """Events of a streamed message: (name, data)."""
        status, headers, reply = self.server.request("POST", "/v1/messages", json.dumps({**body, "stream": True}))
        self.assertEqual(status, 200, reply)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        for event in reply.decode().split("\n\n")[:-1]:
            name, data = event.split("\n")
            self.assertTrue(name.startswith("event: ") and data.startswith("data: "), event)
            yield name[len("event: ") :], json.loads(data[len("data: ") :])

    def test_there_are_skills_to_test(self):
        self.assertEqual((len(self.calls), len(self.answers)), (4, 2))

    def test_chat_calls_are_the_known_ones(self):
        for skill in self.calls:
            status, reply = self.server.post(chat_body(skill))
            self.assertEqual(status, 200, reply)
            choice = reply["choices"][0]
            self.assertEqual(choice["finish_reason"], "tool_calls")
            self.assertIsNone(choice["message"]["content"])
            self.assertEqual(choice["message"]["reasoning"] or "", skill["expected"]["reasoning_content"])
            functions = [call["function"] for call in choice["message"]["tool_calls"]]
            self.assertEqual(
                [(function["name"], json.loads(function["arguments"])) for function in functions], expected_calls(skill)
            )

            streamed = {}
            for event in self.server.stream(chat_body(skill)):
                if event == "[DONE]":
                    break
                for call in json.loads(event)["choices"][0]["delta"].get("tool_calls", []):
                    function = streamed.setdefault(call["index"], {"name": "", "arguments": ""})
                    for key in function:
                        function[key] += call["function"].get(key, "")
            self.assertEqual(list(streamed.values()), functions)

    def test_chat_goes_on_after_results(self):
        for skill in self.answers:
            reply = self.server.post(chat_body(skill))[1]
            self.assertEqual(reply["choices"][0]["message"]["content"], skill["expected"]["content"])
            self.assertEqual(reply["usage"]["prompt_tokens"], skill["prompt_tokens"])

    def test_a_call_comes_back_as_the_model_wrote_it(self):
        """The next turn's prompt continues the reply token for token, so nothing of it is computed again."""
        skill = self.calls[0]
        first = self.server.post(chat_body(skill, cache_salt="next turn"))[1]
        message = first["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"ok": true}'}
        body = chat_body(skill, cache_salt="next turn")
        body["messages"] = body["messages"] + [message, result]
        cached = self.server.post(body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        usage = first["usage"]
        self.assertGreaterEqual(cached, usage["prompt_tokens"] + usage["completion_tokens"] - 1)

    def test_tool_choice_none_makes_no_call(self):
        choice = self.server.post(chat_body(self.calls[0], tool_choice="none", max_tokens=40))[1]["choices"][0]
        self.assertNotIn("tool_calls", choice["message"])
        self.assertNotIn("<tool_call>", choice["message"]["content"] or "")

    def test_messages_are_the_same_requests(self):
        for skill in self.calls:
            body = messages_body(skill)
            status, count = self.server.post(
                {key: body[key] for key in ("model", "system", "messages", "tools", "output_config") if key in body},
                "/v1/messages/count_tokens",
            )
            self.assertEqual((status, count), (200, {"input_tokens": skill["prompt_tokens"]}))
            status, reply = self.server.post(body, "/v1/messages")
            self.assertEqual(status, 200, reply)
            usage = reply["usage"]
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], skill["prompt_tokens"])
            self.assertEqual(usage["output_tokens"], skill["completion_tokens"] + 1)  # the stop token
            self.assertEqual(reply["stop_reason"], "tool_use")
            uses = [block for block in reply["content"] if block["type"] == "tool_use"]
            self.assertEqual([(use["name"], use["input"]) for use in uses], expected_calls(skill))
            thinking = "".join(block["thinking"] for block in reply["content"] if block["type"] == "thinking")
            self.assertEqual(thinking, skill["expected"]["reasoning_content"])
        for skill in self.answers:
            reply = self.server.post(messages_body(skill), "/v1/messages")[1]
            text = {"type": "text", "text": skill["expected"]["content"]}
            self.assertEqual([block for block in reply["content"] if block["type"] != "thinking"], [text])
            self.assertEqual(reply["stop_reason"], "end_turn")

    def test_streamed_messages_have_the_whole_reply(self):
        skill = self.calls[0]
        whole = self.server.post(messages_body(skill), "/v1/messages")[1]
        events = list(self.events(messages_body(skill)))
        self.assertEqual([name for name, _ in events[:2]], ["message_start", "ping"])
        self.assertEqual([name for name, _ in events[-2:]], ["message_delta", "message_stop"])
        self.assertTrue(all(data["type"] == name for name, data in events))
        given = "".join(
            data["delta"].get("partial_json", "") for name, data in events if name == "content_block_delta"
        )
        self.assertEqual(json.loads(given), [block for block in whole["content"] if block["type"] == "tool_use"][0]["input"])
        self.assertEqual(events[-2][1]["delta"]["stop_reason"], "tool_use")

    def test_errors_of_messages_have_their_shape(self):
        for path, method, status, kind in (
            ("/v1/messages", "POST", 400, "invalid_request_error"),
            ("/v1/messages/count_tokens", "POST", 400, "invalid_request_error"),
            ("/v1/messages", "GET", 405, "invalid_request_error"),
        ):
            got, headers, body = self.server.request(method, path, "{}", {"X-Request-Id": "mine"})
            body = json.loads(body)
            self.assertEqual((got, body["type"], body["request_id"]), (status, "error", "mine"))
            self.assertEqual(body["error"]["type"], kind)
        with Server("--max-model-len", "4096", "--api-key", "secret") as server:
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            status, reply = server.post(body, "/v1/messages")
            self.assertEqual((status, reply["error"]["type"]), (401, "authentication_error"))
            headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
            self.assertEqual(server.post(body, "/v1/messages?beta=true", headers)[0], 200)


if __name__ == "__main__":
    server_process.main()
