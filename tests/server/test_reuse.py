"""Prompts come back: what is resumed, what is not and why, and that no token changes by it; on one rank and on two."""

import re
import threading
import time
import unittest

import server_process
from server_process import Server

SYSTEM = {"role": "system", "content": "You answer in short sentences. " * 40}
QUESTION = {"role": "user", "content": "What is 347 + 286?"}


def chat(messages, **fields):
    return {"messages": messages, "temperature": 0, "max_tokens": 24, "seed": 1, **fields}


SMALL = ("--kept-states-memory", "32MiB")  # starts sooner


class Reply:
    def __init__(self, answer):
        status, body = answer
        if status != 200:
            raise AssertionError(f"{status} {body}")
        message = body["choices"][0]["message"]
        self.text = (message.get("reasoning_content"), message["content"])
        self.content = message["content"] or ""
        self.prompt = body["usage"]["prompt_tokens"]
        self.cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]


class ReuseTest(unittest.TestCase):
    FLAGS = ()

    def setUp(self):
        self.server = Server(*SMALL, *self.FLAGS)

    def tearDown(self):
        self.server.__exit__()

    def ask(self, messages, **fields):
        return Reply(self.server.post(chat(messages, **fields)))

    def fresh(self, messages, **fields):
        """The same request on a server of its own."""
        with Server(*SMALL) as server:
            return Reply(server.post(chat(messages, **fields)))

    def expect_miss(self, reason):
        """The log line of a request may come a moment after its reply."""
        deadline = time.monotonic() + 20
        while reason not in re.findall(r'miss="?([a-z ]+)"?', self.server.errors()):
            self.assertLess(time.monotonic(), deadline, f"no request missed because of: {reason}")
            time.sleep(0.02)

    def test_an_identical_prompt_is_not_run_again(self):
        first, again = self.ask([SYSTEM, QUESTION]), self.ask([SYSTEM, QUESTION])
        self.assertEqual(first.cached, 0)
        self.assertEqual(again.cached, again.prompt)
        self.assertEqual(again.text, first.text)

    def test_the_next_turn_resumes_after_the_reply(self):
        # Thinking is off: what the client sends back is what the model said, token for token.
        fields = {"chat_template_kwargs": {"enable_thinking": False}}
        first = self.ask([SYSTEM, QUESTION], **fields)
        turn = [SYSTEM, QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And 12 + 30?"}]
        second = self.ask(turn, **fields)
        self.assertGreaterEqual(second.cached, first.prompt)
        self.assertLess(second.prompt - second.cached, 40)
        self.assertEqual(second.text, self.fresh(turn, **fields).text)

    def test_the_next_turn_of_a_thinking_model_resumes_before_the_reply(self):
        first = self.ask([SYSTEM, QUESTION])
        turn = [SYSTEM, QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And 12 + 30?"}]
        second = self.ask(turn)
        self.assertGreaterEqual(second.cached, first.prompt - 8)
        self.assertEqual(second.text, self.fresh(turn).text)

    def test_a_reply_that_comes_back_is_resumed_at_its_end(self):
        """Whatever its tokens are: at this temperature they are seldom those of its text."""
        turns = [SYSTEM, QUESTION]
        for seed in range(4):
            body = chat(turns, temperature=1.5, seed=seed, max_tokens=80)
            status, reply = self.server.post(body)
            self.assertEqual(status, 200)
            message, usage = reply["choices"][0]["message"], reply["usage"]
            if message["content"] is None:  # cut off in its reasoning: there is nothing to go on from
                continue
            going_on = [*turns, message, {"role": "user", "content": "And 12 + 30?"}]
            cached = self.ask(going_on).cached
            self.assertGreaterEqual(cached, usage["prompt_tokens"] + usage["completion_tokens"] - 2, message)

    def test_a_system_prompt_survives_other_conversations(self):
        system_tokens = self.ask([SYSTEM, QUESTION]).prompt - 40
        for number in range(6):
            reply = self.ask([SYSTEM, {"role": "user", "content": f"Sort {number}, 9, {number + 3}, 1."}])
            self.assertGreaterEqual(reply.cached, system_tokens, number)

    def test_an_edit_resumes_before_it(self):
        turns = [SYSTEM, QUESTION, {"role": "assistant", "content": "633"}, {"role": "user", "content": "What is 111 + 222?"}]
        self.ask(turns)
        edited = turns[:3] + [{"role": "user", "content": "What is 111 + 223?"}]
        reply = self.ask(edited)
        self.assertGreaterEqual(reply.cached, reply.prompt // 2)
        self.assertLess(reply.cached, reply.prompt)
        self.assertEqual(reply.text, self.fresh(edited).text)

    def test_salts_share_nothing(self):
        self.ask([SYSTEM, QUESTION], cache_salt="a")
        other = self.ask([SYSTEM, QUESTION], cache_salt="b")
        self.assertEqual(other.cached, 0)
        self.expect_miss("other salt")
        self.assertEqual(self.ask([SYSTEM, QUESTION], cache_salt="b").cached, other.prompt)

    def test_a_change_of_effort_is_named(self):
        self.ask([SYSTEM, QUESTION], reasoning_effort="high")
        self.assertLess(self.ask([SYSTEM, QUESTION], reasoning_effort="low").cached, 20)
        self.expect_miss("effort changed")

    def test_sampled_replies_are_the_same_resumed(self):
        fields = {"temperature": 1.0, "top_p": 0.95, "seed": 77}
        first = self.ask([SYSTEM, QUESTION], **fields)
        again = self.ask([SYSTEM, QUESTION], **fields)
        self.assertEqual(again.cached, again.prompt)
        self.assertEqual(again.text, first.text)

    def test_eight_together_say_what_each_says_alone(self):
        prompts = [[SYSTEM, {"role": "user", "content": f"What is {100 + 37 * i} + {900 - 11 * i}?"}] for i in range(8)]
        alone = [self.fresh([*prompt], max_tokens=16).text for prompt in prompts[:3]]
        replies = [None] * 8

        def run(i):
            replies[i] = self.ask(prompts[i], max_tokens=16).text

        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(replies[:3], alone)


class ReuseOnTwoRanksTest(ReuseTest):
    FLAGS = ("--tensor-parallel-size", "2", "--decode-context-parallel-size", "2", "--threads", "1")


if __name__ == "__main__":
    server_process.main()
