"""The clients that people use, against the bundled model: OpenAI's and Anthropic's Python packages, langchain-openai,
pydantic-ai, llm and httpx-sse. Each is skipped where it is not installed; `./dev test --clients` installs them into
build/venv."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import server_process
import test_tools
from server_process import Server

try:
    import anthropic
except ImportError:
    anthropic = None
try:
    import openai
except ImportError:
    openai = None


def skill():
    return test_tools.tool_skills("tool_call")[0]


def missing(*packages):
    """Why a test is skipped: the first package that is not installed."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"the package {absent[0]} is not installed" if absent else ""


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "4096", "--api-key", "secret")
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


@unittest.skipUnless(openai, "the package openai is not installed")
class OpenAITest(ClientTest):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="secret", max_retries=0)
        self.addCleanup(self.client.close)

    def body(self):
        body = test_tools.chat_body(skill(), model="nano")
        effort = body.pop("reasoning_effort")
        return {**body, "reasoning_effort": effort}

    def test_call_and_answer(self):
        completion = self.client.chat.completions.create(**self.body())
        choice = completion.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        call = choice.message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), test_tools.expected_calls(skill())[0])
        body = self.body()
        result = {"role": "tool", "tool_call_id": call.id, "content": '{"ok": true}'}
        body["messages"] = [*body["messages"], choice.message.model_dump(), result]
        answer = self.client.chat.completions.create(**body).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertTrue(answer.message.content)

    def test_stream(self):
        with self.client.chat.completions.stream(**self.body()) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        function = message.tool_calls[0].function
        self.assertEqual((function.name, json.loads(function.arguments)), test_tools.expected_calls(skill())[0])

    def items(self, **fields):
        """The skill in the dialect of responses."""
        body = test_tools.chat_body(skill())
        tools = [{"type": "function", **tool["function"]} for tool in body["tools"]]
        return {
            "model": "nano",
            "input": [{"role": m["role"], "content": m["content"]} for m in body["messages"]],
            "tools": tools,
            "reasoning": {"effort": body["reasoning_effort"]},
            "temperature": 0,
            **fields,
        }

    def check_response(self, response):
        self.assertEqual(response.status, "completed")
        reasoning = "".join(item.content[0].text for item in response.output if item.type == "reasoning")
        self.assertEqual(reasoning, skill()["expected"]["reasoning_content"])
        call = response.output[-1]
        self.assertEqual(call.type, "function_call")
        self.assertEqual((call.name, json.loads(call.arguments)), test_tools.expected_calls(skill())[0])
        return call

    def test_response_call_and_answer(self):
        first = self.client.responses.create(**self.items())
        call = self.check_response(first)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"ok": true}'}
        answers = [
            self.client.responses.create(**self.items(input=[result], previous_response_id=first.id)),
            self.client.responses.create(
                **self.items(input=[*self.items()["input"], *(i.model_dump() for i in first.output), result])),
        ]
        for answer in answers:
            self.assertTrue(answer.output_text)
            self.assertEqual(answer.output_text, answers[0].output_text)
            # All of the first prompt and reply was there already.
            self.assertGreaterEqual(answer.usage.input_tokens_details.cached_tokens,
                                    first.usage.input_tokens + first.usage.output_tokens - 2)
        self.assertEqual(answers[0].usage.input_tokens, answers[1].usage.input_tokens)

    def test_response_stream(self):
        kinds = []
        with self.client.responses.stream(**self.items()) as stream:
            for event in stream:
                kinds.append(event.type)
            response = stream.get_final_response()
        self.check_response(response)
        self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
        self.assertEqual(kinds[-1], "response.completed")
        self.assertLessEqual({"response.output_item.added", "response.function_call_arguments.delta",
                              "response.function_call_arguments.done", "response.output_item.done"}, set(kinds))

    def test_response_store(self):
        response = self.client.responses.create(model="nano", input="What is 12 + 30?", temperature=0)
        again = self.client.responses.retrieve(response.id)
        self.assertEqual(again.output_text, response.output_text)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(response.id)
        self.client.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)
        with self.assertRaises(openai.NotFoundError) as raised:
            self.client.responses.create(model="nano", input="x", previous_response_id=response.id)
        self.assertEqual(raised.exception.code, "previous_response_not_found")

    def test_what_codex_sends(self):
        """Tools of all kinds, developer messages, fields that mean nothing here, and its probe with an empty input."""
        probe = self.client.responses.create(model="nano", input=[], max_output_tokens=1)
        self.assertIn(probe.status, ("completed", "incomplete"))
        kinds = set()
        events = self.client.responses.create(
            model="gpt-of-the-day",
            instructions="You are a coding agent.",
            input=[
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is 12 + 30?"}]},
            ],
            tools=[
                {"type": "function", "name": "shell", "strict": False,
                 "parameters": {"type": "object", "properties": {"command": {"type": "array"}}}},
                {"type": "custom", "name": "apply_patch", "description": "Edits files",
                 "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
                {"type": "namespace", "name": "mcp__files__", "description": "Files",
                 "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]},
                {"type": "web_search"},
                {"type": "image_generation"},
            ],
            tool_choice="auto",
            parallel_tool_calls=False,
            reasoning={"effort": "medium", "summary": "auto"},
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="a-conversation",
            max_output_tokens=80,
            extra_body={"client_metadata": {"x": "y"}, "text": {"verbosity": "low"}},
        )
        for event in events:
            kinds.add(event.type)
        self.assertLessEqual({"response.created", "response.output_item.added", "response.output_item.done"}, kinds)
        self.assertTrue(kinds & {"response.completed", "response.incomplete"})

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.chat.completions.create(**{**self.body(), "tool_choice": "required"})
        self.assertEqual(raised.exception.param, "tool_choice")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url + "/v1", api_key="wrong", max_retries=0).models.list()


@unittest.skipUnless(anthropic, "the package anthropic is not installed")
class AnthropicTest(ClientTest):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.url, api_key="secret", max_retries=0)
        self.addCleanup(self.client.close)

    def body(self, **fields):
        """What some version of the package does not know (2.14 has no temperature) travels beside what all know."""
        body = test_tools.messages_body(skill(), **fields)
        known = ("model", "max_tokens", "system", "messages", "tools")
        beside = {key: body.pop(key) for key in list(body) if key not in known}
        return {**body, "extra_body": beside}

    def check_call(self, message):
        self.assertEqual(message.stop_reason, "tool_use")
        self.assertEqual([(b.name, b.input) for b in message.content if b.type == "tool_use"],
                         test_tools.expected_calls(skill()))
        thinking = "".join(block.thinking for block in message.content if block.type == "thinking")
        self.assertEqual(thinking, skill()["expected"]["reasoning_content"])

    def test_call_and_answer(self):
        message = self.client.messages.create(**self.body())
        self.check_call(message)
        body = self.body()
        use = message.content[-1]
        result = {"type": "tool_result", "tool_use_id": use.id, "content": '{"ok": true}'}
        body["messages"] = [
            *body["messages"],
            {"role": "assistant", "content": [block.model_dump() for block in message.content]},
            {"role": "user", "content": [result]},
        ]
        answer = self.client.messages.create(**body)
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertTrue([block.text for block in answer.content if block.type == "text"])
        self.assertGreater(answer.usage.cache_read_input_tokens, 0)

    def test_stream(self):
        kinds = set()
        with self.client.messages.stream(**self.body()) as stream:
            for event in stream:
                kinds.add(event.type)
            self.check_call(stream.get_final_message())
        self.assertLessEqual({"message_start", "input_json", "content_block_stop", "message_stop"}, kinds)

    def test_count_tokens(self):
        body = self.body()
        counted = self.client.messages.count_tokens(
            model=body["model"], messages=body["messages"], tools=body["tools"],
            **({"system": body["system"]} if "system" in body else {}), extra_body=body["extra_body"])
        self.assertEqual(counted.input_tokens, skill()["prompt_tokens"])

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.client.messages.create(**self.body(temperature=9))
        self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
        wrong = anthropic.Anthropic(base_url=self.url, api_key="wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            wrong.messages.create(**self.body())

    def test_what_claude_code_sends(self):
        """Its surroundings: bearer token, beta query, cache marks, a billing header that changes, a server's tool."""
        client = anthropic.Anthropic(base_url=self.url, auth_token="secret", api_key=None, max_retries=0)
        self.addCleanup(client.close)
        counts = []
        for number in range(2):
            message = client.beta.messages.create(
                model="claude-of-the-day",
                max_tokens=60,
                betas=["interleaved-thinking-2025-05-14"],
                metadata={"user_id": "someone"},
                system=[
                    {"type": "text", "text": f"x-anthropic-billing-header: cc_version={number}"},
                    {"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}},
                ],
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is 12 + 30?", "cache_control": {"type": "ephemeral"}}
                        ],
                    }
                ],
                tools=[{"type": "web_search_20250305", "name": "web_search"}],
                thinking={"type": "enabled", "budget_tokens": 1024},
                extra_body={"temperature": 0},
            )
            counts.append(message.usage)
            self.assertEqual(message.model, "claude-of-the-day")
        total = counts[0].input_tokens + counts[0].cache_read_input_tokens
        self.assertEqual(counts[1].input_tokens + counts[1].cache_read_input_tokens, total)
        self.assertGreaterEqual(counts[1].cache_read_input_tokens, total - 1)  # the billing header was left out


