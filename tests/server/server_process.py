"""Starts `tandem serve` for the black-box tests and talks to it with the standard library only."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = None  # path of the program; set by main()
MODEL = None  # path of the model folder

READY = re.compile(r"tandem: serving (\S+) on http://([^:]+):(\d+) ")


class Server:
    """A running server on a free port. Use as a context manager. `log` (a file; taken over) gets its standard error."""

    def __init__(self, *flags, env=None, log=None):
        self.log = log or tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", MODEL, "--port", "0", "--kv-cache-memory", "128MiB", *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            # No GPU is seen: the expectations are the CPU's.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})},
        )
        line = self.process.stdout.readline()
        ready = READY.match(line)
        if not ready:
            self.process.wait()
            raise RuntimeError(f"not ready: {line!r} {self.errors()}")
        self.port = int(ready.group(3))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def errors(self):
        self.log.seek(0)
        return self.log.read()

    def connection(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body bytes)"""
        connection = self.connection()
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def get(self, path, headers=None):
        status, _, body = self.request("GET", path, headers=headers)
        return status, json.loads(body)

    def post(self, body, path="/v1/chat/completions", headers=None):
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        status, _, reply = self.request("POST", path, body=body, headers=headers)
        return status, json.loads(reply)

    def stream(self, body):
        """Events of a streamed chat, as they come: the text after "data: "."""
        connection = self.connection()
        try:
            connection.request("POST", "/v1/chat/completions", body=json.dumps({**body, "stream": True}))
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"{response.status} {response.read()}")
            for line in response:
                line = line.decode().rstrip("\n")
                if line.startswith("data: "):
                    yield line[len("data: ") :]
        finally:
            connection.close()

    def open_stream(self, body):
        """A raw socket on which the first event of a stream has been read."""
        raw = self.send_raw({**body, "stream": True})
        data = b""
        while b"data: " not in data:
            piece = raw.recv(4096)
            if not piece:
                raise AssertionError(f"closed after {data!r}")
            data += piece
        return raw

    def send_raw(self, body):
        payload = json.dumps(body).encode()
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
            % (len(payload), payload)
        )
        return raw

    def wait_for_load(self, running, waiting, seconds=60):
        """Waits until /health shows these numbers of requests."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            _, health = self.get("/health")
            if (health.get("running"), health.get("waiting")) == (running, waiting):
                return
            time.sleep(0.01)
        raise AssertionError(f"running, waiting stayed {health}, expected {running}, {waiting}")


def user(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def endless(tokens, **fields):
    """A request that samples exactly `tokens` tokens."""
    return user("What is 2 + 3?", ignore_eos=True, max_tokens=tokens, temperature=0, **fields)


def main():
    """python3 test_x.py PROGRAM MODEL [unittest arguments]"""
    import unittest

    global PROGRAM, MODEL
    # The test file is __main__, but it sees this module by its name.
    module = sys.modules["server_process"]
    module.PROGRAM, module.MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(module="__main__", argv=[sys.argv[0], *sys.argv[3:]])
