"""Runs the program under test: what the test files of this folder share."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = sys.argv[1], sys.argv[2]
NANO = os.path.join(SOURCE, "models", "nano")
SMALL = ["--kv-cache-memory", "16MiB"]  # starts faster; several thousand tokens


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def json(self):
        return json.loads(self.out)


def tandem(*words, stdin=b"", env=None, program=PROGRAM, **more):
    """Runs the program to its end; output as bytes for bytes in, text out. It sees no GPU: the expectations are the CPU's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment.update(env or {})
    done = subprocess.run([program, *words], input=stdin, capture_output=True, timeout=120, env=environment, **more)
    return Result(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace"))


class TandemTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-cli-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write(self, name, content):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def copy_of_nano(self, own_weights=False, place="nano"):
        """A folder that a test may damage; its weights only with `own_weights`, else they are links to the bundled ones."""
        link_or_copy = lambda source, target: (  # noqa: E731
            os.symlink(source, target) if source.endswith(".safetensors") and not own_weights else shutil.copy2(source, target))
        return shutil.copytree(NANO, self.path(place), copy_function=link_or_copy)

    def assert_fails(self, result, status, *words):
        """One line on standard error with these words, nothing on standard output."""
        self.assertEqual(result.status, status, result.err)
        self.assertEqual(result.out, "")
        lines = result.err.splitlines()
        self.assertEqual(len(lines), 1, result.err)
        self.assertTrue(lines[0].startswith("tandem: error: "), result.err)
        for word in words:
            self.assertIn(word, lines[0])


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
