"""More requests than places, silent and slow streams, clients that vanish: over several streams at once."""

import json
import resource
import socket
import threading
import time
import unittest

import server_process
from prometheus_text import Metrics
from server_process import Server, endless, user


def long_prompt(name, **fields):
    """A prompt of about 1,500 tokens, a new one for each name."""
    return user(f"{name}: " + "one two three four five " * 250, temperature=0, ignore_eos=True, **fields)


# The name of a model is in every chunk and each of its bytes is written as six: 700 tokens fill what the sockets hold.
LONG_NAME = "\x01" * 256


def events_of(raw, events=0):
    """Reads a raw stream to its end, or to so many events; returns its bytes."""
    data = b""
    while b"data: [DONE]" not in data and (events == 0 or data.count(b"data: ") < events):
        piece = raw.recv(65536)
        if not piece:
            break
        data += piece
    return data


class QueueTest(unittest.TestCase):
    def test_exactly_the_surplus_is_refused(self):
        streams, queued = 2, 3
        places = streams + queued
        with Server("--max-num-seqs", str(streams), "--max-queued-requests", str(queued)) as server:
            clients = [server.send_raw(endless(3000, stream=True)) for _ in range(10 * places)]
            # An accepted stream is opened at once, so every client gets its first bytes.
            statuses = [int(client.recv(12, socket.MSG_PEEK)[9:]) for client in clients]
            self.assertEqual((statuses.count(200), statuses.count(429)), (places, 9 * places))
            server.wait_for_load(streams, queued)
            refused = clients[statuses.index(429)].recv(65536)
            self.assertIn(b"\r\nRetry-After: 5\r\n", refused)
            self.assertIn(b'"code":"queue_full"', refused)
            self.assertNotIn(b"event-stream", refused)
            for client in clients:
                client.close()
            server.wait_for_load(0, 0)

    def test_everyone_who_has_a_place_gets_an_answer(self):
        with Server("--max-num-seqs", "2", "--max-queued-requests", "3") as server:
            replies = []
            threads = [
                threading.Thread(target=lambda: replies.append(server.post(endless(30)))) for _ in range(50)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            answers = [reply["usage"]["completion_tokens"] for status, reply in replies if status == 200]
            self.assertEqual(answers, [30] * len(answers))
            self.assertGreaterEqual(len(answers), 5)
            codes = [reply["error"]["code"] for status, reply in replies if status != 200]
            self.assertEqual(codes, ["queue_full"] * (50 - len(answers)))


class IdleTest(unittest.TestCase):
    def test_a_thousand_idle_connections(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 1200:
            self.skipTest(f"only {hard} descriptors are allowed here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))  # the server inherits it
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with Server() as server:
            idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(1000)]
            for raw in idle[:10]:  # some have asked before
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertTrue(raw.recv(4096).startswith(b"HTTP/1.1 200"))
            _, _, page = server.request("GET", "/metrics")
            before = Metrics(page.decode()).value("process_cpu_seconds_total")
            begin = time.monotonic()
            self.assertEqual([server.post(endless(5))[0] for _ in range(5)], [200] * 5)
            self.assertLess(time.monotonic() - begin, 20)
            time.sleep(2)
            _, _, page = server.request("GET", "/metrics")
            self.assertLess(Metrics(page.decode()).value("process_cpu_seconds_total") - before, 1)
            idle[500].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertTrue(idle[500].recv(4096).startswith(b"HTTP/1.1 200"))
            for raw in idle:
                raw.close()


class DeadlineTest(unittest.TestCase):
    def test_requests_that_take_too_long_end(self):
        with Server("--request-timeout-s", "0.5", "--max-num-seqs", "1") as server:
            begin = time.monotonic()
            running = server.open_stream(endless(4000))
            status, reply = server.post(endless(4000))  # waits all the time
            self.assertEqual((status, reply["error"]["code"]), (504, "deadline_exceeded"))
            rest = events_of(running)
            running.close()
            self.assertLess(time.monotonic() - begin, 5)
            self.assertIn(b'"code":"deadline_exceeded"', rest)
            self.assertIn(b"data: [DONE]", rest)
            server.wait_for_load(0, 0)
            self.assertEqual(server.post(endless(2))[0], 200)
            _, _, page = server.request("GET", "/metrics")
            ended = Metrics(page.decode()).value("vllm:request_success_total", finished_reason="deadline")
            self.assertEqual(ended, 2)


class StreamsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--sse-keepalive-s", "0.1", "--max-num-seqs", "3", "--max-model-len", "4096")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def fill_streams(self):
        """Long replies in every stream and one that waits."""
        streams = [self.server.send_raw(endless(3500, stream=True)) for _ in range(3)]
        self.server.wait_for_load(3, 0)
        streams.append(self.server.send_raw(endless(3500, stream=True)))
        self.server.wait_for_load(3, 1)
        return streams

    def drop(self, raws):
        for raw in raws:
            raw.close()
        self.server.wait_for_load(0, 0)

    def test_a_queued_stream_hears_comments(self):
        streams = self.fill_streams()
        waiting, data = streams[-1], b""
        while data.count(b": keepalive\n\n") < 3:
            piece = waiting.recv(4096)
            self.assertTrue(piece, data)
            data += piece
        self.assertIn(b"text/event-stream", data)
        self.assertNotIn(b"data: ", data)
        self.drop(streams)

    def test_clients_that_vanish_free_their_stream(self):
        streams = self.fill_streams()
        running = len(streams) - 1
        for _ in range(3):  # queued
            streams.pop().close()
            self.server.wait_for_load(running, 0, seconds=5)
            streams.append(self.server.send_raw(endless(3500, stream=True)))
            self.server.wait_for_load(running, 1, seconds=5)
        streams.pop(0).close()  # decoding: the queued one takes the place
        self.server.wait_for_load(running, 0, seconds=5)
        data = events_of(streams[-1], events=3)
        self.assertIn(b"data: ", data)
        streams.pop(0).close()
        self.server.wait_for_load(running - 1, 0, seconds=5)
        for stream in (False, True):  # prompt being computed
            filling = self.server.send_raw(long_prompt(f"vanish {stream}", max_tokens=1000, stream=stream))
            self.server.wait_for_load(running, 0, seconds=5)
            filling.close()
            self.server.wait_for_load(running - 1, 0, seconds=5)
        self.drop(streams)

    def slow_client(self, tokens):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(30)
        raw.connect(("127.0.0.1", self.server.port))
        body = json.dumps(endless(tokens, stream=True, model=LONG_NAME)).encode()
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return raw

    def ended(self, outcome):
        _, _, page = self.server.request("GET", "/metrics")
        return Metrics(page.decode()).value("vllm:request_success_total", finished_reason=outcome)

    def test_a_client_that_vanishes_while_its_reply_is_written(self):
        complete, aborted = self.ended("length"), self.ended("abort")
        raw = self.slow_client(700)
        events_of(raw, events=2)
        self.server.wait_for_load(0, 0)  # computed to its end, though nobody reads
        self.assertEqual(self.ended("length"), complete)  # and not yet delivered
        raw.close()
        deadline = time.monotonic() + 5
        while self.ended("abort") == aborted:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertEqual(self.ended("length"), complete)

    def test_one_byte_a_second_holds_nobody_up(self):
        complete = self.ended("length")
        slow = self.slow_client(700)
        stop = threading.Event()
        bytes_read = []

        def read():
            while not stop.wait(1):
                bytes_read.append(slow.recv(1))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            usage = [self.server.post(endless(20))[1]["usage"]["completion_tokens"] for _ in range(3)]
            self.assertEqual(usage, [20] * 3)
            self.server.wait_for_load(0, 0)  # its tokens are computed all the same
            self.assertEqual(self.ended("length"), complete + 3)
        finally:
            stop.set()
            reader.join()
        # What it has not read is still there, complete and in order.
        data = b"".join(bytes_read) + events_of(slow)
        slow.close()
        self.assertTrue(data.startswith(b"HTTP/1.1 200 OK"), data[:100])
        self.assertIn(b'"finish_reason":"length"', data)
        self.assertTrue(data.rstrip(b"0\r\n").endswith(b"data: [DONE]"), data[-100:])
        self.assertEqual(self.ended("length"), complete + 4)

    def test_a_long_prompt_hears_comments(self):
        raw = self.server.send_raw(long_prompt("silence", max_tokens=1, stream=True))
        data = events_of(raw)
        raw.close()
        self.assertIn(b"data: [DONE]", data)
        first_token = data.find(b'"content"', data.find(b'"content":""') + 12)
        self.assertGreater(data.count(b": keepalive\n\n", 0, first_token if first_token > 0 else len(data)), 0)


if __name__ == "__main__":
    server_process.main()