@unittest.skipIf(missing("langchain_openai"), missing("langchain_openai"))
class LangChainTest(ClientTest):
    def model(self, **fields):
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(base_url=self.url + "/v1", api_key="secret", model="nano", temperature=0, max_retries=0, **fields)

    def test_whole_and_streamed(self):
        whole = self.model().invoke("What is 347 + 286?")
        self.assertIn("633", whole.content)
        self.assertGreater(whole.usage_metadata["output_tokens"], 0)
        pieces = list(self.model(stream_usage=True).stream("What is 347 + 286?"))
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(piece.content for piece in pieces), whole.content)
        self.assertEqual(max(p.usage_metadata["output_tokens"] for p in pieces if p.usage_metadata),
                         whole.usage_metadata["output_tokens"])

    def test_tools(self):
        case = skill()
        bound = self.model(reasoning_effort=case["reasoning_effort"]).bind(tools=case["tools"])
        message = bound.invoke(case["messages"])
        self.assertEqual([(call["name"], call["args"]) for call in message.tool_calls], test_tools.expected_calls(case))
        answer = bound.invoke([*case["messages"], message, {"role": "tool", "tool_call_id": message.tool_calls[0]["id"], "content": '{"ok": true}'}])
        self.assertTrue(answer.content)

    def test_a_batch(self):
        replies = self.model().batch(["What is 12 + 30?", "What is 347 + 286?"])
        self.assertEqual([text in reply.content for text, reply in zip(("42", "633"), replies)], [True, True])


