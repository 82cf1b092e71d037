"""Asks a running server one thing: `ask.py health PORT` (exit 0 when it is ready) or `ask.py chat PORT` (one streamed
chat, exit 0 when the stream is complete and the answer right). Standard library only: it stands for a newcomer's client."""

import json
import sys
import urllib.request


def health(base):
    try:
        with urllib.request.urlopen(base + "/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def chat(base):
    body = {
        "messages": [{"role": "user", "content": "What is 347 + 286?"}],
        "max_tokens": 256,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        base + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    reasoning, content, done, finish = "", "", False, None
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            line = line.decode().strip()
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                for choice in json.loads(line[6:]).get("choices", []):
                    reasoning += choice["delta"].get("reasoning_content") or choice["delta"].get("reasoning") or ""
                    content += choice["delta"].get("content") or ""
                    finish = choice.get("finish_reason") or finish
    print(f"chat: reasoning {reasoning!r}, content {content!r}, finish {finish}, complete {done}", flush=True)
    return done and "633" in content and finish == "stop"


if __name__ == "__main__":
    task, port = sys.argv[1:3]
    sys.exit(0 if {"health": health, "chat": chat}[task](f"http://127.0.0.1:{port}") else 1)
