"""Recordings of a server's steps: where they may be written, and what a replay says of whole, cut and wrong ones."""
import fcntl
import glob
import http.client
import json
import os
import re
import shutil
import struct
import subprocess
import threading
import time

from program import NANO, PROGRAM, SMALL, TandemTest, main, tandem

MAGIC = b"TNDMSTEP"
READY = re.compile(r"tandem: serving .*:(\d+) \(")


def weights_changed(folder):
    """Another value in the final norm: every logit differs."""
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with open(path, "r+b") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            for name, tensor in header.items():
                if name.endswith("model.norm.weight"):
                    file.seek(8 + length + tensor["data_offsets"][0] + 1)
                    value = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([value ^ 0x01]))
                    return
    raise AssertionError("no final norm")


class Record(TandemTest):
    def serve(self, *words):
        server = subprocess.Popen([PROGRAM, "serve", *words, "--port", "0", *SMALL], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.stderr.close)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        ready = READY.match(server.stdout.readline())
        self.assertIsNotNone(ready, server.stderr.read() if not ready else "")
        return server, int(ready.group(1))

    def ask(self, port, tokens, results):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(
                {"messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens, "ignore_eos": True}))
            results.append(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            results.append(error)
        finally:
            connection.close()

    def recording(self, model=NANO):
        """A file with the steps of the start's check."""
        path = self.path("steps.bin")
        server, _ = self.serve(model, "--record-steps", path)
        server.terminate()
        self.assertEqual(server.wait(60), 0)
        return path

    def test_a_server_that_is_killed_in_mid_load(self):
        path = self.path("steps.bin")
        server, port = self.serve(NANO, "--record-steps", path, "--max-num-seqs", "3")
        results = []
        clients = [threading.Thread(target=self.ask, args=(port, 2000, results)) for _ in range(5)]
        for client in clients:
            client.start()
        start = os.path.getsize(path)
        deadline = time.monotonic() + 60
        while os.path.getsize(path) < start + 5000 and time.monotonic() < deadline:
            time.sleep(0.005)
        server.kill()
        server.wait()
        for client in clients:
            client.join()
        self.assertTrue(all(result != 200 for result in results), results)
        replay = tandem("bench", "replay", path, NANO)
        self.assertEqual((replay.status, replay.err), (0, ""))
        self.assertIn("equal to the recording", replay.out)
        self.assertGreater(int(replay.out.split()[0]), 16)
        report = tandem("bench", "replay", path, NANO, "--json").json()
        self.assertIn(report["steps"] - report["steps_compared"], (0, 1))

    def test_cut_anywhere(self):
        with open(self.recording(), "rb") as file:
            whole = file.read()
        total = tandem("bench", "replay", self.path("steps.bin"), NANO, "--json").json()
        self.assertEqual((total["cut_off"], total["steps_without_result"]), (False, 0))
        for length in (0, 7, 50, 90, 150, len(whole) // 3, len(whole) // 2, len(whole) - 21, len(whole) - 3):
            replay = tandem("bench", "replay", self.write("cut.bin", whole[:length]), NANO)
            if length <= 150:
                self.assert_fails(replay, 3, "cut.bin")
            else:
                self.assertEqual((replay.status, replay.err), (0, ""), length)
                self.assertRegex(replay.out, r"the first \d+ are equal to the recording, the file (is cut|ends)")
        with open(self.write("damaged.bin", whole), "r+b") as file:
            file.seek(30)
            file.write(b"\xff")
        self.assert_fails(tandem("bench", "replay", self.path("damaged.bin"), NANO), 3, "checksum")

    def test_other_weights_under_the_same_config(self):
        path = self.recording()
        other = self.copy_of_nano(own_weights=True)
        replay = ("bench", "replay", path, other)
        drafter = ("--drafter-model", NANO + "-dflash2")
        self.assertEqual(tandem(*replay, *drafter).status, 0)
        weights_changed(other)
        self.assert_fails(tandem(*replay, *drafter), 1, "step 0", "checksum")

    def test_the_drafter_that_it_was_made_with(self):
        path = self.recording()
        other = self.copy_of_nano()
        replay = ("bench", "replay", path, other)
        self.assert_fails(tandem(*replay), 2, "--drafter-model")  # none lies beside it
        drafter = shutil.copytree(NANO + "-dflash2", other + "-dflash2")
        self.assertEqual(tandem(*replay).status, 0)
        config = os.path.join(drafter, "config.json")
        with open(config, encoding="utf-8") as file:
            text = file.read()
        with open(config, "w", encoding="utf-8") as file:
            file.write(text.replace("10000.0", "20000.0"))
        self.assert_fails(tandem(*replay), 3, "config.json")  # another drafter
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        server, _ = self.serve(other, "--record-steps", path, "--drafter", "none")
        server.terminate()
        self.assertEqual(server.wait(60), 0)
        shutil.rmtree(drafter)
        self.assertEqual(tandem(*replay).status, 0)  # made without one

    def test_only_recordings_are_replaced(self):
        model = self.copy_of_nano(own_weights=True)
        notes = self.write("notes.txt", "mine")
        link = self.path("link")
        os.symlink(model, link)
        weights = glob.glob(os.path.join(model, "*.safetensors"))[0]
        moved = shutil.move(weights, self.path("blob"))  # a model folder of links
        os.symlink(moved, weights)
        for file, word in ((os.path.join(model, "config.json"), "model folder"), (weights, ""), (moved, "recording"),
                           (os.path.join(model, "new.bin"), "model folder"), (os.path.join(link, "new.bin"), "model folder"),
                           (os.path.join(model, "..", "nano", "new.bin"), "model folder"), (notes, "recording")):
            before = os.path.getsize(file) if os.path.exists(file) else None
            for more in ([], ["--print-config"]):
                self.assert_fails(tandem("serve", model, "--port", "0", *SMALL, "--record-steps", file, *more), 2, file, word)
            self.assertEqual(os.path.getsize(file) if os.path.exists(file) else None, before)
        path = self.recording(model)
        with open(path, "ab") as file:
            file.write(bytes(1 << 20))
        size = os.path.getsize(self.recording(model))
        self.assertLess(size, 1 << 20)  # replaced
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assert_fails(tandem("serve", model, "--port", "0", *SMALL, "--record-steps", path), 5, "another program")
        self.assertEqual(os.path.getsize(path), size)

    def test_a_pipe_does_not_hold_up_the_start(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        self.assert_fails(tandem("serve", NANO, "--port", "0", *SMALL, "--record-steps", pipe), 5, "pipe that nobody reads")
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.serve(NANO, "--record-steps", pipe)
        self.assertEqual(os.read(reader, 8), MAGIC)


main()
