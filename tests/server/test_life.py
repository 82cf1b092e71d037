"""Starting and stopping the server: exit codes, keys, signals."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import server_process
from server_process import Server, endless, user


def run(*flags, env=None):
    return subprocess.run(
        [server_process.PROGRAM, "serve", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


class StartTest(unittest.TestCase):
    def expect_failure(self, result, status, text):
        self.assertEqual(result.returncode, status, result)
        self.assertIn(text, result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("tandem: error: "), result.stderr)
        self.assertEqual(result.stdout, "")

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = run(server_process.MODEL, "--port", str(port))
        self.expect_failure(result, 5, f"127.0.0.1:{port}: the port is in use")

    def test_beyond_loopback_needs_a_key(self):
        result = run(server_process.MODEL, "--port", "0", "--host", "0.0.0.0", env={"TANDEM_API_KEY": ""})
        self.expect_failure(result, 2, "--insecure")

    def test_tls_files(self):
        with tempfile.TemporaryDirectory() as folder:
            key = os.path.join(folder, "key.pem")
            result = run(server_process.MODEL, "--port", "0", "--tls-key", key)
            self.expect_failure(result, 2, "--tls-key: no certificate; expected --tls-cert with it")
            result = run(server_process.MODEL, "--port", "0", "--tls-cert", key, "--tls-key", key)
            self.expect_failure(result, 3, f"--tls-cert {key}: No such file or directory")

    def test_missing_model(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(os.path.join(folder, "nothing"), "--port", "0")
        self.expect_failure(result, 3, "nothing")

    def test_keys(self):
        with Server("--api-key", "first", "--host", "0.0.0.0", env={"TANDEM_API_KEY": "second"}) as server:
            self.assertEqual(server.get("/health")[0], 200)
            status, headers, body = server.request("GET", "/v1/models")
            self.assertEqual((status, headers["WWW-Authenticate"]), (401, "Bearer"))
            self.assertEqual(json.loads(body)["error"]["code"], "invalid_api_key")
            self.assertEqual(server.get("/v1/models", {"Authorization": "Bearer third"})[0], 401)
            for fields in ({"Authorization": "Bearer first"}, {"x-api-key": "second"}, {"api-key": "first"}):
                self.assertEqual(server.get("/v1/models", fields)[0], 200)
            self.assertEqual(server.post(endless(1))[0], 401)

    def test_names_and_seed_rule(self):
        with Server("--strict-model-name", "--served-model-name", "a", "--served-model-name", "b",
                    "--default-seed", "prompt") as server:
            names = [name + preset for name in ("a", "b") for preset in ("", "-nothink", "-low", "-high")]
            self.assertEqual([row["id"] for row in server.get("/v1/models")[1]["data"]], names)
            status, reply = server.post(endless(1, model="nano"))
            self.assertEqual((status, reply["error"]["code"]), (404, "model_not_found"))
            seeds = {server.post(endless(1, model=name))[1]["metrics"]["seed"] for name in ("a", "b")}
            self.assertEqual(len(seeds), 1)
            self.assertEqual(server.post(endless(1))[1]["model"], "a")


class StopTest(unittest.TestCase):
    def stop(self, server, signal_number=signal.SIGTERM):
        server.process.send_signal(signal_number)

    def exit_status(self, server):
        return server.process.wait(timeout=30)

    def test_idle_server_stops_at_once(self):
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            with Server() as server:
                idle = server.connection()
                idle.connect()
                begin = time.monotonic()
                self.stop(server, signal_number)
                self.assertEqual(self.exit_status(server), 0)
                self.assertLess(time.monotonic() - begin, 5)
                idle.close()
                with self.assertRaises(OSError):
                    socket.create_connection(("127.0.0.1", server.port))

    def test_running_requests_finish(self):
        with Server("--max-model-len", "8192") as server:
            events = server.stream(endless(300, stream_options={"include_usage": True}))
            json.loads(next(events))
            self.stop(server)
            deadline = time.monotonic() + 10
            while server.get("/health")[0] == 200 and time.monotonic() < deadline:
                time.sleep(0.005)
            status, health = server.get("/health")
            self.assertEqual((status, health["status"]), (503, "draining"))
            status, headers, body = server.request("POST", "/v1/chat/completions", body=json.dumps(endless(1)))
            self.assertEqual((status, headers["Retry-After"]), (503, "5"))
            self.assertEqual(json.loads(body)["error"]["type"], "server_error")
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]")
            self.assertEqual(json.loads(rest[-2])["usage"]["completion_tokens"], 300)
            self.assertEqual(self.exit_status(server), 0)

    def expect_cut(self, server, events):
        rest = list(events)
        self.assertEqual(rest[-1], "[DONE]")
        self.assertEqual(json.loads(rest[-2])["error"]["type"], "server_error")
        self.assertEqual(self.exit_status(server), 0)

    def test_the_bound_cuts_long_requests(self):
        with Server("--drain-timeout-s", "0.2", "--max-model-len", "16384") as server:
            events = server.stream(endless(16000))
            json.loads(next(events))
            self.stop(server)
            self.expect_cut(server, events)

    def test_a_second_signal_cuts_too(self):
        with Server("--max-model-len", "16384") as server:
            events = server.stream(endless(16000))
            json.loads(next(events))
            self.stop(server)
            time.sleep(0.2)
            self.stop(server)
            self.expect_cut(server, events)

    def test_not_streamed_requests_are_answered_when_cut(self):
        with Server("--drain-timeout-s", "0", "--max-model-len", "16384") as server:
            connection = server.connection()
            connection.request("POST", "/v1/chat/completions", body=json.dumps(endless(16000)))
            server.wait_for_load(1, 0)
            self.stop(server)
            response = connection.getresponse()
            self.assertEqual(response.status, 503)
            self.assertEqual(json.loads(response.read())["error"]["type"], "server_error")
            connection.close()
            self.assertEqual(self.exit_status(server), 0)


class LogReaderTest(unittest.TestCase):
    """A pipe takes 64 KiB; every refused request is a line of some 130 bytes."""

    LINES = 1500

    def server(self, *flags):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        try:
            return Server("--log-level", "debug", *flags, log=os.fdopen(writer, "wb")), reader
        except BaseException:
            os.close(writer)
            raise

    def refused_requests(self, server):
        connection = server.connection(timeout=20)
        for _ in range(self.LINES):
            connection.request("POST", "/v1/chat/completions", body="{}")
            response = connection.getresponse()
            response.read()
            self.assertEqual(response.status, 400)
        connection.close()

    def expect_service(self, server):
        self.assertEqual(server.get("/health")[1]["status"], "ok")
        status, reply = server.post(endless(3))
        self.assertEqual((status, reply["usage"]["completion_tokens"]), (200, 3))

    def test_a_pipe_that_nobody_reads_holds_nobody_up(self):
        server, reader = self.server("--watchdog-s", "1")
        with server:
            self.refused_requests(server)
            self.expect_service(server)
            os.set_blocking(reader, False)
            text = b""
            while True:
                try:
                    text += os.read(reader, 65536)
                except BlockingIOError:
                    break
            self.assertGreater(len(text), 30000)  # the pipe was full
            self.expect_service(server)
            self.assertRegex(os.read(reader, 65536), rb"^[^\n]* warning: [0-9]+ log lines were dropped\n")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=30), 0)

    def test_a_log_reader_that_leaves_takes_nothing_along(self):
        log = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        with Server(log=log.stdin) as server:
            self.expect_service(server)
            log.kill()
            log.wait()
            for _ in range(3):
                self.assertEqual(server.post({})[0], 400)
            self.expect_service(server)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=30), 0)

    def test_a_reader_of_steps_that_leaves_ends_the_recording(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "steps")
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with Server("--record-steps", path) as server:
                os.close(reader)
                self.expect_service(server)
                self.expect_service(server)
                self.assertEqual(server.errors().count("the recording of steps ends here"), 1)


class WatchdogTest(unittest.TestCase):
    def test_a_paused_process_is_not_stuck(self):
        with Server("--watchdog-s", "1", "--watchdog-exit", "--max-model-len", "16384") as server:
            events = server.stream(endless(8000))
            next(events)
            for _ in range(2):
                server.process.send_signal(signal.SIGSTOP)
                time.sleep(2.5)
                server.process.send_signal(signal.SIGCONT)
                status, health = server.get("/health")
                self.assertEqual((status, health["status"], health["running"]), (200, "ok", 1))
                self.assertEqual(server.post(endless(3))[0], 200)
            events.close()
            self.assertNotIn("watchdog", server.errors())


class SettingsTest(unittest.TestCase):
    def test_out_of_range(self):
        for flag, values in {
            "--max-queued-requests": ("9223372036854775807", "1000001", "0", "-1"),
            "--fill-share": ("1e-300", "0.009", "0", "-1", "nan", "1.01"),
        }.items():
            for value in values:
                result = run(server_process.MODEL, "--port", "0", f"{flag}={value}")
                self.assertEqual(result.returncode, 2, (flag, value, result.stderr))
                self.assertIn(flag, result.stderr)


if __name__ == "__main__":
    server_process.main()
