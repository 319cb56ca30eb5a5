"""A stand-in for xllamacpp: copied to a folder on PYTHONPATH, it serves scripted replies.

The replies are in the file that FAKE_REPLIES names, as a JSON list; a null is never answered.
"""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


class CommonParams:
    def __init__(self):
        self.model, self.cpuparams = SimpleNamespace(), SimpleNamespace()
        self.cpuparams_batch = SimpleNamespace()


class Server:
    def __init__(self, params):
        assert os.path.exists(params.model.path)
        with open(os.environ["FAKE_REPLIES"]) as file:
            replies = iter(json.load(file))

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                text = next(replies)
                if text is None:
                    threading.Event().wait()
                self.send_response(200)
                streamed = body.get("stream")
                kind = "text/event-stream" if streamed else "application/json"
                self.send_header("content-type", kind)
                self.end_headers()
                self.wfile.write(events(text) if streamed else whole(text))

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()


def whole(text):
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]}).encode()


def events(text):
    parts = [{"delta": {"content": piece}} for piece in text.split(" ")]
    for later in parts[1:]:
        later["delta"]["content"] = " " + later["delta"]["content"]
    parts.append({"delta": {}, "finish_reason": "stop"})
    lines = [json.dumps({"choices": [one]}) for one in parts]
    return "".join(f"data: {one}\n\n" for one in [*lines, "[DONE]"]).encode()
