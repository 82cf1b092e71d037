"""Structured output with the bundled model: the reply has the form that was asked for, and drafts change nothing."""

import json
import unittest

from server_process import Server, main, user

SCHEMA = {
    "type": "object",
    "properties": {
        "sum": {"type": "integer", "minimum": 0, "maximum": 9999},
        "unit": {"enum": ["none", "metre"]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
        "sure": {"type": "boolean"},
    },
    "required": ["sum", "unit", "words", "sure"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
            "required": ["a", "unit"],
        },
    },
}


def schema_fields(**fields):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, **fields}


class StructuredTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "2048")
        probe = cls.server.post(user("Hi", max_tokens=4, response_format={"type": "json_object"}, reasoning_effort="none"))
        if probe[0] == 501:
            cls.server.__exit__()
            raise unittest.SkipTest("built without xgrammar")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ask(self, text="What is 347 + 286?", **fields):
        status, body = self.server.post(user(text, max_tokens=300, **fields))
        self.assertEqual(status, 200, body)
        return body["choices"][0]

    def check(self, choice):
        value = json.loads(choice["message"]["content"])
        self.assertEqual(list(value), ["sum", "unit", "words", "sure"])
        self.assertIs(type(value["sum"]), int)
        self.assertTrue(0 <= value["sum"] <= 9999)
        self.assertIn(value["unit"], ("none", "metre"))
        self.assertTrue(len(value["words"]) <= 2 and all(len(word) <= 6 for word in value["words"]))
        self.assertIs(type(value["sure"]), bool)
        self.assertEqual(choice["finish_reason"], "stop")

    def test_a_reply_by_schema_whatever_the_drafter_and_the_noise(self):
        for fields in ({"temperature": 0}, {"temperature": 1.5, "seed": 1}, {"temperature": 1.5, "seed": 2}):
            for thinking in ({"reasoning_effort": "none"}, {"thinking_token_budget": 20}):
                plain = self.ask(**schema_fields(drafter="none", **fields, **thinking))
                self.check(plain)
                for drafter in ("copy", "mtp", "dflash2", "auto"):
                    with self.subTest(drafter=drafter, **fields, **thinking):
                        drafted = self.ask(**schema_fields(drafter=drafter, **fields, **thinking))
                        self.assertEqual(drafted["message"]["content"], plain["message"]["content"])
                        self.assertEqual(drafted["message"].get("reasoning"), plain["message"].get("reasoning"))

    def test_choices_and_regular_expressions(self):
        choice = self.ask(guided_choice=["yes", "no"], reasoning_effort="none", temperature=1.5)
        self.assertIn(choice["message"]["content"], ("yes", "no"))
        choice = self.ask(structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"}, reasoning_effort="none", temperature=1.5)
        self.assertRegex(choice["message"]["content"], r"\A[0-9]{3}-[a-f]{2}\Z")

    def test_a_forced_call(self):
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            for drafter in ("none", "auto"):
                reply = self.ask(
                    "Hello!", tools=[TOOL], tool_choice=choice, reasoning_effort="none", temperature=0, drafter=drafter
                )
                self.assertEqual(reply["finish_reason"], "tool_calls")
                for call in reply["message"]["tool_calls"]:
                    self.assertEqual(call["function"]["name"], "add")
                    arguments = json.loads(call["function"]["arguments"])
                    self.assertIs(type(arguments["a"]), int)
                    self.assertIn(arguments["unit"], ("C", "F"))

    def test_a_forced_call_of_messages(self):
        tool = {"name": "add", "input_schema": TOOL["function"]["parameters"]}
        body = {
            "model": "nano",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "Hello!"}],
            "tools": [tool],
            "tool_choice": {"type": "tool", "name": "add"},
            "thinking": {"type": "disabled"},
        }
        status, reply = self.server.post(body, path="/v1/messages")
        self.assertEqual(status, 200, reply)
        self.assertEqual(reply["stop_reason"], "tool_use")
        self.assertIn(reply["content"][-1]["input"]["unit"], ("C", "F"))

    def test_the_budget_ends_reasoning(self):
        reply = self.server.post(user("What is 347 + 286?", thinking_token_budget=5, temperature=0, max_tokens=200))
        self.assertEqual(reply[1]["usage"]["completion_tokens_details"]["reasoning_tokens"], 5)

    def test_a_loop_ends(self):
        reply = self.ask(
            guided_regex="(ab)*", reasoning_effort="none", repetition_detection={"max_pattern_size": 8, "min_count": 5}, ignore_eos=True
        )
        self.assertEqual(reply["finish_reason"], "repetition")

    def test_refusals_name_the_keyword(self):
        schema = {"type": "array", "uniqueItems": True}
        status, body = self.server.post(user("Hi", guided_json=schema))
        self.assertEqual(status, 400)
        self.assertIn("keyword 'uniqueItems'", body["error"]["message"])


if __name__ == "__main__":
    main()
