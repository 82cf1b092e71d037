"""The server against its own description: whatever schemathesis makes of /openapi.json is answered as described and
never with a failure of the server. Skipped where it is not installed; `./dev test --clients` installs it."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import server_process
from server_process import Server

# The other checks of schemathesis are of rules that HTTP APIs need not keep, such as refusing every unknown field.
CHECKS = ",".join(["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
                   "unsupported_method", "allow_header_conformance", "ignored_auth"])


class KeysTest(unittest.TestCase):
    def test_keys_are_described_as_they_are_asked_for(self):
        for arguments, needs_key, metrics_are_open in (((), False, True), (("--api-key", "secret"), True, True),
                                                       (("--api-key", "secret", "--open-metrics", "false"), True, False)):
            with Server("--max-model-len", "256", *arguments) as server:
                status, document = server.get("/openapi.json")
                self.assertEqual(status, 200)
                self.assertEqual({} not in document["security"], needs_key)
                self.assertEqual(document["paths"]["/metrics"]["get"].get("security") == [], metrics_are_open)
                self.assertEqual(server.get("/v1/models")[0], 401 if needs_key else 200)
                self.assertEqual(server.request("GET", "/metrics")[0], 200 if metrics_are_open else 401)


@unittest.skipUnless(importlib.util.find_spec("schemathesis"), "the package schemathesis is not installed")
class DescriptionTest(unittest.TestCase):
    def run_against(self, server, *arguments, examples=20):
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json", "--header",
                 "Authorization: Bearer secret", "--checks", CHECKS, "--max-examples", str(examples), "--seed", "1", "--no-color",
                 "--request-timeout", "120", "--workers", "1", "--suppress-health-check", "all", *arguments],
                cwd=folder, capture_output=True, text=True, timeout=800)

    def test_every_route_answers_as_described(self):
        with Server("--max-model-len", "256", "--api-key", "secret") as server:
            result = self.run_against(server, "--phases", "examples,coverage,fuzzing")
            self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-2000:])
            self.assertEqual(server.get("/health")[1]["status"], "ok")
            self.assertIn("generated", result.stdout)

    def test_the_check_can_fail(self):
        """A description that promises something else is noticed."""
        with Server("--max-model-len", "256", "--api-key", "secret") as server:
            _, document = server.get("/openapi.json")
            document["components"]["schemas"]["Model"]["required"].append("colour")
            document["servers"] = [{"url": f"http://127.0.0.1:{server.port}"}]
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "wrong.json"), "w", encoding="utf-8") as file:
                    json.dump(document, file)
                result = subprocess.run(
                    [sys.executable, "-m", "schemathesis.cli", "run", "wrong.json", "--url", f"http://127.0.0.1:{server.port}", "--header",
                     "Authorization: Bearer secret", "--checks", "response_schema_conformance", "--include-path", "/v1/models",
                     "--max-examples", "2", "--phases", "fuzzing", "--no-color"], cwd=folder, capture_output=True, text=True, timeout=100)
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn("colour", result.stdout)


if __name__ == "__main__":
    server_process.main()