@unittest.skipIf(missing("pydantic_ai", "openai"), missing("pydantic_ai", "openai"))
class PydanticAiTest(ClientTest):
    def agent(self, **fields):
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model = OpenAIChatModel("nano", provider=OpenAIProvider(base_url=self.url + "/v1", api_key="secret"))
        return Agent(model, model_settings={"temperature": 0, "extra_body": {"reasoning_effort": skill()["reasoning_effort"]}}, **fields)

    def test_a_run(self):
        result = self.agent().run_sync("What is 347 + 286?")
        self.assertIn("633", result.output)
        self.assertGreater(result.usage.input_tokens, 0)

    def test_a_run_with_a_tool(self):
        from pydantic_ai import Tool

        case, calls = skill(), []

        def called(**arguments):
            calls.append(arguments)
            return {"ok": True}

        tools = [Tool.from_schema(called, name=t["function"]["name"], description=t["function"]["description"],
                                  json_schema=t["function"]["parameters"]) for t in case["tools"]]
        system = [m["content"] for m in case["messages"] if m["role"] == "system"]
        result = self.agent(tools=tools, instructions=system or None).run_sync(case["messages"][-1]["content"])
        self.assertEqual(calls, [arguments for _, arguments in test_tools.expected_calls(case)])
        self.assertTrue(result.output)


@unittest.skipIf(missing("llm"), missing("llm"))
class LlmTest(ClientTest):
    """Simon Willison's command line tool."""

    def run_llm(self, *arguments, key="secret"):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "extra-openai-models.yaml"), "w", encoding="utf-8") as file:
                file.write(f"- model_id: local\n  model_name: nano\n  api_base: {self.url}/v1\n  can_stream: true\n  api_key_name: local\n")
            return subprocess.run([sys.executable, "-m", "llm", "prompt", "-m", "local", "--key", key, *arguments],
                                  capture_output=True, text=True, timeout=120, env={**os.environ, "LLM_USER_PATH": folder})

    def test_streamed_and_whole(self):
        for arguments in ([], ["--no-stream"]):
            result = self.run_llm("-o", "temperature", "0", *arguments, "What is 347 + 286?")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("633", result.stdout)

    def test_a_wrong_key(self):
        result = self.run_llm("Hello", key="wrong")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("API key", result.stderr)


@unittest.skipIf(missing("httpx", "httpx_sse"), missing("httpx", "httpx_sse"))
class HttpxSseTest(ClientTest):
    """A reader of server-sent events that knows no model: framing alone."""

    def events(self, path, body):
        import httpx
        import httpx_sse

        with httpx.Client(headers={"Authorization": "Bearer secret"}, timeout=60) as client:
            with httpx_sse.connect_sse(client, "POST", self.url + path, json=body) as source:
                self.assertEqual(source.response.headers["content-type"], "text/event-stream; charset=utf-8")
                return list(source.iter_sse())

    def test_chat(self):
        events = self.events("/v1/chat/completions", {**test_tools.chat_body(skill()), "stream": True})
        self.assertEqual({event.event for event in events}, {"message"})
        self.assertEqual(events[-1].data, "[DONE]")
        self.assertEqual(json.loads(events[-2].data)["choices"][0]["finish_reason"], "tool_calls")

    def test_messages(self):
        events = self.events("/v1/messages", test_tools.messages_body(skill(), stream=True))
        self.assertEqual([event.event for event in events], [json.loads(event.data)["type"] for event in events])
        self.assertEqual((events[0].event, events[-1].event), ("message_start", "message_stop"))


del ClientTest  # it has no tests of its own

if __name__ == "__main__":
    server_process.main()
