"""A real HTTP server on loopback with ranges, that stalls, truncates, answers 503 and is restarted on its port."""

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server:
    """Serves a folder. `faults` are used up one a GET: 'stall', 'truncate', '503', '404', '403'; then all is well."""

    def __init__(self, folder: Path, ranges: bool = True) -> None:
        self.folder, self.ranges = folder, ranges
        self.faults: list[str] = []
        self.asked: list[tuple[str, int]] = []  # path and first byte of every GET
        self.sent = 0  # bytes of bodies
        self.stalled = threading.Event()
        self.released = threading.Event()
        self.port = 0
        self.start()

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.answer(self)

            def do_HEAD(self) -> None:
                server.answer(self, head=True)

            def log_message(self, *_: Any) -> None:
                pass

        class Threads(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_: Any) -> None:
                pass  # clients that give up on a stalled answer

        self.http = Threads(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def answer(self, request: BaseHTTPRequestHandler, head: bool = False) -> None:
        name = request.path.lstrip("/")
        data = (self.folder / name).read_bytes() if (self.folder / name).is_file() else None
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        start, end = (int(match[1]), int(match[2]) + 1) if match and self.ranges else (0, len(data or b""))
        fault = "" if head else self.faults.pop(0) if self.faults else ""
        if not head:
            self.asked.append((name, start))
        status = 404 if data is None else 206 if match and self.ranges else 200
        if data is not None and start >= len(data):
            status, data = 416, b""
        if fault.isdigit():
            status, data, start, end = int(fault), b"", 0, 0
        body = (data or b"")[start:end]
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        if self.ranges:
            request.send_header("Accept-Ranges", "bytes")
        request.end_headers()
        if head:
            return
        if fault in ("stall", "truncate"):
            body = body[: len(body) // 2]
        request.wfile.write(body)
        self.sent += len(body)
        if fault == "truncate":
            request.close_connection = True
        if fault == "stall":
            request.wfile.flush()
            self.stalled.set()
            self.released.wait(30)
            time.sleep(0.01)
            request.close_connection = True
