"""Drafters of requests, what replies and /metrics say of them, stop strings inside drafts, and the live line."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time
import unittest

import server_process
from prometheus_text import Metrics
from server_process import Server, endless, user

DRAFTERS = ("none", "copy", "mtp", "dflash2", "auto")
# A reply that repeats itself and its prompt, so that drafts are accepted.
BODY = endless(96)


def figures(reply):
    return reply["metrics"]["speculative_decoding"]


class DraftingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def ask(self, body, server=None, **fields):
        status, reply = (server or self.server).post({**body, **fields})
        self.assertEqual(status, 200, reply)
        return reply

    def metrics(self, server=None):
        return Metrics((server or self.server).request("GET", "/metrics")[2].decode())

    def expect_refused(self, param, server=None, **fields):
        status, reply = (server or self.server).post({**BODY, **fields})
        self.assertEqual(status, 400, reply)
        self.assertEqual((reply["error"]["param"], reply["error"]["type"]), (param, "invalid_request_error"), reply)
        return reply["error"]["message"]

    def test_bad_values_name_their_field(self):
        for value in ("eagle", "", "MTP", 3, True, [], {}):
            self.expect_refused("drafter", drafter=value)
        for value in ("false", 0, 1, []):
            self.expect_refused("draft", draft=value)
        self.expect_refused("draft", draft=False, drafter="copy")
        self.expect_refused("draft", draft=True, drafter="none")
        self.assertIn("none, copy, mtp, dflash2 or auto", self.expect_refused("drafter", drafter="eagle"))

    def check_figures(self, reply):
        """The figures of a reply that ended by its length agree with each other (spec/speculation.md 6.1)."""
        tokens = reply["usage"]["completion_tokens"] - 1  # the prompt gave the first one
        drafts, details = figures(reply), reply["usage"]["completion_tokens_details"]
        histogram = drafts["acceptance_histogram"]
        self.assertEqual(sum(histogram), drafts["num_spec_steps"])
        self.assertEqual(sum((j + 1) * count for j, count in enumerate(histogram)), tokens)
        self.assertEqual(len(histogram), drafts["num_spec_tokens"] + 1)
        self.assertAlmostEqual(drafts["mean_acceptance_length"], tokens / drafts["num_spec_steps"], places=3)
        self.assertEqual(details["accepted_prediction_tokens"], drafts["num_accepted_draft_tokens"])
        rejected = drafts["num_draft_tokens"] - drafts["num_accepted_draft_tokens"]
        self.assertEqual(details["rejected_prediction_tokens"], rejected)
        if drafts["num_draft_tokens"]:
            rate = drafts["num_accepted_draft_tokens"] / drafts["num_draft_tokens"]
            self.assertAlmostEqual(drafts["draft_acceptance_rate"], rate, places=3)
        else:
            self.assertIsNone(drafts["draft_acceptance_rate"])
        # All steps but the last yield their accepted drafts and one token more.
        self.assertIn(drafts["num_spec_steps"] + drafts["num_accepted_draft_tokens"] - tokens, (0, 1))

    def test_every_drafter_gives_the_same_reply(self):
        plain = self.ask(BODY, draft=False)
        self.check_figures(plain)
        self.assertEqual(figures(plain)["mean_acceptance_length"], 1)
        self.assertEqual(figures(plain)["acceptance_histogram"], [95])
        for drafter in DRAFTERS:
            reply = self.ask(BODY, drafter=drafter)
            self.assertEqual(reply["choices"], plain["choices"], drafter)
            self.check_figures(reply)
            if drafter != "none":
                self.assertGreater(figures(reply)["num_accepted_draft_tokens"], 0, drafter)
        sampled = {**BODY, "temperature": 1, "seed": 5}
        self.assertEqual(self.ask(sampled)["choices"], self.ask(sampled, draft=False)["choices"])

    def test_a_stream_says_the_same(self):
        events = list(self.server.stream({**BODY, "drafter": "mtp", "stream_options": {"include_usage": True}}))
        chunks = [json.loads(event) for event in events[:-1]]
        self.check_figures({"usage": chunks[-1]["usage"], "metrics": chunks[-2]["metrics"]})

    def test_metrics_count_the_replies(self):
        before = self.metrics()
        replies = [self.ask(BODY, drafter=drafter) for drafter in DRAFTERS]
        after = self.metrics()

        def counted(name, **labels):
            return after.value(name, **labels) - before.value(name, **labels)

        drafted = sum(figures(reply)["num_draft_tokens"] for reply in replies)
        accepted = sum(figures(reply)["num_accepted_draft_tokens"] for reply in replies)
        self.assertEqual(counted("vllm:spec_decode_num_draft_tokens_total"), drafted)
        self.assertEqual(counted("vllm:spec_decode_num_accepted_tokens_total"), accepted)
        places = [counted("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(15)]
        self.assertEqual(sum(places), accepted)
        self.assertEqual(places, sorted(places, reverse=True))
        rounds = counted("vllm:spec_decode_num_drafts_total")
        self.assertGreaterEqual(rounds, places[0])
        self.assertLessEqual(rounds, sum(figures(reply)["num_spec_steps"] for reply in replies))
        self.assertEqual(after.value("tandem:draft_invalid_proposals_total"), 0)

    def test_a_stop_string_ends_a_reply_inside_its_drafts(self):
        body = user("Count from 1 to 30.", temperature=0, max_tokens=200,
                    chat_template_kwargs={"enable_thinking": False}, include_stop_str_in_output=True)
        whole = self.ask(body, draft=False)["choices"][0]["message"]["content"]
        stop = whole[len(whole) // 2 :][:3]
        expected = self.ask(body, draft=False, stop=[stop])
        self.assertEqual(expected["choices"][0]["finish_reason"], "stop")
        self.assertEqual(expected["choices"][0]["stop_reason"], stop)
        for drafter in DRAFTERS:
            reply = self.ask(body, drafter=drafter, stop=[stop])
            self.assertEqual(reply["choices"], expected["choices"], drafter)
            self.assertEqual(reply["usage"]["completion_tokens"], expected["usage"]["completion_tokens"], drafter)
        self.server.wait_for_load(0, 0, seconds=5)

        # What was kept at its end serves the next turn, and does not change it.
        messages = [*body["messages"], {"role": "assistant", "content": expected["choices"][0]["message"]["content"]},
                    {"role": "user", "content": "Go on."}]
        second = self.ask({**body, "messages": messages, "max_tokens": 40})
        known = expected["usage"]["prompt_tokens"] + expected["usage"]["completion_tokens"]
        self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], known - 4)
        with Server("--drafter", "none") as fresh:
            self.assertEqual(self.ask({**body, "messages": messages, "max_tokens": 40}, fresh)["choices"],
                             second["choices"])

    def test_a_server_without_drafters(self):
        with Server("--drafter", "none") as server:
            for drafter in ("copy", "mtp", "dflash2", "auto"):
                self.assertIn("one of those that are: none", self.expect_refused("drafter", server, drafter=drafter))
            for fields in ({}, {"drafter": "none"}, {"draft": False}, {"draft": True}):
                self.assertEqual(figures(self.ask(BODY, server, **fields))["num_draft_tokens"], 0)
            metrics = self.metrics(server)
            for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
                self.assertEqual(metrics.value(f"vllm:spec_decode_{name}_total"), 0)
            self.assertEqual(metrics.total("vllm:spec_decode_num_accepted_tokens_per_pos_total"), 0)

    def test_a_server_with_copies_only(self):
        with Server("--drafter", "copy") as server:
            self.assertIn("none, copy, auto", self.expect_refused("drafter", server, drafter="mtp"))
            self.assertEqual(self.ask(BODY, server)["choices"], self.ask(BODY, server, draft=False)["choices"])


class Terminal:
    """The server's standard error as a terminal."""

    def __init__(self):
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        self.file = os.fdopen(theirs, "w")
        self.text = ""

    def read_until(self, pattern, seconds=30):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.ours, 65536).decode()
                except OSError:  # the server and its terminal are gone
                    time.sleep(0.1)
        return self.text


LINE = r"\r\x1b\[K\d+ run, \d+ wait, [\d.]+ tok/s, prompt [\d.]+/s(, [\d.]+/step)?, pool \d+%\r"


class LiveLineTest(unittest.TestCase):
    def test_on_a_terminal(self):
        terminal = Terminal()
        with Server(log=terminal.file) as server:
            terminal.read_until(LINE)
            stream = server.open_stream(endless(4000))
            terminal.read_until(r"1 run, 0 wait, .*/step, pool")
            stream.close()
            terminal.read_until(r"info: request id=\S+ outcome=abort")
            terminal.read_until(r"total_ms=[^\n]*\n" + LINE)
            server.process.send_signal(signal.SIGTERM)
            # Taken away before the last words, which stand alone.
            terminal.read_until(r"%\r\r\x1b\[K\S+ info: stopping; 0 requests")
            self.assertEqual(server.process.wait(30), 0)
            self.assertNotRegex(terminal.text.split("stopping;")[1], LINE)
        os.close(terminal.ours)

    def test_nowhere_else(self):
        with Server() as server:
            server.post(endless(5))
            time.sleep(1.5)
            self.assertNotIn("\r", server.errors())


if __name__ == "__main__":
    server_process.main()
