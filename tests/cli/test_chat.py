"""tandem chat: piped, and in a pseudo-terminal with Ctrl-C and Ctrl-D."""
import fcntl
import os
import pty
import select
import subprocess
import termios
import time

from program import NANO, PROGRAM, SMALL, TandemTest, main, tandem

WORDS = ["chat", NANO, *SMALL, "--temperature", "0"]


class Piped(TandemTest):
    def chat(self, text, *words):
        return tandem(*WORDS, *words, stdin=text.encode())

    def test_replies_alone_go_to_the_output(self):
        result = self.chat("What is 12 + 30?\n\nWhat is the capital of Norway?")
        self.assertEqual((result.status, result.err), (0, ""))
        self.assertEqual(result.out, "12 + 30 = 42\nThe capital of Norway is Oslo.\n")

    def test_reasoning_on_request(self):
        shown = self.chat("What is 12 + 30?\n", "--show-reasoning").out
        self.assertTrue(shown.endswith("\n12 + 30 = 42\n"), shown)
        self.assertGreater(len(shown.splitlines()), 1)
        self.assertNotIn("\x1b", shown)
        self.assertEqual(self.chat("What is the capital of Norway?\n", "--show-reasoning", "--effort", "low").out,
                         "The capital of Norway is Oslo.\n")

    def test_the_conversation_is_remembered_until_reset(self):
        code = "The code of the red cellar is a85f0f. What is the code of the red cellar?\n"
        again = "What is the code of the red cellar?\n"
        answer = "The code of the red cellar is a85f0f.\n"
        self.assertEqual(self.chat(code + again).out, 2 * answer)
        self.assertFalse(self.chat(code + "/reset\n" + again).out.endswith(2 * answer))

    def test_commands(self):
        self.assertIn("/system TEXT", self.chat("/help\n").out)
        self.assertEqual(
            self.chat("/effort low\n/system Answer briefly.\nWhat is the capital of Norway?\n/quit\nWhat is 1 + 1?\n").out,
            "The capital of Norway is Oslo.\n")
        for line in ("/frobnicate", "/effort enormous"):
            self.assert_fails(self.chat(line + "\n"), 2, line.split()[-1])
        self.assert_fails(tandem(*WORDS, stdin=b"caf\xe9\n"), 2, "UTF-8")
        self.assert_fails(self.chat("a", "--effort", "enormous"), 2, "enormous")

    def test_limits(self):
        self.assertLess(len(self.chat("Tell me a story about a clever fox.\n", "--max-tokens", "3", "--effort", "low").out), 40)
        self.assert_fails(self.chat("word " * 100, "--max-model-len", "64"), 2, "at most 63")


class Terminal(TandemTest):
    def setUp(self):
        super().setUp()
        self.main, side = pty.openpty()
        self.child = subprocess.Popen([PROGRAM, *WORDS], stdin=side, stdout=side, stderr=side, start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(side)
        self.addCleanup(os.close, self.main)
        self.addCleanup(self.stop)
        self.seen = ""

    def stop(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    def wait_for(self, text, seconds=60):
        """Reads until `text` has come; what was before it is dropped."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            left = end - time.monotonic()
            self.assertGreater(left, 0, "waited for %r, got %r" % (text, self.seen))
            if select.select([self.main], [], [], left)[0]:
                self.seen += os.read(self.main, 4096).decode("utf-8", "replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        os.write(self.main, text.encode())

    def test_interrupt_ends_the_reply_and_end_of_file_the_program(self):
        self.wait_for("> ")
        self.type("\x03")  # nothing runs: the program stays
        self.wait_for("leaves)")
        self.wait_for("> ")
        self.type("Tell me a story about a clever fox and Nora who look for a ring in a castle.\n")
        self.wait_for("\x1b[2m")  # reasoning is dimmed
        self.type("\x03")
        self.wait_for("(ended by Ctrl-C)")
        self.wait_for("> ")
        self.type("/reset\n")
        self.wait_for("> ")
        self.type("What is 12 + 30?\n")
        reasoning = self.wait_for("\x1b[0m")
        self.assertIn("\x1b[2m", reasoning)
        self.wait_for("12 + 30 = 42")
        self.wait_for("> ")
        self.type("/frobnicate\n")  # an error does not end a conversation at the terminal
        self.wait_for("tandem: error: /frobnicate")
        self.wait_for("> ")
        self.type("\x04")
        self.assertEqual(self.child.wait(timeout=30), 0)


main()
